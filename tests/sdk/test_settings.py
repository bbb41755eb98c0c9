"""Arguments of init(): names, tags, texts and flags of any value become what can be recorded."""

from typing import Any

import numpy as np
import pytest

from chiplog.settings import as_strings, clean_name, clean_text, flag, safe_name


def test_names_lose_what_would_break_a_path_or_a_terminal() -> None:
    assert safe_name("label", "rank0", 128) == ("rank0", None)
    name, change = safe_name("label", "a/b\n\ud800" + "x" * 200, 128)
    assert name.startswith("a_b__xxx")
    assert len(name) == 128
    assert safe_name("label", "a/b\n\ud800" + "x" * 201, 128)[0] != name, "what begins alike stays apart"
    assert change is not None
    assert "label" in change
    assert safe_name("run ID", "", 128) == ("", None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpt-1", ("gpt-1", "")),
        ("../up ", (".._up", "space at its ends, a slash")),
        ("a\nb", ("a_b", "control characters")),
        (" ", ("", "no characters")),
        (" a ", ("a", "space at its ends")),
        ("l" * 129, (clean_name("l" * 129, 128)[0], "129 characters, over the limit of 128")),
    ],
)
def test_what_is_wrong_with_a_name_is_listed(text: str, expected: tuple[str, str]) -> None:
    assert clean_name(text, 128) == expected


@pytest.mark.parametrize(
    ("words", "expected"), [(None, ()), ("a", ("a",)), (["a", 1], ("a", "1")), (5, ("5",)), ((), ())]
)
def test_tags_are_taken_as_one_or_many(words, expected) -> None:
    assert as_strings(words) == expected


@pytest.mark.parametrize(
    ("given", "value"),
    [
        *((given, True) for given in (True, 1, np.True_, " YES ", "on", "1")),
        *((given, False) for given in (False, 0, np.False_, np.int64(0), "Off", "false", " No ")),
        *((given, None) for given in (None, "")),
    ],
)
def test_every_word_for_yes_and_no_is_taken_without_a_diagnostic(given: Any, value: bool | None) -> None:
    assert flag("primary", given) == (value, None)


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise ArithmeticError("as an array of several values does")

    __hash__ = object.__hash__


@pytest.mark.parametrize("given", ["maybe", 2, [], Incomparable()], ids=["word", "number", "list", "raises"])
def test_what_is_neither_yes_nor_no_is_the_default_and_one_diagnostic(given: Any) -> None:
    value, bad = flag("primary", given)
    assert value is None
    assert bad is not None and (bad.kind, bad.key) == ("bad_argument", "primary")
    assert bad.message.startswith("primary=") and "True, False" in bad.message


def test_a_name_becomes_one_line_and_notes_keep_theirs() -> None:
    assert clean_text("notes", "a\nb") == ("a\nb", None)
    assert clean_text("name", "plain") == ("plain", None)
    assert clean_text("name", "") == (None, None)
    line, bad = clean_text("name", "a\nb")
    assert line == "a b"
    assert bad is not None and "control characters" in bad.message
    line, bad = clean_text("name", "x" * 2_000)
    assert line == "x" * 1_024
    assert bad is not None and "2000 characters" in bad.message
