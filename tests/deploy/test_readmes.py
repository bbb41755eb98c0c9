"""The cookbook held to the code: kinds of events."""

import re

from tests.support.packages import PACKAGES, ROOT


def test_the_cookbook_lists_every_kind_of_event_that_the_code_emits() -> None:
    emitted = set()
    for package in PACKAGES.keys() - {"chiplog_schemas"}:  # they emit nothing
        for path in PACKAGES[package].rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            emitted |= set(re.findall(r'"([a-z]+(?:[_.][a-z]+)*)",\s*"(?:debug|info|warning|error)"', text))
    emitted -= {"debug", "info", "warning", "error", "ok", "end"}  # levels, and names of fields
    [row] = [
        line for line in (ROOT / "docs/sql/runs.md").read_text().splitlines() if line.startswith("| kind | `alert`")
    ]
    assert {"gpu.lost", "node_lost"} <= emitted
    assert emitted - set(re.findall("`([a-z_.]+)`", row)) == set()
