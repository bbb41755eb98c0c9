"""The end of a run: once, also from a signal handler or two threads, and with the failure that was seen first."""

import threading
from typing import Any

import pytest

from chiplog.journal.event_sink import NullJournal
from chiplog_schemas.model.events import EventKind


def test_threads_that_finish_at_once_append_one_state(run: Any, offline: Any) -> None:
    threads = [threading.Thread(target=run.finish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(offline(EventKind.STATE)) == 1


def test_the_first_failure_is_the_end_of_the_run(run: Any, offline: Any) -> None:
    run._end.mark_exit(ValueError("first"))
    run._end.mark_exit(KeyError("second"))
    run._end.finish(0)
    [state] = offline(EventKind.STATE)
    assert "first" in state.fields["state"]["reason"] and state.fields["state"]["state"] == "failed"


def test_the_end_of_a_command_is_its_signal_or_its_code(run: Any) -> None:
    run._end.mark_end_of_command(0, "ended")
    assert run._end.status.is_normal
    run._end.mark_end_of_command(-9, "killed")
    assert not run._end.status.is_normal and run._end.status._fields["exit_signal"] == 9


def test_what_interrupts_the_end_passes_and_the_run_can_be_finished_again(run: Any, monkeypatch: Any) -> None:
    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run._run_journal, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run._end.finish(0)
    assert not run._finished
    monkeypatch.undo()
    run._end.finish(0)
    assert run._finished and isinstance(run._journal, NullJournal)


def test_an_integration_logs_before_the_end_and_a_child_has_none(run: Any, offline: Any) -> None:
    run._end.before_finish = lambda: run.log({"last": 1.0})
    run.finish()
    assert len(offline(EventKind.METRICS)) == 1
    run._end.begin_in_child()
    assert run._end.before_finish is None


def test_an_exit_that_no_hook_saw_is_open_for_the_agent_of_this_node(run: Any) -> None:
    run._end.leave(run._settings)
    assert run._end.status.is_open and run._end.status.event() is None
