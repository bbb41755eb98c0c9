"""Files are chosen by what a query names, and no file with a row that it wants is left out."""

import math
import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chiplog_collector.query.cold_needs import Need, needs, read_relations
from chiplog_collector.query.sql_guard import QueryRejected, check_query
from chiplog_collector.spanning.cold_files import Name, Snapshot, choose
from chiplog_collector.store.delta_store import StoredFile
from chiplog_schemas.sql import LARGE, views_sql
from tests.support.index import Index
from tests.support.published_index import everything_published
from tests.support.random_queries import SLOW, VIEWS, QueryWriter
from tests.support.rounds import Rounds
from tests.support.safeguard import proves
from tests.support.sampled_nodes import Stay, collector, publish_samples, random_stays
from tests.support.store_reader import Reader

OWN, OTHER = "aa" * 16, "bb" * 16


def file(name: str, *, nulls: tuple[str, ...] = (), **ranges: tuple[Any, Any]) -> StoredFile:
    return StoredFile(name, 1000, 10, "2026-11-28", {"log": (OTHER, OTHER), **ranges}, frozenset(nulls))


def chosen(files: list[StoredFile], need: Any, names: Any, dropped: int = -1) -> list[str]:
    found = choose("metrics", [(need, names)], Snapshot({"metrics": files}, OWN), dropped)
    return [file.path for file in found.files]


def test_a_file_is_read_if_a_published_name_may_be_in_it() -> None:
    files = [
        file("a-c", run_id=("a", "c"), key=("acc", "loss")),
        file("d-f", run_id=("d", "f"), key=("acc", "loss")),
        file("unnamed", nulls=("run_id", "label"), run_id=("x", "z"), key=("acc", "loss")),
        file("no statistics"),
    ]
    assert chosen(files, Need(), None) == ["a-c", "d-f", "unnamed", "no statistics"]
    assert chosen(files, Need(frozenset("b")), {Name(OTHER, "b", "rank0", "p")}) == ["a-c", "no statistics"]
    assert chosen(files, Need(frozenset("b")), {Name(OWN, "b", "rank0", "p")}) == []
    late = {Name(OTHER, "b", "rank0", "p"), Name(OTHER, None, None, "p")}
    assert chosen(files, Need(frozenset("b")), late) == ["a-c", "unnamed", "no statistics"]
    assert chosen(files, Need(keys=frozenset({"zeta"})), None) == ["no statistics"]
    assert chosen(files, Need(frozenset("q")), set()) == []


def test_rows_that_the_index_has_are_read_there_alone() -> None:
    own = [file("old", log=(OWN, OWN), number=(5, 9)), file("new", log=(OWN, OWN), number=(10, 20))]
    assert chosen(own, Need(), None) == []
    assert chosen(own, Need(), None, dropped=9) == ["old"]
    mixed = file("of two logs", log=(OWN, OTHER), number=(10, 20))
    assert chosen([mixed], Need(), None) == ["of two logs"]


@proves("rows-of-renamed-run-read", "a query reads rows that were published before their run or label was known")
def test_names_of_all_needs_bound_the_rows() -> None:
    files = [file("a-c", run_id=("a", "c"), key=("acc", "loss"))]
    needs: list[Any] = [(Need(frozenset("a"), keys=frozenset({"loss"})), {Name(OTHER, "a", "r", "p")})]
    found = choose("metrics", needs, Snapshot({"metrics": files}, OWN), -1)
    assert (found.run_from, found.run_to, found.key_from, found.key_to) == ("a", "a", "loss", "loss")
    needs.append((Need(frozenset("c")), {Name(OTHER, "c", "r", "p")}))
    found = choose("metrics", needs, Snapshot({"metrics": files}, OWN), -1)
    assert (found.run_from, found.run_to, found.key_from) == ("a", "c", None)
    needs.append((Need(frozenset("b")), {Name(OTHER, None, "r", "p")}))
    assert choose("metrics", needs, Snapshot({"metrics": files}, OWN), -1).run_from is None


def test_a_producer_bounds_files_and_rows() -> None:
    files = [file("a-f", producer=("a", "f")), file("g-k", producer=("g", "k")), file("no statistics")]
    names = {Name(OTHER, "r", "rank0", "b"), Name(OTHER, "r", "rank1", "d")}
    found = choose("metrics", [(Need(frozenset("r")), names)], Snapshot({"metrics": files}, OWN), -1)
    assert [each.path for each in found.files] == ["a-f", "no statistics"]
    assert (found.producer_from, found.producer_to) == ("b", "d")


def test_samples_are_chosen_by_node_and_time() -> None:
    def of(name: str, producer: str, first_s: int, last_s: int) -> StoredFile:
        times = [datetime.fromtimestamp(at, UTC) for at in (first_s, last_s)]
        return file(name, nulls=("run_id", "label"), producer=(producer, producer), ts=(times[0], times[1]))

    files = [of(f"{producer}{10 * n}", producer, 10 * n, 10 * n + 9) for producer in "ab" for n in range(1, 5)]
    files.append(file("no statistics", nulls=("run_id", "label")))
    names = {Name(OTHER, None, None, "a", 19, 20), Name(OTHER, None, None, "b", 39.5, math.inf)}
    found = choose("system", [(Need(frozenset("r")), names)], Snapshot({"system": files}, OWN), -1)
    assert [each.path for each in found.files] == ["a10", "a20", "b40", "no statistics"]
    assert (found.run_from, found.producer_from, found.producer_to) == (None, "a", "b")


def test_files_without_a_row_of_the_index_are_known() -> None:
    dropped, half = file("dropped", log=(OWN, OWN), number=(5, 9)), file("half", log=(OWN, OWN), number=(5, 10))
    mixed, other = file("of two logs", log=(OWN, OTHER), number=(5, 9)), file("of another log")
    for files, has_left in (([dropped, other], True), ([dropped, half], False), ([mixed], False)):
        found = choose("metrics", [(Need(), None)], Snapshot({"metrics": files}, OWN), 9)
        assert (found.files, found.has_left) == (files, has_left)


NEEDS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "run": ("SELECT * FROM metrics WHERE run_id = 'r'", {"metrics": [Need(frozenset("r"))]}),
    "label": (
        "SELECT * FROM metrics WHERE run_id = 'r' AND label = 'worker1'",
        {"metrics": [Need(frozenset("r"), frozenset({"worker1"}))]},
    ),
    "key": ("SELECT * FROM metrics WHERE key = 'loss'", {"metrics": [Need(keys=frozenset({"loss"}))]}),
    "console": ("SELECT * FROM console WHERE run_id = 'r'", {"console": [Need(frozenset("r"))]}),
    "none": ("SELECT * FROM runs", {}),
}


@pytest.mark.parametrize("named", NEEDS)
def test_a_query_with_its_files_alone_has_all_of_its_rows(published: tuple[Index, Reader], named: str) -> None:
    index, reader = published
    query, needs = NEEDS[named]
    expected = sorted(map(repr, index.sql(query)))
    assert expected
    assert sorted(map(repr, reader.sql(query, needs))) == expected


@proves("dropped-rows-are-read", "rows that have left the database are missed by no query")
def test_a_query_waits_for_the_files_of_rows_that_have_moved(published: tuple[Index, Reader], tmp_path: Path) -> None:
    _, reader = published
    reader.connection.execute("CREATE OR REPLACE TABLE base.dropped AS SELECT 7::BIGINT AS flush")
    try:
        with pytest.raises(QueryRejected, match="rows that the query reads are in the store alone"):
            reader.sql("FROM metrics")
    finally:
        reader.connection.execute("DELETE FROM base.dropped")


def test_a_query_that_would_read_too_much_names_what_to_add(published: tuple[Index, Reader]) -> None:
    _, reader = published
    cold = reader.store.cold
    cold._gb_max = 1e-6
    try:
        with pytest.raises(QueryRejected, match=r"add a condition on run_id.*CHIPLOG_COLD_GB"):
            reader.sql("FROM metrics")
    finally:
        cold._gb_max = 10


def test_a_missing_file_is_named_and_the_rest_answers(tmp_path: Path) -> None:
    index, store = everything_published(tmp_path)
    reader = Reader(store.url, tmp_path)
    for path in (tmp_path / "lake" / "metrics").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(Exception, match=r"metrics/day=.*\.parquet"):
        reader.sql("FROM metrics")
    assert len(reader.sql("FROM runs", {})) == len(index.sql("FROM runs"))
    reader.close()
    index.close()


@proves("files-of-last-query-not-opened", "a query opens no file of the one before, which may have been removed")
def test_files_of_the_last_query_may_be_removed(tmp_path: Path) -> None:
    index, store = everything_published(tmp_path)
    reader = Reader(store.url, tmp_path)
    assert reader.sql("FROM metrics WHERE run_id = 'r'")
    for path in (tmp_path / "lake" / "metrics").rglob("*.parquet"):
        path.unlink()
    reader.connection.execute("SET GLOBAL parquet_metadata_cache = false")
    assert reader.sql("FROM metrics WHERE run_id = 'r' AND run_id = 's'", {}) == []
    reader.close()
    index.close()


@proves("choice-of-older-rows-forgotten", "files are chosen by the names of now", condition=False)
def test_files_are_chosen_again_after_a_flush(tmp_path: Path) -> None:
    index, store = everything_published(tmp_path)
    reader = Reader(store.url, tmp_path, index.database.connection, index.log_id.hex())
    index.database.drop_facts(reader.store.cold.snapshot.until)
    query, needed = (
        "SELECT key, step FROM metrics WHERE label = 'new'",
        {"metrics": [Need(frozenset("r"), frozenset({"new"}))]},
    )
    before = reader.sql("SELECT key, step FROM metrics WHERE label = 'worker1'")
    assert before
    assert reader.sql(query, needed) == []
    execute = index.database.connection.execute  # as a flush does that gives a label another name
    execute("UPDATE base.identified SET label = 'new' WHERE label = 'worker1'")
    execute("UPDATE base.position SET next_number = next_number + 1")
    assert sorted(reader.sql(query, needed)) == sorted(before)
    reader.close()
    index.close()


def test_a_reader_alone_waits_for_its_first_look(tmp_path: Path) -> None:
    reader = Reader(f"file://{tmp_path}/none", tmp_path)
    reader.store.cold.seen.clear()
    reader.store.cold.trouble = "no such bucket"
    opened = reader.store.cold.opened(reader.cursor, {}, time.monotonic() + 0.01)
    with pytest.raises(QueryRejected, match="cannot be read: no such bucket"), opened:
        pass
    reader.store.cold.seen.set()
    with reader.store.cold.opened(reader.cursor, {}, time.monotonic() + 1):
        assert reader.cursor.execute("FROM runs").fetchall() == []
    assert set(LARGE) == {"metrics", "phases", "system", "texts", "histograms", "console"}
    reader.close()


def test_random_queries_have_the_same_rows_with_all_files(published: tuple[Index, Reader], rounds: Rounds) -> None:
    _, reader = published
    views = [view for view in (*VIEWS, *SLOW) if not view.startswith("base.")]
    described = {view: reader.sql(f"SELECT column_name, column_type FROM (DESCRIBE {view})") for view in views}
    columns = {
        view: [name for name, kind in found if (name, kind) != ("key", "INTEGER")] for view, found in described.items()
    }
    names = {
        "run_id": ("r", "none"),
        "label": ("rank0", "worker1", "rank2"),  # one was published under its first name
        "key": ("loss", "only/rank0", "weights"),
        "phase": ("data", "step"),
        "name": ("hw.power", "hw.util"),
    }
    relations = read_relations(reader.cursor, views_sql())

    def rows(sql: str, params: Any, needed: Mapping[str, Any]) -> list[str]:
        with reader.store.cold.chosen(reader.cursor, needed):
            return sorted(map(repr, reader.cursor.execute(sql, params).fetchall()))

    for seed in rounds(60):
        query = QueryWriter(seed, columns, names).write()
        try:
            needed = needs(check_query(query.sql, reader.cursor), query.params, relations)
            whole = rows(query.sql, query.params, {table: [Need()] for table in LARGE})
        except duckdb.Error:
            rounds.count("refused")
            continue
        assert rows(query.sql, query.params, needed) == whole, (seed, query.sql, query.params, needed)
        rounds.count("with rows", bool(whole))
    assert rounds.counts["with rows"] > rounds.n_rounds / 4


# By run: where and when it was, in days; and of how many of the nine files of nodes and days the rows are.
STAYS = {
    "noon": ([Stay("noon", "rank0", "node0", 1.2, 1.4)], 1),
    "open": ([Stay("open", "rank0", "node2", 1.5)], 2),
    "wide": ([Stay("wide", f"rank{n}", f"node{n}", 0.5, 0.9, gpu=1) for n in range(3)], 3),
    "moved": ([Stay("moved", "rank0", "node0", 0.1, 0.2), Stay("moved", "rank0", "node2", 2.1, 2.2, restart=1)], 2),
    "edge": ([Stay("edge", "rank0", "node1", 0.5, 1.0)], 2),  # the last sample is the first one of a file
    "late": ([Stay("late", "rank0", "node1", 0.6, 0.8, late=1)], 1),
}


def test_samples_of_a_run_are_read_from_files_of_its_nodes_and_time(tmp_path: Path, rounds: Rounds) -> None:
    for seed in rounds(1):
        directory = tmp_path / str(seed)
        fixed = [stay for stays, _ in STAYS.values() for stay in stays]
        url = publish_samples(directory, fixed + random_stays(random.Random(seed), 12))
        index = collector(directory, 0)
        (directory / "own").mkdir()
        for reader in (
            Reader(url, directory),
            Reader(url, directory / "own", index.database.connection, index.log_id.hex()),
        ):
            if reader.connection is index.database.connection:
                index.database.drop_facts(reader.store.cold.snapshot.until)
            samples = reader.sql("FROM system")
            labels = {row[:2] for row in samples}
            assert {run_id for run_id, _ in labels} > STAYS.keys()
            for run_id, label in labels | {(run_id, None) for run_id, _ in labels}:
                need = Need(frozenset([run_id]), frozenset([label]) if label else None)
                with reader.store.cold.chosen(reader.cursor, {"system": [need]}):
                    [(n_files,)] = reader.cursor.execute("SELECT len(getvariable('cold_system').files)").fetchall()
                    found = reader.cursor.execute("FROM system").fetchall()
                wanted = [row for row in samples if row[0] == run_id and label in (None, row[1])]
                assert sorted(row for row in found if row[0] == run_id and label in (None, row[1])) == sorted(wanted)
                if label is None and run_id in STAYS:
                    assert n_files == STAYS[run_id][1], (seed, run_id)
                rounds.count("questions")
            reader.close()
        index.close()


@proves(
    "unseen-store-is-not-empty",
    "rows of other collectors are not missed while the store cannot be read",
    condition=False,
)
def test_rows_of_others_are_refused_until_the_store_is_seen(published: tuple[Index, Reader]) -> None:
    _, reader = published
    cold = reader.store.cold
    seen, cold.snapshot = cold.snapshot, Snapshot({}, cold.snapshot.log)
    try:
        with pytest.raises(QueryRejected, match="reads rows of other collectors"):
            reader.sql("FROM metrics")
        assert reader.sql("FROM metrics WHERE run_id = 'x'", {"metrics": [Need(frozenset("x"))]}) == []
    finally:
        cold.snapshot = seen
