"""Warnings as rows of `events`, shown as before."""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.integrations.logging import ChiplogHandler
from chiplog.recording.log.alerts import ALERT_BURST


def test_a_warning_is_a_row_and_is_shown_as_before(shown: list[Any], recorded: Any) -> None:
    chiplog.capture_warnings()
    chiplog.capture_warnings()
    warnings.warn("soon gone", FutureWarning, stacklevel=1)
    [(text, category, path, line, *_)] = shown
    assert (text, category, Path(path)) == ("soon gone", FutureWarning, Path(__file__))
    [row] = recorded()
    assert (row["notice"], row["level"], row["message"]) == ("warning", "warning", "soon gone")
    assert row["body"] == {"category": "FutureWarning", "path": path, "line": line, "thread": "MainThread"}


def test_it_ends_where_it_began(shown: list[Any], recorded: Any) -> None:
    before = warnings.showwarning
    chiplog.capture_warnings(False)
    chiplog.capture_warnings()
    chiplog.capture_warnings(False)
    assert warnings.showwarning is before
    warnings.warn("not recorded", stacklevel=1)
    assert len(shown) == 1
    assert recorded() == []


def test_other_code_that_took_the_place_later_keeps_it(shown: list[Any], recorded: Any) -> None:
    chiplog.capture_warnings()
    of_chiplog, seen = warnings.showwarning, []

    def later(*given: Any) -> None:
        seen.append(str(given[0]))
        of_chiplog(*given)

    warnings.showwarning = later
    warnings.warn("by both", stacklevel=1)
    chiplog.capture_warnings()
    warnings.warn("once", stacklevel=1)
    chiplog.capture_warnings(False)
    assert warnings.showwarning is later
    warnings.warn("not recorded", stacklevel=1)
    assert seen == [text for text, *_ in shown] == ["by both", "once", "not recorded"]
    assert [row["message"] for row in recorded()] == ["by both", "once"]


def test_a_warning_that_logging_captures_too_is_one_row(shown: list[Any], recorded: Any) -> None:
    handler = ChiplogHandler()
    logging.getLogger("py.warnings").addHandler(handler)
    logging.captureWarnings(True)
    try:
        warnings.warn("by logging", stacklevel=1)
        chiplog.capture_warnings()
        warnings.warn("by both", stacklevel=1)
        chiplog.capture_warnings(False)
    finally:
        logging.captureWarnings(False)
        logging.getLogger("py.warnings").removeHandler(handler)
    rows = recorded()
    assert [row["notice"] for row in rows] == ["log", "warning"]
    assert "by logging" in rows[0]["message"] and rows[1]["message"] == "by both"


def test_a_warning_in_a_loop_is_a_few_rows_and_a_count(shown: list[Any], recorded: Any) -> None:
    chiplog.capture_warnings()
    for step in range(500):
        warnings.warn(f"step {step}", stacklevel=1)
    rows = recorded()
    kept = sum(row["notice"] == "warning" for row in rows)
    assert ALERT_BURST <= kept < 100
    assert kept + sum(row["body"]["count"] for row in rows if row["notice"] == "logs_suppressed") == 500
    assert len(shown) == 500


def test_an_unknown_argument_and_a_bad_text_raise_nothing(
    shown: list[Any], recorded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bad(UserWarning):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    monkeypatch.setattr(warnings, "showwarning", lambda *given: None)
    chiplog.capture_warnings(capture=True)  # type: ignore[call-arg]
    warnings.showwarning(Bad(), Bad, "train.py", 7)
    warnings.showwarning("a text", UserWarning, "train.py", 7)
    assert [row["message"] for row in recorded()] == ["<Bad>", "a text"]
