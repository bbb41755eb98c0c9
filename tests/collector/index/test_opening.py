"""Opening the index: temporary failures are waited for, and damaged files are set aside, never overwritten."""

import subprocess
import sys

import duckdb

import chiplog_collector.index.database as database_module
from chiplog_collector.index.opening import open_index
from chiplog_collector.store.outbox import Outbox, Piece, Published
from tests.support.index import Index
from tests.support.index_file import never, put, set_aside_files
from tests.support.safeguard import proves
from tests.support.sample_log import everything


def test_a_full_disk_at_the_start_costs_a_healthy_file_nothing(index: Index, monkeypatch, caplog) -> None:
    index.take(*everything(n_steps=5))
    place = put(index)
    original, pauses = database_module.views_sql, []

    def refuse() -> str:
        if len(pauses) < 3:
            raise duckdb.IOException(f'IO Error: Could not write file "{place.index}": No space left on device')
        return original()

    monkeypatch.setattr(database_module, "views_sql", refuse)
    follower = open_index(place, lambda wait_s: pauses.append(wait_s) or False)
    assert follower.database.next_number > 0
    follower.database.close()
    assert not set_aside_files(place)
    assert pauses == sorted(pauses)
    assert len(pauses) == 3
    assert [record.getMessage().count("No space left") for record in caplog.records] == [1], "logged once"


def test_a_disk_that_is_full_when_the_file_is_made_leaves_nothing_to_set_aside(index: Index, monkeypatch) -> None:
    place = put(index)
    place.index.unlink()
    tries = []
    with monkeypatch.context() as patched:
        patched.setattr(database_module, "tables_sql", lambda: "SELECT error('full')")
        assert open_index(place, lambda wait_s: tries.append(1) or len(tries) == 3) is None
    assert not place.index.exists()
    follower = open_index(place, never)
    follower.database.close()
    assert not set_aside_files(place)


def test_flushes_end_where_pieces_do_that_wait_or_are_published(index: Index) -> None:
    index.take(*everything(n_steps=5))
    place = put(index)
    outbox = Outbox(place.store)
    outbox.set_published(Published("", "", 2, {"metrics": 2, "runs": 1}))
    outbox.add(lambda _: Piece("", 2, 4, "2026-11-28", {}))
    place.index.unlink()
    follower = open_index(place, never)
    assert follower._limits == [2, 3, 5]
    follower.database.close()


def test_waiting_for_the_file_ends_with_standard_input(index: Index) -> None:
    place = put(index)
    hold = f"import duckdb; c = duckdb.connect({str(place.index)!r}); print('held', flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        assert open_index(place, lambda wait_s: True) is None
    finally:
        holder.communicate(b"\n")
    assert not set_aside_files(place)


def test_a_directory_named_like_a_lock_keeps_no_damaged_file_in_use(tmp_path) -> None:
    inside = Index(tmp_path / "review-blocks")
    place = put(inside)
    place.index.write_bytes(b"no database" * 1000)
    follower = open_index(place, lambda wait_s: True)
    assert follower is not None
    follower.database.close()
    assert len(set_aside_files(place)) == 1


def test_what_was_set_aside_is_never_overwritten_and_the_newest_two_are_kept(index: Index) -> None:
    place = put(index)
    for content in (b"one" * 99, b"two" * 99, b"three" * 99):
        place.index.write_bytes(content)
        open_index(place, never).database.close()
    assert sorted(path.read_bytes()[:3] for path in set_aside_files(place)) == [b"thr", b"two"]


@proves("damaged-note-stops-no-index", "a damaged note of how far a store is published is one line", value="()")
def test_a_damaged_note_of_the_store_keeps_no_index_from_opening(index: Index, caplog) -> None:
    index.take(*everything(n_steps=5))
    place = put(index)
    place.store.mkdir()
    (place.store / "published.json").write_bytes(b"{")
    follower = open_index(place, never)
    assert follower is not None
    follower.database.close()
    assert "published.json is damaged; remove it and run chiplog rebuild" in caplog.text
