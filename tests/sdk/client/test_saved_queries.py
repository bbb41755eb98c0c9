"""The saved queries: each has its description in its first line and covers one run."""

import pytest

from chiplog_client.saved_queries import NAMES, about, query_of


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_query_says_what_it_shows_and_takes_the_run_as_a_parameter(name: str) -> None:
    text = query_of(name)
    assert text.startswith(f"-- {about(name)}\n")
    assert about(name)
    assert "$run" in text


def test_an_unknown_name_is_a_key_error_and_opens_no_file() -> None:
    with pytest.raises(KeyError):
        query_of("../saved_queries")
