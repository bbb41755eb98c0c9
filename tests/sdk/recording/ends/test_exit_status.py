"""The end of a run in one process: its last event, the steps before it, and what is left for the agent."""

import signal

import pytest

from chiplog.journal.journal import Journal
from chiplog.recording.ends.exit_status import ExitStatus, close, run_all
from chiplog.safety.diagnostics import Diagnostics
from chiplog_schemas.clock import now_us
from chiplog_schemas.model.codes import EndCause
from chiplog_schemas.model.events import EventKind, decode
from tests.support.signals import handling, raising


def fields_of(status: ExitStatus) -> dict[str, object]:
    event = status.event()
    assert event is not None
    decoded = decode(event)
    assert decoded[0] == EventKind.STATE
    return decoded[2]


def test_without_a_word_of_a_failure_a_process_has_finished() -> None:
    status = ExitStatus()
    assert fields_of(status) == {"state": "finished", "exit_code": 0}
    assert status.is_normal and not status.is_failed
    status.set_exit_code(0)
    assert status.is_normal


def test_the_first_failure_is_the_end_and_its_time_is_when_it_happened() -> None:
    status = ExitStatus()
    status.set_failed("ValueError: odd \ud800", 1, EndCause.EXCEPTION)
    failed_us = now_us()
    status.set_exit_code(4)
    status.leave_open(is_adopted=True)
    event = status.event()
    assert event is not None and decode(event)[1] <= failed_us
    found = fields_of(status)
    assert (found["state"], found["exit_code"], found["cause"]) == ("failed", 1, EndCause.EXCEPTION.value)
    assert str(found["reason"]).startswith("ValueError: odd ")
    assert status.is_failed and not status.is_open


@pytest.mark.parametrize(
    ("given", "code"),
    [(3, 3), (True, 1), (-9, -9), ("a message", 1), (object(), 1), (1 << 40, 255)],
    ids=["int", "bool", "negative", "text", "object", "too large"],
)
def test_whatever_finish_is_given_as_an_exit_code_is_a_number_of_32_bits(given: object, code: int) -> None:
    status = ExitStatus()
    status.set_exit_code(given)
    assert (fields_of(status)["state"], fields_of(status)["exit_code"]) == ("failed", code)


def test_an_end_that_nobody_saw_is_the_agents_to_tell_where_there_is_one() -> None:
    status = ExitStatus()
    status.leave_open(is_adopted=True)
    assert status.event() is None and not status.is_normal
    alone = ExitStatus()
    alone.leave_open(is_adopted=False)
    assert (fields_of(alone)["state"], fields_of(alone)["cause"]) == ("crashed", EndCause.UNSEEN.value)


def test_a_step_that_fails_is_reported_and_the_next_ones_run() -> None:
    done: list[str] = []

    def report_fault(error: Exception) -> None:
        done.append(str(error))
        raise RuntimeError("a logging handler that raises")

    def fail() -> None:
        raise OSError("no space")

    run_all([lambda: done.append("first"), fail, lambda: done.append("last")], report_fault)
    assert done == ["first", "no space", "last"]


def test_what_a_handler_raises_in_a_step_reaches_the_training() -> None:
    diagnostics: list[Exception] = []
    with handling(signal.SIGALRM, raising(TimeoutError("the training's own limit"))), pytest.raises(TimeoutError):
        run_all([lambda: signal.raise_signal(signal.SIGALRM)], diagnostics.append)
    assert diagnostics == []


def test_a_journal_that_no_agent_has_is_closed_and_its_events_are_counted_in_a_warning(caplog) -> None:
    journal = Journal(None, bytes(16), b"")
    journal.append(b"event")
    journal.seal(b"end", lambda: None)
    close(journal, None, Diagnostics(lambda *event: None), 0.0)
    assert "2 events reached no agent and end with this process" in caplog.text
