"""When the index checkpoints, with DuckDB as it is."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

import chiplog_collector.index.cleaning.checkpoints as checkpoints_module
from chiplog_collector.index.cleaning.checkpoints import (
    CHECKPOINT_INTERVAL_S,
    CLEAN_WAIT_S,
    RETRY_INTERVAL_S,
    WAL_BYTES_MAX,
    Checkpoints,
)
from chiplog_collector.index.database import Database
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves


class World:
    """A database whose writer replaces a row in each commit, readers, and a clock."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(checkpoints_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.database = Database(directory / "index.duckdb", bytes(16))
        self.readers: dict[duckdb.DuckDBPyConnection, float] = {}
        self.n_wal_bytes = 0
        self.error: Exception | None = None
        self.checkpoints = Checkpoints(
            self.run, lambda: min(self.readers.values(), default=math.inf), lambda: self.n_wal_bytes
        )
        self.n_runs = 0

    def run(self) -> None:
        self.n_runs += 1
        if self.error is not None:
            raise self.error
        self.database.checkpoint()

    def write(self, n: int = 100) -> None:
        for _ in range(n):
            self.database.connection.execute("BEGIN; DELETE FROM base.position")
            RunBuilder(self.database.connection).select("position", "VALUES (3, ''::BLOB, 1, 0, 0)")
            self.database.connection.execute("COMMIT")
        self.now += 0.001
        self.checkpoints.written(self.now)

    def open_reader(self) -> duckdb.DuckDBPyConnection:
        self.now += 0.001
        cursor = self.database.connection.cursor()
        self.readers[cursor] = self.now
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        assert cursor.execute("SELECT count(*) FROM base.position").fetchall() == [(1,)]
        return cursor

    def close_reader(self, cursor: duckdb.DuckDBPyConnection) -> None:
        assert cursor.execute("SELECT count(*) FROM base.position").fetchall() == [(1,)], "its snapshot"
        cursor.execute("ROLLBACK")
        del self.readers[cursor]

    def pass_s(self, seconds: float) -> None:
        self.now += seconds
        self.checkpoints.turn(self.now)

    def n_kept(self) -> int:
        """Return how many versions of the row the file holds."""
        query = (
            "SELECT max(n) FROM (SELECT sum(count) AS n FROM pragma_storage_info('base.position') GROUP BY column_path)"
        )
        return int(self.database.connection.execute(query).fetchall()[0][0])

    def n_row_groups(self) -> int:
        query = "SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('base.position')"
        return int(self.database.connection.execute(query).fetchall()[0][0])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(tmp_path, monkeypatch)
    yield world
    world.database.close()


def test_a_checkpoint_runs_on_a_timer_and_only_after_a_commit(world: World) -> None:
    world.pass_s(CHECKPOINT_INTERVAL_S + 1)
    assert world.n_runs == 0
    world.write()
    world.pass_s(0)
    assert world.n_runs == 1
    world.write()
    world.pass_s(CHECKPOINT_INTERVAL_S - 1)
    assert world.n_runs == 1
    world.pass_s(1)
    assert world.n_runs == world.checkpoints.n_clean == 2


@proves(
    "deleted-rows-freed",
    "deleted rows are freed although queries run all the time",
    part="(is_cleaning or is_due)",
    new="is_due",
)
def test_deleted_rows_are_freed_at_the_first_clean_moment(world: World) -> None:
    reader = world.open_reader()
    for _ in range(5):
        world.write()
        world.pass_s(CHECKPOINT_INTERVAL_S)
    assert (world.n_runs, world.checkpoints.n_clean) == (5, 0)
    assert world.n_kept() > 400, "DuckDB keeps deleted rows for this reader; if it no longer does, remove this"
    world.write(1)
    younger = world.open_reader()
    world.close_reader(reader)
    world.pass_s(0.1)
    assert (world.n_runs, world.checkpoints.n_clean) == (6, 1)
    assert world.n_kept() <= 1, "with a reader that began after the last commit"
    world.close_reader(younger)
    world.pass_s(0.1)
    assert world.n_runs == 6


@proves(
    "writer-pauses-for-checkpoint",
    "the writer pauses for a clean moment when none comes by chance",
    part="now - self._unclean_since >= CLEAN_WAIT_S or",
)
@pytest.mark.full
def test_without_a_clean_moment_the_writer_pauses_until_the_readers_have_ended(world: World) -> None:
    n_held = n_row_groups = 0
    reader = world.open_reader()
    n_seconds = 8 * CLEAN_WAIT_S
    for _ in range(int(n_seconds / 10)):  # at any time a query runs that began before the last commit
        if not world.checkpoints.holds_writer(world.now):
            n_row_groups = max(n_row_groups, world.n_row_groups())  # DuckDB counts this as a commit: before another
            world.write(2)
        else:
            n_held += 1
        world.pass_s(5)
        younger = world.open_reader()
        world.pass_s(5)
        world.close_reader(reader)
        reader = younger
    assert world.checkpoints.n_clean >= 5, "now and then, and not for each checkpoint"
    assert n_held <= 2 * world.checkpoints.n_clean
    assert world.n_runs > 0.8 * n_seconds / CHECKPOINT_INTERVAL_S
    assert n_row_groups <= CLEAN_WAIT_S / CHECKPOINT_INTERVAL_S + 3, "what a checkpoint leaves is bounded over hours"
    world.close_reader(reader)


@proves(
    "wal-bounded",
    "the write-ahead log is bounded while checkpoints are refused",
    value="now - self._unclean_since >= CLEAN_WAIT_S",
)
def test_a_refused_checkpoint_is_counted_and_repeated_and_the_write_ahead_log_bounded(world: World, caplog) -> None:
    reader = world.open_reader()
    world.database.connection.execute("UPDATE base.position SET next_number = 5")  # what the writer does not do
    world.checkpoints.written(world.now)
    world.pass_s(CHECKPOINT_INTERVAL_S)
    assert (world.n_runs, world.checkpoints.n_refused) == (1, 1)
    world.pass_s(RETRY_INTERVAL_S)
    assert (world.n_runs, world.checkpoints.n_refused) == (2, 2)
    assert caplog.text.count("checkpoint refused while a query runs") == 1
    world.n_wal_bytes = WAL_BYTES_MAX - 1
    assert not world.checkpoints.holds_writer(world.now)
    world.n_wal_bytes = WAL_BYTES_MAX
    assert world.checkpoints.holds_writer(world.now), "nothing is committed until the query has ended"
    world.close_reader(reader)
    world.pass_s(0)
    assert (world.n_runs, world.checkpoints.n_clean) == (3, 1)
    assert not world.checkpoints.holds_writer(world.now)


@pytest.mark.parametrize("text", ["TransactionContext Error: Failed to commit: Could not fsync", "Cannot CHECKPOINT"])
def test_a_refusal_that_no_reader_explains_is_raised(world: World, text: str) -> None:
    world.write()
    world.error = duckdb.TransactionException(text)
    with pytest.raises(duckdb.TransactionException):
        world.pass_s(CHECKPOINT_INTERVAL_S)
