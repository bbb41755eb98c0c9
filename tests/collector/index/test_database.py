"""The database's file: what was written is loaded again, poison is passed, and rewriting it changes no view."""

import hashlib
import subprocess
import sys

import duckdb
import pytest

import chiplog_collector.index.database as database_module
from chiplog_collector.index.apply.write_batch import Batch
from chiplog_collector.index.database import Database, StaleDatabaseError
from chiplog_collector.index.fact_tables import Facts
from chiplog_collector.index.opening import open_index, rebuild_into
from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.sql import MIGRATION, ROLLUPS, rollups_sql, tables_sql
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.segment_format import list_segments
from tests.support.collector_log import LOG_ID, START_US, VIEWS, Rank, block_of, whole
from tests.support.index import Index, copy_of
from tests.support.marks import everyday
from tests.support.safeguard import proves
from tests.support.sample_log import everything, place_of
from tests.support.waiting import WAIT_S

TABLES = {
    9: "4f397593fcc3c192",
    10: "1edbd461ff2e8535",
    11: "ae3a3507fd69e236",
    12: "9446fcda4e4e6d54",
    13: "1a036d5e38b310be",
    14: "7e7cc8e78d02f090",
}  # migration -> digest of the columns of its tables
ROLLUP_TEXTS = {1: "d0e69d80340b2c11"}  # number -> digest of the words of their statements


def test_what_was_written_is_loaded_again(index: Index) -> None:
    index.take(*everything())
    state = index.follower._applier.state
    views = index.views()
    assert all(views[view] for view in VIEWS), [view for view in VIEWS if not views[view]]
    index.reopen()
    loaded = index.database.load()
    assert loaded.runs == state.runs
    assert loaded.producers == state.producers
    assert loaded.names == state.names
    assert loaded.have == state.have
    assert {k: sorted(v) for k, v in loaded.lost.items() if v} == {k: sorted(v) for k, v in state.lost.items() if v}
    assert {k: [p.uuid for p in v] for k, v in loaded.by_label.items()} == {
        k: [p.uuid for p in v] for k, v in state.by_label.items() if v
    }
    assert index.views() == views


@pytest.mark.parametrize(("table", "column"), [("producers", "sender"), ("runs", "notes")])
def test_dimensions_are_written_and_read_by_the_names_of_their_columns(index: Index, table: str, column: str) -> None:
    index.take(*everything())
    state = index.follower._applier.state
    for statement in (
        f"CREATE TABLE base.moved AS SELECT {column}, * EXCLUDE ({column}) FROM base.{table} LIMIT 0",
        f"DROP TABLE base.{table}",
        f"ALTER TABLE base.moved RENAME TO {table}",
    ):
        index.database.connection.execute(statement)
    batch = Batch(producers=set(state.producers_by_number), runs=set(state.runs_by_number))
    index.database.write(batch, state, index.database.next_number)
    loaded = index.database.load()
    assert loaded.runs == state.runs
    assert loaded.producers == state.producers


@pytest.mark.full
def test_a_database_that_is_opened_anew_after_every_record_is_the_same(index: Index, tmp_path) -> None:
    payloads = everything(n_steps=12)
    index.take(*payloads)
    other = Index(tmp_path / "other")
    for payload in payloads:
        other.take(payload)
        other.reopen()
    assert other.views() == index.views()
    other.close()


def test_a_rebuild_has_the_same_contents_in_every_view(index: Index, monkeypatch, tmp_path) -> None:
    """Applying is a function of the log's bytes: flushes of other sizes, one by one or all at once, change nothing."""
    for payload in everything():
        index.take(payload)
    place = paths_for_root(tmp_path / "place")
    place.collector.mkdir(parents=True)
    (place.collector / "log").symlink_to(index.directory / "log")
    rebuilt = rebuild_into(place, tmp_path / "rebuilt.duckdb", index.log.next_number, lambda number: None).database
    assert rebuilt.next_number == index.database.next_number
    rebuilt.close()
    assert copy_of(index, "rebuilt.duckdb") == index.views()


@pytest.mark.parametrize("where", ["take", "write"])
def test_a_poison_batch_is_set_aside_and_its_neighbours_are_kept(index: Index, monkeypatch, where) -> None:
    """Whatever error a record causes in the applier or in DuckDB: the position moves past it and a row reports it."""
    good, poison, later = Rank(0), Rank(66, "poison"), Rank(2)
    good.log(1, a=1.0)
    poison.say(EventKind.TEXT, 0, "key", "POISON")
    later.log(2, a=2.0)
    original = database_module.Database._insert_rows
    original_block = index.follower._applier.__class__._apply_block

    def refuse_rows(self, table, rows):
        if table == "texts" and any(row[-1] == "POISON" for row in rows):
            raise duckdb.ConversionException("cannot be written\nsecond line")
        original(self, table, rows)

    def refuse_block(self, record):
        if b"POISON" in bytes(record.payload):
            raise AssertionError("our own bug")
        original_block(self, record)

    if where == "write":
        monkeypatch.setattr(database_module.Database, "_insert_rows", refuse_rows)
    else:
        monkeypatch.setattr(index.follower._applier.__class__, "_apply_block", refuse_block)
    index.take(whole(good), whole(poison), whole(later))
    assert index.sql("SELECT label, step FROM metrics ORDER BY step") == [("rank0", 1), ("rank2", 2)]
    [(number, reason)] = index.sql("SELECT number, reason FROM base.quarantine")
    assert number == 2
    assert reason.startswith("record cannot be applied: ")
    assert "\n" not in reason
    assert index.sql("SELECT kind FROM events") == [("quarantined",)]
    index.reopen()
    assert index.database.next_number == index.log.next_number


def hostile_console() -> bytes:
    """Return a block with an event of kind 5, the number that records of kind QUARANTINE have."""
    rank = Rank(1)
    rank.say(EventKind.CONSOLE, 1, 1, b"bytes")
    return whole(rank)


def seqs_out_of_range() -> bytes:
    builder = BlockBuilder()
    builder.add(Rank(1).uuid, 1 << 60, Rank(1).events[0])
    return builder.build(START_US)


def newer_block() -> bytes:
    block = bytearray(whole(Rank(1)))
    block[4:6] = (2).to_bytes(2, "little")
    return bytes(block)


@proves(
    "lossless-quarantine-is-no-damage",
    "a quarantine without lost events does not count as damage after a restart",
    part="loses_events",
    new="kind IN (-1, 2, 5)",
)
@pytest.mark.parametrize(
    ("payload", "code", "loses_events"),
    [
        (hostile_console(), "event_rejected", False),
        (seqs_out_of_range(), "seq_out_of_range", False),
        (newer_block(), "newer_block", False),
        ((66, b"?"), "unknown_record", False),
        (b"garbage", "invalid_block", True),
        ((Kind.QUARANTINE, pack([b"S" * 16, "block of version 1 is newer", b"?"])), "invalid_delivery", True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whether_events_were_lost_with_what_is_set_aside_is_the_same_after_a_restart(
    index: Index, payload: object, code: str, loses_events: bool
) -> None:
    index.take(payload)
    assert index.sql("SELECT code FROM base.quarantine") == [(code,)]
    assert index.sql("SELECT body->>'code' FROM events WHERE kind = 'quarantined'") == [(code,)]
    assert index.follower._applier.state.damaged is loses_events
    index.reopen()
    assert index.database.load().damaged is loses_events


def test_a_disk_that_refuses_is_not_the_records_fault(index: Index, monkeypatch) -> None:
    rank = Rank(0)
    rank.log(1, a=1.0)

    def refuse(self, table, columns):
        raise duckdb.IOException("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Facts, "insert", refuse)
        with pytest.raises(duckdb.IOException):
            index.take(whole(rank))
    assert index.sql("SELECT count(*) FROM base.producers") == [(0,)], "all or nothing"
    index.follower.reload()
    index.follow()
    assert index.sql("SELECT step FROM metrics") == [(1,)]


def test_the_ledger_is_joined_when_it_grows_long(index: Index, monkeypatch) -> None:
    monkeypatch.setattr(database_module, "_LEDGER_ROWS_MAX", 20)
    rank = Rank(0)
    for step in range(200):
        rank.log(step, a=1.0)
    for first in range(0, 200, 2):
        index.take(block_of((rank, first, first + 1)))
    [(n_rows,)] = index.sql("SELECT count(*) FROM base.intervals")
    assert n_rows <= 21
    assert index.sql("SELECT produced, stored, pending FROM completeness") == [(200, 200, 0)]
    index.reopen()
    index.take(whole(rank))
    assert index.sql("SELECT count(*) FROM metrics") == [(200,)], "still nothing twice: 199 before, the last one now"
    assert index.sql("SELECT produced, stored FROM completeness") == [(201, 201)]


def test_nan_and_infinities_are_stored_as_what_they_are(index: Index) -> None:
    import struct

    rank = Rank(0)
    odd = [float("nan"), float("inf"), float("-inf"), 5e-324, -0.0]
    for step, value in enumerate(odd):
        rank.log(step, x=value, y=1.0)
    packed = struct.pack("<5d", *odd)
    rank.say(EventKind.PHASES, 0, pack(["p"]), packed[:8])
    rank.say(EventKind.HISTOGRAM, 0, "h", packed + packed[:8], packed)
    rank.events.append(pack([int(EventKind.METRICS), START_US, 9, pack(["z"]), packed[:8], "newer"]))  # row by row
    index.take(whole(rank))
    found = index.sql("SELECT value FROM metrics WHERE key = 'x' ORDER BY step")
    assert [repr(value) for (value,) in found] == ["nan", "inf", "-inf", "5e-324", "-0.0"]
    assert repr(index.sql("SELECT value FROM metrics WHERE key = 'z'")) == "[(nan,)]"
    assert repr(index.sql("SELECT seconds FROM phases")) == "[(nan,)]"
    assert repr(index.sql("SELECT counts FROM histograms")) == "[([nan, inf, -inf, 5e-324, -0.0],)]"


def test_what_is_not_known_stays_null(index: Index) -> None:
    rank = Rank(0)
    index.take(whole(rank))
    query = "SELECT ended_at, exit_code, exit_signal, reason, local_rank FROM labels"
    assert index.sql(query) == [(None,) * 5]
    assert index.sql("SELECT ended_at, exit_code, project, tags FROM runs") == [(None, None, None, [])]
    index.reopen()
    assert index.database.load().producers == index.follower._applier.state.producers


def test_times_beyond_what_duckdb_holds_are_clipped(index: Index) -> None:
    rank = Rank(0)
    for ts in (-(2**63), 2**63 - 1):
        rank.log(0, a=1.0)
        rank.say(EventKind.TEXT, 0, "k", "v", ts=ts)
        rank.say(EventKind.METRICS, 0, pack(["b"]), b"\0" * 8, ts=ts)
        rank.say(EventKind.STATE, {"state": "finished"}, ts=ts)
    index.take(whole(rank))
    assert index.sql("SELECT count(*) FROM texts WHERE isfinite(ts)") == [(2,)]
    assert index.sql("SELECT count(*) FROM metrics WHERE isfinite(ts)") == [(4,)]
    index.views()


def test_a_file_of_another_log_or_migration_is_not_used(index: Index, monkeypatch) -> None:
    index.database.close()
    with pytest.raises(StaleDatabaseError, match="another log"):
        Database(index.path, b"M" * 16)
    monkeypatch.setattr(database_module, "MIGRATION", database_module.MIGRATION + 1)
    with pytest.raises(StaleDatabaseError, match=r"migration \d+, not \d+"):
        Database(index.path, LOG_ID)
    monkeypatch.undo()
    Database(index.path, LOG_ID).close()


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def test_other_tables_have_another_migration() -> None:
    """A database of an older version lacks what is new: only a higher MIGRATION has it rebuilt."""
    with duckdb.connect() as connection:
        connection.execute(tables_sql())
        columns = connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE schema_name = 'base' "
            "ORDER BY table_name, column_index"
        ).fetchall()
    found = digest(columns)
    assert TABLES.get(MIGRATION) == found, f"add 1 to MIGRATION, and its number with {found!r} to TABLES"


def test_other_rollups_have_another_number() -> None:
    """A database with rollups of an older version computes them again: only a higher ROLLUPS causes that."""
    lines = [line.partition("--")[0].split() for line in rollups_sql().replace(str(ROLLUPS), "").splitlines()]
    found = digest([word for line in lines for word in line])
    assert ROLLUP_TEXTS.get(ROLLUPS) == found, f"add 1 to ROLLUPS, and its number with {found!r} to ROLLUP_TEXTS"


@pytest.mark.parametrize("kind", [kind for kind in EventKind if kind.spec.table], ids=lambda kind: kind.name)
def test_the_table_of_a_kind_has_the_columns_that_it_declares(index: Index, kind: EventKind) -> None:
    query = f"SELECT column_name, column_type FROM (DESCRIBE base.{kind.spec.table})"
    found = {
        name: column_type for name, column_type in index.sql(query) if name not in ("producer", "seq", "ts", "flush")
    }
    fields = dict(kind.spec.fields)
    if kind.spec.has_matrix:
        assert found.pop("key") == "INTEGER"
        assert found.pop("value") == "DOUBLE"
        fields = {name: field for name, field in fields.items() if name not in ("keys", "values")}
    assert found == {name: field.sql_type for name, field in fields.items()}


@pytest.mark.parametrize("damage", everyday(1, ["garbage", "another log"]))
def test_a_file_that_cannot_be_used_is_set_aside_and_made_anew(index: Index, damage) -> None:
    index.take(*everything())
    before = index.views()
    place = place_of(index)
    if damage == "garbage":
        place.index.write_bytes(b"no database" * 1000)
    else:
        place.index.unlink()
        Database(place.index, b"M" * 16).close()
    follower = open_index(place, lambda wait_s: False)
    assert follower.database.next_number == 0
    follower.database.close()
    assert len(list(place.collector.glob("index.duckdb.set-aside-*"))) == 1
    limit = int(list_segments(place.collector / "log")[0][0]) + 10_000
    rebuild_into(place, place.index, limit, lambda number: None).database.close()
    assert copy_of(index, "chiplog/collector/index.duckdb") == before


def test_a_second_process_on_the_file_is_an_io_error(index: Index) -> None:

    index.take(whole(Rank(0)))
    code = f"import duckdb; duckdb.connect({str(index.path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S)
    assert "IOException" in done.stderr
