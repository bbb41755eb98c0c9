"""The notices of a run, without a run: what is emitted, what its limits leave out, and what an error becomes."""

from typing import Any

from chiplog.recording.log.alerts import ALERT_BURST
from chiplog.recording.run.run_notices import RunNotices
from chiplog.safety.diagnostics import Diagnostic
from chiplog_schemas.model.events import EventKind


class Events:
    """The events, complaints and errors of one `RunNotices`."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.diagnostics: list[Diagnostic] = []
        self.errors: list[str] = []
        self.is_finished = False
        self.notices = RunNotices(
            self.emit,
            self.diagnostics.append,
            lambda where, error: self.errors.append(where),
            lambda: self.is_finished,
        )

    def emit(self, kind: EventKind, *fields: Any, urgent: bool = False) -> None:
        assert kind is EventKind.NOTICE
        self.rows.append((*fields, urgent))


def test_an_alert_has_a_level_and_a_title_that_repeats_is_counted() -> None:
    events = Events()
    for _ in range(ALERT_BURST + 2):
        events.notices.alert("loss is NaN", "at 3", "loud")
    assert events.rows == [("alert", "warning", "loss is NaN", {"text": "at 3"}, False)] * ALERT_BURST
    assert {bad.kind for bad in events.diagnostics} == {"bad_level"}
    events.notices.emit_suppressed(None)
    assert events.rows[-1][0] == "alerts_suppressed" and events.rows[-1][3]["count"] == 2


def test_records_of_one_level_do_not_use_up_those_of_another() -> None:
    events = Events()
    for _ in range(ALERT_BURST + 1):
        events.notices.emit_record("log", "warning", "slow %s", lambda: ("slow disk", {}))
    events.notices.emit_record("log", "error", "slow %s", lambda: ("slow disk", {}))
    assert [row[1] for row in events.rows] == ["warning"] * ALERT_BURST + ["error"]
    events.notices.begin_limits()
    events.notices.emit_record("log", "warning", "slow %s", lambda: ("slow disk", {}))
    assert len(events.rows) == ALERT_BURST + 2, "a forked child counts from zero"


def test_a_failed_thread_is_urgent_and_a_finished_run_emits_no_failure() -> None:
    events = Events()
    events.notices.note_thread("loader", ValueError("bad batch"))
    [(notice, level, message, body, urgent)] = events.rows
    assert (notice, level, message, urgent) == (
        "thread_failed",
        "error",
        "thread loader: ValueError: bad batch",
        True,
    )
    assert body["exception"] == "ValueError"
    events.is_finished = True
    events.notices.emit("checkpoint", "last.pt", {}, "info")
    assert len(events.rows) == 1


def test_an_error_while_a_notice_is_emitted_is_reported() -> None:
    events = Events()
    events.notices.emit("checkpoint", "last.pt", 7, "info")  # type: ignore[arg-type]  # of a foreign library
    assert (events.rows, events.errors) == ([], ["checkpoint"])
