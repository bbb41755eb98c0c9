"""A run that was exported and imported is the same run in every view, also after a second import and a rebuild."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chiplog_client.transfer import import_blocks
from chiplog_client.transfer.export_format import LATER_COLUMNS
from chiplog_client.transfer.export_reader import ExportReader
from chiplog_client.transfer.exporter import export_run
from chiplog_client.transfer.import_blocks import ImportBlocks, derived_uuid
from chiplog_collector.index.opening import rebuild_into
from chiplog_schemas.limits import RECORD_BYTES_MAX
from chiplog_schemas.model.block_decoder import decode_block
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import Paths
from chiplog_schemas.query.query_messages import disable_faulty_optimizers
from tests.support.collector_log import VIEWS, Rank, whole
from tests.support.exported_run import both_runs, make_place, rewrite, served
from tests.support.index import Index, copy_of
from tests.support.marks import everyday
from tests.support.safeguard import proves
from tests.support.sample_log import place_of

# Samples belong to a node: those that no label claims are not exported, and sharers are counted per collector.
PER_COLLECTOR = {"system_samples", "saved_views", "artifacts", "artifact_files"}
RUNS = ["whole", "r"]
pytestmark = pytest.mark.xdist_group("exports")  # one worker makes them


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return make_place(tmp_path_factory.mktemp("place"), *both_runs())


@pytest.fixture(scope="module")
def exports(place: Paths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("exports")
    with served(place) as client:
        for run in RUNS:
            export_run(client, run, target / run)
    return target


@pytest.fixture
def imported(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path)
    yield index
    index.close()


def blocks_of(export: Path, scratch: Path, run_id: str | None = None) -> list[bytes]:
    scratch.mkdir()
    with ExportReader(export, scratch) as reader:
        blocks = ImportBlocks(reader, run_id)
        made = list(blocks.blocks())
        assert blocks.n_done == blocks.n_rows > 0
    return made


def rows_of(connection: duckdb.DuckDBPyConnection, run: str, shown_as: str = "") -> dict[str, list[str]]:
    """Return the rows of a run in each view, with another run ID."""
    found = {}
    for view in set(VIEWS) - PER_COLLECTOR:
        columns = {row[0] for row in connection.execute(f"DESCRIBE {view}").fetchall()}
        without = ", ".join(sorted({"n_sharers", "mean"} & columns))  # the last digit of a sum depends on its order
        replaced = " REPLACE (? AS run_id)" if "run_id" in columns else ""
        query = f"SELECT *{f' EXCLUDE ({without})' if without else ''}{replaced} FROM {view}"
        values: list[Any] = [shown_as or run] if replaced else []
        if "run_id" in columns:
            query, values = f"{query} WHERE run_id = ?", [*values, run]
        found[view] = sorted(map(repr, connection.execute(query, values).fetchall()))
    return found


@pytest.mark.parametrize("run", everyday(1, RUNS))
def test_every_view_of_the_run_is_as_it_was(
    place: Paths, exports: Path, imported: Index, tmp_path: Path, run: str
) -> None:
    imported.take(*blocks_of(exports / run, tmp_path / "scratch"))
    assert imported.sql("FROM base.quarantine") == []
    with duckdb.connect(str(place.index), read_only=True) as original:
        disable_faulty_optimizers(original)
        expected = rows_of(original, run)
    found = rows_of(imported.database.connection, run)
    assert sum(map(bool, expected.values())) > 15
    assert {view for view in expected if found[view] != expected[view]} == set()


def test_an_export_of_an_earlier_version_lacks_the_columns_that_came_later(
    exports: Path, imported: Index, tmp_path: Path
) -> None:
    older = Path(shutil.copytree(exports / "whole", tmp_path / "older"))
    for table, columns in LATER_COLUMNS.items():
        rewrite(older, table, f"SELECT * EXCLUDE ({', '.join(columns)}) FROM '{{table}}'")
    imported.take(*blocks_of(older, tmp_path / "scratch"))
    assert imported.sql("FROM base.quarantine") == []
    found = imported.sql("SELECT DISTINCT name, summary, step_metric, is_hidden FROM metric_definitions ORDER BY name")
    assert found == [("l*", "min", "epoch", None), ("lr", None, None, None)]


@pytest.mark.full
def test_a_second_import_and_a_rebuild_change_nothing(exports: Path, imported: Index, tmp_path: Path) -> None:
    blocks = blocks_of(exports / "whole", tmp_path / "scratch")
    before = imported.take(*blocks).views()
    assert imported.take(*blocks_of(exports / "whole", tmp_path / "again")).views() == before
    assert imported.take(*reversed(blocks)).views() == before
    limit = imported.log.next_number
    moved = place_of(imported)
    rebuild_into(moved, tmp_path / "rebuilt.duckdb", limit, lambda _: None).database.close()
    assert copy_of(imported, "rebuilt.duckdb") == before


def test_an_import_that_broke_off_is_completed_by_the_next_one(exports: Path, imported: Index, tmp_path: Path) -> None:
    blocks = blocks_of(exports / "whole", tmp_path / "scratch")
    whole = Index(tmp_path / "other")
    whole.take(*blocks)
    expected = rows_of(whole.database.connection, "whole")
    whole.close()
    imported.take(*blocks[:-1])
    assert imported.sql("FROM runs") == imported.sql("FROM labels") == [], "not half a run"
    imported.take(*blocks)
    assert rows_of(imported.database.connection, "whole") == expected


@pytest.mark.full
def test_a_run_under_another_name_has_its_own_producers(exports: Path, imported: Index, tmp_path: Path) -> None:
    imported.take(*blocks_of(exports / "whole", tmp_path / "first"))
    before = rows_of(imported.database.connection, "whole")
    imported.take(*blocks_of(exports / "whole", tmp_path / "second", "copy"))
    assert imported.sql("SELECT run_id FROM runs ORDER BY run_id") == [("copy",), ("whole",)]
    assert rows_of(imported.database.connection, "whole") == before
    copy = rows_of(imported.database.connection, "copy", "whole")
    assert {view for view in before if before[view] != copy[view]} == set()
    once = imported.views()
    assert imported.take(*blocks_of(exports / "whole", tmp_path / "third", "copy")).views() == once


def test_versions_of_artifacts_have_the_numbers_of_their_digests_here_and_others_the_next(
    exports: Path, imported: Index, tmp_path: Path
) -> None:
    here = Rank(40, run_id="here", primary=True)
    for digest in (b"\1" * 32, b"\2" * 32):
        here.say(EventKind.ARTIFACT, "p", "model", "model", digest, 0, 0, "{}", "")
    imported.take(whole(here), *blocks_of(exports / "whole", tmp_path / "scratch"))
    assert imported.sql("SELECT version, digest[:2], aliases, made_by, used_by FROM artifacts ORDER BY version") == [
        (0, "01", ["best", "latest"], ["here", "whole"], ["whole"]),
        (1, "02", [], ["here"], []),
        (2, "00", [], ["whole"], ["whole"]),
    ]
    files = "SELECT path, sha256 IS NULL, reference, is_stored FROM artifact_files WHERE version = 2 ORDER BY path"
    assert imported.sql(files) == [("data", True, "s3://bucket/data", False), ("model.pt", False, None, True)]


def test_events_of_many_rows_are_divided(
    exports: Path, imported: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Index(tmp_path / "other")
    expected.take(*blocks_of(exports / "r", tmp_path / "scratch"))
    before = rows_of(expected.database.connection, "r")
    expected.close()
    for name, bound in (("PART_BYTES", 300), ("RANGES_PER_PART", 2), ("BATCH_BYTES_MAX", 2_000)):
        monkeypatch.setattr(import_blocks, name, bound)
    monkeypatch.setattr(import_blocks, "NAMED_PER_BLOCK", 2)
    blocks = blocks_of(exports / "r", tmp_path / "small")
    assert len(blocks) > 15
    imported.take(*blocks)
    assert rows_of(imported.database.connection, "r") == before


def test_blocks_are_those_of_an_import_and_fit_their_records(exports: Path, tmp_path: Path) -> None:
    blocks = [decode_block(block) for block in blocks_of(exports / "r", tmp_path / "scratch")]
    assert all(block.is_imported for block in blocks)
    assert all(len(block) < RECORD_BYTES_MAX for block in blocks_of(exports / "r", tmp_path / "again"))
    first = blocks[0]
    assert first.groups == []
    assert len(first.producers) == 6
    assert all(ranges == [] for _, ranges in first.producers)


@proves(
    "imported-events-by-seq",
    "an import does not fill the index with one range per event",
    part="heapq.merge(*sources, key=operator.itemgetter(0, 1))",
    new="itertools.chain(*sources)",
)
def test_events_come_by_producer_and_seq_so_that_ranges_are_few(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_blocks, "BATCH_BYTES_MAX", 2_000)
    *blocks, _ = map(decode_block, blocks_of(exports / "whole", tmp_path / "scratch"))
    assert len(blocks) > 5
    # Metrics and phases take turns. Only events that are not delivered interrupt a range.
    assert max(len(ranges) for block in blocks for _, ranges in block.producers) <= 3


def test_derived_producers_depend_on_each_part() -> None:
    found = {
        derived_uuid(b"x" * 16, "a"),
        derived_uuid(b"x" * 16, "b"),
        derived_uuid(b"y" * 16, "a"),
        derived_uuid("ab", "c"),
        derived_uuid("a", "bc"),
    }
    assert len(found) == 5
    assert derived_uuid(b"x" * 16, "a") == derived_uuid(b"x" * 16, "a")
    assert all(len(uuid) == 16 for uuid in found)
