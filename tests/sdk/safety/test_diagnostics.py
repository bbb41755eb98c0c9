"""Diagnostics: each is counted, the first of its kind are logged and recorded, and nothing of ours is raised."""

import logging
import signal
from typing import Any

import pytest

from chiplog.safety.diagnostics import Diagnostic, Diagnostics, error_line, error_text
from chiplog_schemas.model.events import EventKind
from tests.support.signals import handling, raising


class Told:
    """What was appended."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __call__(self, *event: Any) -> None:
        self.events.append(event)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def diagnostics(told: Told) -> Diagnostics:
    return Diagnostics(told)


def test_totals_are_rejected_values_and_errors_without_what_is_recorded(diagnostics) -> None:
    assert diagnostics.totals() == {"rejected": 0, "errors": 0}
    diagnostics.report(Diagnostic("not_a_number", "loss", "x"))
    diagnostics.report_too_many_keys("k", 1)
    diagnostics.report_nonfinite({"loss": float("nan")}, 1)
    diagnostics.report_internal_error("log", KeyError("x"))
    assert diagnostics.totals() == {"rejected": 2, "errors": 1}


def test_a_diagnostic_is_said_once_for_each_key_and_counted_each_time(diagnostics, told, caplog) -> None:
    message = "'loss' is a str; give a number"
    for _ in range(3):
        diagnostics.report(Diagnostic("not_a_number", "loss", message))
    diagnostics.report(Diagnostic("not_a_number", "mode", "unknown", "error"))
    assert diagnostics.counts == {"not_a_number": 4}
    assert told.events == [
        (
            EventKind.NOTICE,
            "bad_value",
            "warning",
            "'loss' is a str; give a number",
            {"kind": "not_a_number", "key": "loss"},
        ),
        (EventKind.NOTICE, "bad_value", "error", "unknown", {"kind": "not_a_number", "key": "mode"}),
    ]
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.WARNING, f"chiplog: {message}"),
        (logging.ERROR, "chiplog: unknown"),
    ]


def test_a_kind_with_very_many_keys_leaves_room_for_the_others(diagnostics, told, caplog) -> None:
    for number in range(1_000):
        diagnostics.report(Diagnostic("array", f"key{number}", f"'key{number}' is an array"))
    diagnostics.report(Diagnostic("bad_step", "step", "step= is not a number"))
    assert diagnostics.counts == {"array": 1_000, "bad_step": 1}
    assert 1 < len(told.events) < 20
    assert told.events[-1][4] == {"kind": "bad_step", "key": "step"}
    assert "step= is not a number" in caplog.text


def test_keys_over_the_limit_are_one_message_however_many_there_are(diagnostics, told, caplog) -> None:
    for number in range(100):
        diagnostics.report_too_many_keys(f"key{number}", 50)
    assert diagnostics.counts == {"too_many_keys": 100}
    assert len(told.events) == len(caplog.records) == 1
    assert "'key0' exceeds the limit of 50 keys" in caplog.text


def test_counts_are_emitted_once_a_minute_and_at_the_end_if_they_changed(diagnostics, told) -> None:
    def counts() -> list[tuple[str, dict[str, int]]]:
        found = [(event[1], event[4]) for event in told.events if event[1] != "bad_value"]
        told.events.clear()
        return found

    diagnostics.report(Diagnostic("array", "a", "an array"))
    diagnostics.report_nonfinite({"loss": float("nan"), "fine": 1.0, "grad": float("inf")}, 7)
    diagnostics.emit_counts(100.0)
    diagnostics.emit_counts(159.0)
    assert counts() == []
    diagnostics.emit_counts(161.0)
    assert counts() == [("nonfinite_values", {"not_finite": 2}), ("bad_values", {"array": 1})]
    diagnostics.report(Diagnostic("array", "a", "an array"))
    diagnostics.emit_counts(162.0)
    assert counts() == []
    diagnostics.emit_counts()
    assert counts() == [("bad_values", {"array": 2})], "what did not change is not said again"
    diagnostics.emit_counts()
    assert counts() == []


def test_events_that_end_with_the_process_are_a_warning_with_its_reason(diagnostics, caplog) -> None:
    diagnostics.warn_undelivered(0, OSError("unused"))
    assert caplog.records == []
    diagnostics.warn_undelivered(3, OSError("No space left on device"))
    assert "3 events reached no agent and end with this process: No space left on device" in caplog.text


def test_an_error_inside_is_counted_and_what_a_handler_raised_goes_on(diagnostics, caplog) -> None:
    diagnostics.report_internal_error("log", ValueError("odd\n  stack"))
    assert diagnostics.counts == {"internal_error": 1}
    assert "log() failed inside: ValueError odd stack\n" in caplog.text

    limit = raising(TimeoutError("the training's own limit"))
    with handling(signal.SIGALRM, limit), pytest.raises(TimeoutError, match="the training's own limit"):
        try:
            signal.raise_signal(signal.SIGALRM)
        except TimeoutError as error:
            diagnostics.report_internal_error("log", error)
    assert diagnostics.counts == {"internal_error": 1}


def test_an_exception_without_a_text_is_its_type() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert error_text(MuteError()) == "<MuteError>" and error_line(MuteError()) == "MuteError <MuteError>"
    assert error_line(ValueError("why\n\n  stack" + "x" * 5_000))[:25] == "ValueError why stackxxxxx"
    assert error_text(ValueError("x" * 5_000)) == "x" * 1_000
