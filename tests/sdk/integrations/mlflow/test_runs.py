"""The runs of a process: the first one, further ones, and those of other processes."""

from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.recording.run import current_run


@pytest.fixture
def book(chiplog_dir: Path) -> Any:
    from chiplog.integrations.mlflow.addresses import Address
    from chiplog.integrations.mlflow.runs import RunBook

    return RunBook(Address(str(chiplog_dir)))


def test_the_first_run_is_the_named_one_and_further_ones_are_their_own(
    book: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIPLOG_RUN_ID", "launch-1")
    first, second = book.create("0", "p", "a"), book.create("0", "p", None)
    assert (first.run_id, first.inner.name, first.inner.project) == ("launch-1", "a", "p")
    assert len(second.run_id) == 32 and second.is_open and first.is_open
    assert [record.run_id for record in book.list_all()] == [first.run_id, second.run_id]


def test_a_run_of_the_script_is_taken_and_not_ended(book: Any, chiplog_dir: Path) -> None:
    run = chiplog.init(project="p", dir=chiplog_dir)
    record = book.create("0", "q", None)
    book.end(record)
    assert record.inner is run and not run._finished


def test_a_run_is_named_to_no_child(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv("CHIPLOG_PARENT_RUN", raising=False)
    book.create("0", "p", None)
    assert "CHIPLOG_PARENT_RUN" not in os.environ


def test_an_ended_run_is_opened_again_as_the_same_label_and_closed_before_the_next(book: Any) -> None:
    record = book.create("0", "p", None)
    label = record.inner.label
    record.set("chiplog:status", "FAILED")
    book.end(record)
    assert record.inner._end.status.is_failed or record.inner._finished
    again = book.open(record).inner
    assert (again.id, again.label, again._membership.identity.is_fallback_primary) == (record.run_id, label, True)
    book.create("0", "p", None)
    assert again._finished


def test_a_run_of_another_process_is_joined_when_it_is_written(book: Any) -> None:
    record = book.expect("elsewhere", "5")
    assert not record.is_open and book.find("elsewhere") is record
    inner = book.open(record).inner
    assert (inner.id, inner.project) == ("elsewhere", None) and book.open(record).inner is inner


def test_too_many_open_runs_end_the_oldest(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from chiplog.integrations.mlflow import runs

    monkeypatch.setattr(runs, "_OPEN_MAX", 2)
    records = [book.create("0", "p", None) for _ in range(4)]
    assert [record.is_open for record in records] == [False, False, True, True]
    assert len(current_run.open_runs()) == 2


def test_the_oldest_ended_runs_leave_memory(book: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from chiplog.integrations.mlflow import runs

    monkeypatch.setattr(runs, "POINTS_MAX", 3)
    records = []
    for _ in range(3):
        records.append(book.create("0", "p", None))
        for step in range(2):
            records[-1].metrics.add("loss", step, step, 1.0)
        book.end(records[-1])
    book.create("0", "p", None)
    assert [book.find(record.run_id) is None for record in records] == [True, True, False]
