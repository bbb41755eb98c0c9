"""Parameters of requests: each error names the parameter, its value and what it may be."""

import pytest
from starlette.datastructures import QueryParams

from chiplog_page.server.parameters import choice, integer, number, repeated


def test_numbers_and_words() -> None:
    assert integer({}, "limit", 5) == 5
    assert integer({"limit": "7"}, "limit", 5, 1, 10) == 7
    assert (number({}, "low"), number({"low": "-1e3"}, "low")) == (None, -1000)
    assert choice({}, "x", ("step", "time")) == "step"
    assert choice({"x": "time"}, "x", ("step", "time")) == "time"


@pytest.mark.parametrize(
    ("value", "message"), [("x", "limit='x' is not an integer"), ("11", "limit=11 is not within 1 and 10")]
)
def test_a_bad_number_is_named(value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        integer({"limit": value}, "limit", 5, 1, 10)


def test_an_unknown_word_is_named() -> None:
    with pytest.raises(ValueError, match="x='y' must be one of step, time"):
        choice({"x": "y"}, "x", ("step", "time"))


def test_repeated_values_are_counted_once() -> None:
    query = QueryParams("run=b&run=a&run=b")
    assert repeated(query, "run", 2) == ["b", "a"]
    for bounds, message in (((1, 0), "give at most 1"), ((9, 3), "give 3 to 9")):
        with pytest.raises(ValueError, match=f"2 values of run; {message}"):
            repeated(query, "run", *bounds)
