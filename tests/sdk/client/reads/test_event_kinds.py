"""Kinds of events in plain words."""

import re
from pathlib import Path

from chiplog_client.reads.event_kinds import EVENT_KINDS, kind_title

DOCS = Path(__file__).parents[4] / "docs/sql/runs.md"


def test_each_documented_kind_has_words() -> None:
    [row] = re.findall(r"^\| kind \| (`alert`.*) \|$", DOCS.read_text(), re.MULTILINE)
    assert set(re.findall(r"`([^`]+)`", row)) == EVENT_KINDS.keys()


def test_an_unknown_kind_is_shown_as_it_is() -> None:
    assert kind_title("new_kind") == "new_kind"
