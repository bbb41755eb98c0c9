"""Columns that hold JSON."""

import pytest

from chiplog_client.results.json_texts import decoded, json_number


@pytest.mark.parametrize(
    ("value", "found"),
    [('{"a": 1}', {"a": 1}), (["1", "[2]"], [1, [2]]), ("gpt-1", "gpt-1"), (3, 3), (None, None)],
)
def test_only_a_text_of_json_is_decoded(value, found):
    assert decoded(value) == found


@pytest.mark.parametrize(
    ("value", "found"), [(1.5, 1.5), (float("nan"), "nan"), (float("-inf"), "-inf"), ("nan", "nan"), (None, None)]
)
def test_a_number_that_json_lacks_is_a_text(value, found):
    assert json_number(value) == found
