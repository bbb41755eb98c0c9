"""The console of several runs: one of them records it, and the next one does when that one ends."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from chiplog.recording.run import run_console
from chiplog.recording.run.run_console import RunConsole


class _Capture:
    def __init__(self, *given: Any, **named: Any) -> None:
        self.calls: list[str] = []

    def close(self) -> None:
        self.calls.append("close")

    def tick(self) -> None:
        self.calls.append("tick")

    def close_in_child(self) -> None:
        self.calls.append("close_in_child")


@pytest.fixture
def consoles(monkeypatch: Any) -> Iterator[list[RunConsole]]:
    monkeypatch.setattr(run_console, "ConsoleCapture", _Capture)
    monkeypatch.setattr(run_console, "_capturing", [])
    journal: Any = SimpleNamespace(sender=None, producer=b"", directory=None, is_under_pressure=False)
    yield [RunConsole(None, journal, None, None) for _ in range(3)]  # type: ignore[arg-type]


def test_the_first_open_run_records_and_the_next_one_follows_it(consoles: list[RunConsole]) -> None:
    for console in consoles:
        console.begin()
    assert [console.capture is not None for console in consoles] == [True, False, False]
    consoles[1].end()
    consoles[0].end()
    assert consoles[1].capture is None and consoles[2].capture is not None


def test_a_run_that_does_not_record_ends_without_a_change(consoles: list[RunConsole]) -> None:
    consoles[0].begin()
    consoles[1].end()
    consoles[1].tick()
    assert consoles[0].capture.calls == []  # type: ignore[union-attr]


def test_a_child_leaves_the_streams_to_its_parent(consoles: list[RunConsole]) -> None:
    for console in consoles[:2]:
        console.begin()
    capture: Any = consoles[0].capture
    consoles[0].begin_in_child()
    consoles[0].tick()
    assert capture.calls == ["close_in_child"] and run_console._capturing == []


def test_a_line_that_is_not_text_is_recorded_as_text(run: Any, offline: Any) -> None:
    from chiplog_schemas.model.events import EventKind

    run._console._emit_line(1, 0, "half \ud800")
    run.finish()
    [line] = offline(EventKind.CONSOLE)
    line.fields["line"].encode()
