"""Columns that hold JSON."""

import pytest

from chiplog_client.results.json_texts import decoded


@pytest.mark.parametrize(
    ("value", "found"),
    [('{"a": 1}', {"a": 1}), (["1", "[2]"], [1, [2]]), ("gpt-1", "gpt-1"), (3, 3), (None, None)],
)
def test_only_a_text_of_json_is_decoded(value, found):
    assert decoded(value) == found
