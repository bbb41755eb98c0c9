"""Whatever the training code passes becomes a text that can be shown, and encoded as UTF-8."""

import pytest

from chiplog.safety.text import REPR_CHARS, clean_utf8, is_encodable, short_repr


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Interrupted(BaseException):
    """As a handler raises it."""


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), ("a", "'a'"), (Unshowable(), "<Unshowable>"), (10**10_000, "<int>")],
    ids=["int", "str", "raises", "too many digits"],
)
def test_a_value_is_shown_also_if_its_repr_raises(value: object, text: str) -> None:
    assert short_repr(value) == text


def test_a_long_repr_is_cut() -> None:
    assert short_repr("x" * 1_000) == "'" + "x" * (REPR_CHARS - 1)


def test_what_is_no_exception_passes_through() -> None:
    class Stops:
        def __repr__(self) -> str:
            raise Interrupted

    with pytest.raises(Interrupted):
        short_repr(Stops())


@pytest.mark.parametrize(
    ("text", "encodable", "clean"),
    [("h\u00e9", True, "h\u00e9"), ("\udcff", True, "\\udcff"), ("a\ud800b", False, "a\\ud800b")],
)
def test_lone_surrogates_are_written_as_escapes(text: str, encodable: bool, clean: str) -> None:
    assert is_encodable(text) is encodable
    assert clean_utf8(text) == clean
    clean_utf8(text).encode("utf-8")
