"""The journal of a run: opened with the first event in another process, its identity, a full disk, and its end."""

from types import SimpleNamespace
from typing import Any

from chiplog.journal.event_sink import LazyJournal, NullJournal
from chiplog.recording.ends.exit_status import ExitStatus
from chiplog.torch.current_device import CurrentDevice
from chiplog_schemas.model.events import EventKind


def test_the_device_is_recorded_once(run: Any, offline: Any) -> None:
    run._devices.current = CurrentDevice(0, "GPU-1")
    before = run._journal.next_seq
    run._run_journal.poll()
    run._run_journal.poll()
    assert run._journal.next_seq == before + 1
    run.finish()
    assert len(offline(EventKind.IDENTITY)) >= 1


def test_a_disk_error_is_reported_once_and_the_run_continues(run: Any, monkeypatch: Any, offline: Any) -> None:
    monkeypatch.setattr(run._journal, "disk_error", OSError("no space left"))
    for _ in range(3):
        run._run_journal.poll()
    monkeypatch.undo()
    assert run._run_journal.is_in_memory
    run.log({"loss": 1.0})
    run.finish()
    found = [event for event in offline(EventKind.NOTICE) if event.fields["notice"] == "journal_memory"]
    assert len(found) == 1


def test_a_closed_journal_refuses_events_and_keeps_its_count(run: Any) -> None:
    n_events, refused = run._journal.next_seq, []
    run._run_journal.close(ExitStatus(), 0.0, lambda: refused.append("event"))
    assert isinstance(run._journal, NullJournal) and run._journal.next_seq == n_events + 1
    run._journal.append(b"late")
    assert refused == ["event"] and run._run_journal.directory is None


def test_an_inherited_run_opens_with_its_first_event(run: Any) -> None:
    own, opened = run._journal, run._run_journal.started_us
    run._run_journal.open_with_first_event()
    assert isinstance(run._journal, LazyJournal) and run._run_journal.producer == b""
    run.log({"loss": 1.0})
    assert run._run_journal.producer not in (b"", own.producer) and run._run_journal.started_us >= opened
    own.close(remove=True)


def test_no_sender_starts_after_the_end(run: Any, monkeypatch: Any) -> None:
    started: list[str] = []
    run.finish()
    monkeypatch.setattr(run._run_journal, "sender", SimpleNamespace(start=lambda: started.append("sender")))
    run._run_journal.start_sender()
    assert started == []
