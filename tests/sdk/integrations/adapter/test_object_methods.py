"""Methods of one object that go through a function."""

from typing import Any

import pytest

from chiplog.integrations.adapter.object_methods import unwrap_method, wrap_method


class Owner:
    def double(self, number: int) -> int:
        return 2 * number


def _one_more(method: Any, number: int) -> Any:
    return method(number) + 1


def test_a_method_goes_through_a_function_once_until_it_is_unwrapped() -> None:
    owner, other = Owner(), Owner()
    wrap_method(owner, "double", _one_more)
    wrap_method(owner, "double", _one_more)
    assert (owner.double(2), other.double(2)) == (5, 4)
    unwrap_method(owner, "double")
    unwrap_method(owner, "double")
    assert owner.double(2) == 4
    assert not vars(owner)


def test_a_function_that_the_script_gave_to_the_object_is_wrapped_and_comes_back() -> None:
    owner = Owner()
    given = vars(owner)["double"] = lambda number: 20 * number
    unwrap_method(owner, "double")
    wrap_method(owner, "double", _one_more)
    assert owner.double(2) == 41
    unwrap_method(owner, "double")
    assert vars(owner) == {"double": given}


def test_what_others_have_put_in_place_of_ours_stays() -> None:
    owner = Owner()
    wrap_method(owner, "double", _one_more)
    other = vars(owner)["double"] = lambda number: 0
    unwrap_method(owner, "double")
    assert vars(owner) == {"double": other}


def test_a_version_without_the_method_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    wrap_method(owner, "gone", _one_more)
    assert caplog.messages == ["chiplog: Owner has no gone() in this version; its phase is left out"]
    assert not vars(owner)
