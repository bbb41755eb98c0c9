"""The journal of a run: on disk where that is possible, else in memory, with a warning that names the remedy."""

from pathlib import Path

import pytest

from chiplog.journal.factory import open_journal
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import paths_for_root
from tests.support.journals import read_events

INFO = {"role": "rank", "run_id": "r", "label": "rank0", "started_at": 5}


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_journal_begins_with_the_identity_of_its_producer(tmp_path: Path, mode: str) -> None:
    warnings: list[str] = []
    places = paths_for_root(tmp_path / "chiplog")
    journal, is_on_disk = open_journal(places, mode, Limits(), INFO, 5, warnings.append)
    [event] = read_events(places.local / "offline" if mode == "offline" else places.journals)
    assert (event.kind, event.fields["identity"]["run_id"]) == (EventKind.IDENTITY, "r")
    assert (is_on_disk, warnings) == (True, [])
    journal.close(remove=True)


def test_without_a_directory_events_are_kept_in_memory_and_one_warning_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "chiplog").write_text("a file")
    warnings: list[str] = []
    places = paths_for_root(tmp_path / "chiplog")
    journal, is_on_disk = open_journal(places, "online", Limits(), INFO, 5, warnings.append)
    assert not is_on_disk
    [warning] = warnings
    assert str(tmp_path) in warning and "kept in memory only" in warning and "set dir= or CHIPLOG_DIR" in warning
    assert journal.next_seq == 2, "the identity, and a notice that the journal is in memory"
    journal.append(b"event")
    assert journal.next_seq == 3
    journal.close(remove=True)
