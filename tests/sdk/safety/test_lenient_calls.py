"""Calls with the arguments of other loggers: what is known is used, the rest is reported, and nothing is raised."""

import inspect
from collections.abc import Mapping
from typing import Any

import pytest

from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.lenient_calls import (
    NO_DATA,
    hide_unknown_arguments,
    ignore_unknown_arguments,
    report_unknown,
    split_unknown,
)


class Owner:
    def __init__(self) -> None:
        self.reported: list[Diagnostic] = []

    @ignore_unknown_arguments
    def alert(self, title: str, text: str = "", *, level: str = "info") -> tuple[Any, ...]:
        return title, text, level


@report_unknown.register
def _(owner: Owner, bad: Diagnostic) -> None:
    owner.reported.append(bad)


class Tensor:
    def __repr__(self) -> str:
        return "shown after a wait for its device"


def test_a_call_as_declared_is_as_without_the_decorator() -> None:
    owner = Owner()
    assert owner.alert("hot", "very", level="warn") == ("hot", "very", "warn")
    assert owner.reported == []
    assert list(inspect.signature(Owner.alert).parameters) == ["self", "title", "text", "level"]


def test_unknown_arguments_are_reported_to_their_object_and_the_others_used() -> None:
    owner = Owner()
    found = owner.alert("hot", "very", 300, Tensor(), level="warn", wait_duration=5)  # type: ignore[call-arg, arg-type]
    assert found == ("hot", "very", "warn")
    [bad] = owner.reported
    assert (bad.kind, bad.key) == ("unknown_argument", "alert(_, _, wait_duration=)")
    assert bad.message == (
        "alert() has no argument 300, <Tensor>, wait_duration=, which is left out; it takes title, text, level"
    )


def test_a_missing_argument_is_none_and_the_call_itself_reports_it() -> None:
    owner = Owner()
    assert owner.alert(text="very") == (None, "very", "info")  # type: ignore[call-arg]
    assert owner.reported == []


def test_an_argument_that_is_given_twice_counts_once() -> None:
    owner = Owner()
    assert owner.alert("first", title="second") == ("first", "", "info")  # type: ignore[misc]
    assert [bad.key for bad in owner.reported] == ["alert(title=)"]


def test_a_function_reports_to_what_it_returned_and_otherwise_to_the_log(caplog) -> None:
    owner = Owner()

    @ignore_unknown_arguments
    def init(project: Any = None) -> Any:
        return project

    assert init(owner, sync_tensorboard=True) is owner  # type: ignore[call-arg]
    assert [bad.key for bad in owner.reported] == ["init(sync_tensorboard=)"]
    assert caplog.text == ""
    assert init("gpt", entity="us") == "gpt"  # type: ignore[call-arg]
    assert "chiplog: init() has no argument entity=" in caplog.text


def test_a_type_error_of_the_function_itself_is_not_hidden() -> None:
    @ignore_unknown_arguments
    def add(number: int) -> int:
        return number + "text"  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        add(1)


@pytest.mark.parametrize(
    ("data", "more", "unknown", "logged"),
    [
        (NO_DATA, (), {"loss": 1.0, "commit": False}, {"loss": 1.0}),
        (NO_DATA, (), {"commit": False, "sync": True}, {}),
        (NO_DATA, ("loss",), {"value": 1.0}, {}),
        ({"loss": 1.0}, (), {"acc": 0.5}, {"loss": 1.0}),
    ],
    ids=["values by name", "options of others", "a key and a value", "a dict and more"],
)
def test_values_by_name_are_logged_unless_they_may_mean_something_else(
    data: Mapping[str, Any], more: tuple[Any, ...], unknown: dict[str, Any], logged: dict[str, float]
) -> None:
    found, bad = split_unknown(data, more, unknown)
    assert dict(found) == logged
    assert bad.kind == "unknown_argument"
    assert ("is logged as if in a dict" in bad.message) == (dict(found) != {} and data is NO_DATA)


def test_help_shows_no_argument_that_only_catches_mistakes() -> None:
    @hide_unknown_arguments
    def log(data: Mapping[str, Any] = NO_DATA, *more: Any, step: int | None = None, **unknown: Any) -> None:
        """Log."""

    assert str(inspect.signature(log)).startswith("(data: ")
    shown = inspect.signature(log).parameters
    assert list(shown) == ["data", "step"]
    assert shown["data"].default is inspect.Parameter.empty
