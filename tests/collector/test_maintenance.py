"""Rewriting the database's file: it changes no view, sorts facts, and keeps to a limit of memory."""

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from chiplog_collector import maintenance
from chiplog_collector.cli import compact, rebuild
from chiplog_collector.index.cleaning.hot_days import HotDays
from chiplog_collector.index.cleaning.log_cleaner import Removal, clean_segment
from chiplog_collector.index.database import Database
from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.outbox import Outbox, Published
from chiplog_collector.store.piece_cutter import PieceCutter
from chiplog_collector.store.publisher import Publisher
from chiplog_schemas.limits import MIB
from chiplog_schemas.storage.segment_format import list_segments
from tests.support.collector_log import LOG_ID, START_US, contents_of
from tests.support.days import DAY_US, take_on
from tests.support.index import Index, copy_of
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves
from tests.support.sample_log import everything, place_of

COMPACTED_ROWS = 3_000_000


def test_rebuild_and_compact_leave_every_view_as_it_was(index: Index) -> None:
    index.take(*everything())
    before = index.views()
    place = place_of(index)
    for command in (compact, rebuild, compact):
        done = CliRunner().invoke(command, ["--dir", str(place.root)])
        assert done.exit_code == 0, done.output
        assert len(done.output.splitlines()) == 1
        assert copy_of(index, "chiplog/collector/index.duckdb") == before
    left = sorted(path.name for path in place.collector.iterdir() if not path.name.startswith("owner-"))
    assert left == ["host", "index.duckdb", "index.lock", "lock", "log"]
    database = Database(place.index, LOG_ID)
    assert database.load().names
    assert database.next_number > 0, "a compacted file continues at its position"
    database.close()


def test_compaction_sorts_facts_so_that_a_series_lies_together(index: Index) -> None:
    index.take(*everything())
    place = place_of(index)
    maintenance.compact(place)
    connection = duckdb.connect(str(place.index), read_only=True)
    rows = connection.execute("SELECT key, producer, step FROM base.metrics").fetchall()
    connection.close()
    assert rows == sorted(rows)


@proves("compaction-memory-bounded", "compaction keeps to a limit of memory")
@pytest.mark.full
def test_compaction_keeps_to_the_memory_that_queries_may_take(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.take(*everything())
    place = place_of(index)
    code = (
        "import sys; from pathlib import Path; from chiplog_collector import maintenance; "
        "from chiplog_schemas.paths import paths_for_root; status = Path('/proc/self/status'); "
        "peak = lambda: int(status.read_text().partition('VmHWM:')[2].split()[0]) * 1024; before = peak(); "
        "maintenance.compact(paths_for_root(Path(sys.argv[1]))); print(peak() - before)"
    )
    with duckdb.connect(str(place.index)) as connection:
        row = "SELECT i // 20 % 80, i % 20, i // 1600, i, make_timestamp(i), hash(i) / 1e9"
        RunBuilder(connection).select("metrics", f"{row} FROM range({COMPACTED_ROWS}) t(i)")
    monkeypatch.setenv("CHIPLOG_QUERY_MEMORY_BYTES", str(64 * MIB))
    grown = int(
        subprocess.run([sys.executable, "-c", code, str(place.root)], stdout=subprocess.PIPE, check=True).stdout
    )
    assert grown < 2.5 * 64 * MIB, f"{grown // MIB} MiB; without a limit about 240 MiB"
    with duckdb.connect(str(place.index), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM base.metrics WHERE seq >= 0").fetchall()[0][0] >= COMPACTED_ROWS
    assert sorted(path.name for path in place.collector.iterdir()) == ["index.duckdb", "log"], "nothing spilled is left"


@proves(
    "diverged-log-stays-unpublished", "a log that is another one than the store has stays unpublished after a rebuild"
)
@pytest.mark.parametrize(("ends", "is_refused"), [([1, 3], False), ([1, 2], True), ([1, 999], True)])
def test_a_rebuild_accepts_a_store_that_has_a_part_of_this_log_and_no_other(
    index: Index, ends: list[int], is_refused: bool
) -> None:
    """Records 1 and 3 are receipts: a piece can end there. Record 2 is a block, and 999 is not in the log."""
    index.take(*everything()[:4])
    place = place_of(index)
    outbox = Outbox(place.store)
    positions = dict(zip(("metrics", "collectors"), ends, strict=True))
    outbox.set_published(Published(LOG_ID.hex(), "s3://lake", ends[1], positions, is_foreign=True))
    line = maintenance.rebuild(place)
    published = outbox.published()
    assert published is not None
    assert published.is_foreign == is_refused
    assert ("s3://lake has other records of this log" in line) == is_refused


@proves("unconfirmed-records-are-others", "records that came after the store was last asked pass for none of its own")
@pytest.mark.parametrize(("first", "is_refused"), [(4, False), (3, True)])
def test_a_rebuild_refuses_a_store_with_numbers_that_were_given_here_later(
    index: Index, first: int, is_refused: bool
) -> None:
    index.take(*everything()[:4])
    place = place_of(index)
    outbox = Outbox(place.store)
    outbox.set_published(Published(LOG_ID.hex(), "s3://lake", 3, {"collectors": 3}, is_foreign=True))
    outbox.note_unconfirmed(first)
    line = maintenance.rebuild(place)
    published = outbox.published()
    assert published is not None
    assert published.is_foreign == is_refused
    assert ("s3://lake has other records of this log" in line) == is_refused


ROLLED_UP = ("runs", "labels", "completeness", "rank_progress", "run_summary", "summary", "phase_times", "run_sizes")


def publish_days(index: Index, lake: Path) -> DeltaStore:
    """Log a history of several days, and publish each day; then drop the first ones."""
    url, outbox, payloads = f"file://{lake}", Outbox(index.directory / "store"), everything()[:-1]
    store = DeltaStore(url, LOG_ID.hex())
    publisher = Publisher(store, outbox, LOG_ID.hex(), None)
    publisher.begin()
    index.log._segment_bytes = 4096
    for day in range(4):
        for payload in payloads[day * len(payloads) // 4 : (day + 1) * len(payloads) // 4]:
            take_on(index, day, payload)
        cutter = PieceCutter(index.database.connection, LOG_ID, outbox, url)
        cutter.start()
        cutter.close()
        while publisher.publish_next():
            pass
    HotDays(index.database, outbox, url, 2).turn(0.0, START_US + 4 * DAY_US)
    return store


def trim(index: Index) -> None:
    removal = Removal(frozenset(), -1, published=index.database.dropped)
    freed = sum(clean_segment(path, removal) for _, path in list_segments(index.directory / "log")[:-1])
    assert freed > 0


def contents(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    found = {view: contents_of(lambda query: connection.execute(query).fetchall(), view) for view in ROLLED_UP}
    for table, source in (("metrics", "base.metrics"), ("phases", "base.phases"), ("system", "base.system")):
        rows = f"(FROM {source} UNION ALL FROM {source}_recent)"
        query = f"SELECT producer, name, seq, ts, value FROM {rows} JOIN base.names n ON n.id = key"
        found[table] = sorted(map(repr, connection.execute(query).fetchall()))
    for table in ("texts", "histograms", "console", "intervals", "dropped", "receipt_days"):
        columns = {
            "intervals": "DISTINCT producer, unnest(range(first_seq, last_seq + 1))",
            "receipt_days": "day, after",
        }.get(table, "*")
        columns = "* EXCLUDE (flush, key)" if table in ("texts", "histograms") else columns
        columns = "* EXCLUDE (flush)" if table == "console" else columns
        found[table] = sorted(map(repr, connection.execute(f"SELECT {columns} FROM base.{table}").fetchall()))
    return found


def test_a_rebuild_from_a_trimmed_log_and_its_store_gives_the_same_answers(index: Index, tmp_path: Path) -> None:
    publish_days(index, tmp_path / "lake")
    assert index.database.dropped > 0
    before = contents(index.database.connection)
    trim(index)
    place = place_of(index)
    (index.directory / "store").rename(place.store)
    done = CliRunner().invoke(rebuild, ["--dir", str(place.root)])
    assert done.exit_code == 0, done.output
    with duckdb.connect(str(place.index)) as connection:
        found = contents(connection)
    assert found.keys() == before.keys()
    for name, rows in before.items():
        assert found[name] == rows, name


def test_a_rebuild_of_a_trimmed_log_needs_its_store(index: Index, tmp_path: Path) -> None:
    publish_days(index, tmp_path / "lake")
    trim(index)
    place = place_of(index)
    line = maintenance.rebuild(place)
    assert "its first days are in a store alone: start the collector with --store" in line
    (index.directory / "store").rename(place.store)
    before = place.index.read_bytes()
    (tmp_path / "lake" / "metric_series" / "_delta_log" / f"{0:020d}.json").write_bytes(b"{")
    with pytest.raises(maintenance.MaintenanceError, match="has facts that left the log"):
        maintenance.rebuild(place)
    assert place.index.read_bytes() == before
