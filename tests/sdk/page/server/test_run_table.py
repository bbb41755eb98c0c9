"""The table of runs: a page that has a version gets what changed since."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from chiplog_client.client import connect
from chiplog_page.server import run_table
from chiplog_page.server.run_table import RunTables
from chiplog_page.server.source import Source
from tests.support.collector_log import whole
from tests.support.compared_runs import fill_compared_runs
from tests.support.hand_written import hand_written
from tests.support.kept_log import finished, kept_log
from tests.support.run_builder import RunBuilder


def test_later_answers_have_what_changed_and_what_was_deleted(tmp_path: Path) -> None:
    runs = [finished(number, f"run-{number}") for number in range(1, 4)]
    with kept_log(tmp_path, [whole(run) for run in runs]) as place:
        asyncio.run(_read_changes(place.root))


async def _read_changes(root: Path) -> None:
    source = Source(dir=str(root), may_start=False)
    table = RunTables(source).table([], ["loss"])
    first = await table.read("")
    assert first["is_whole"] and {row[0] for row in first["rows"]} == {"run-1", "run-2", "run-3"}
    assert {row[first["columns"].index("summary.loss")] for row in first["rows"]} == {2.0}
    same = await table.read(first["version"])
    assert (same["rows"], same["deleted"], same["version"]) == ([], [], first["version"])
    with connect(dir=root, start=False) as client:
        client.edit_run("run-1", name="new")
        client.delete_runs(["run-2"], why="test")
        changed = await table.read(first["version"])
        assert ([row[0] for row in changed["rows"]], changed["deleted"]) == (["run-1"], ["run-2"])
        assert not changed["is_whole"]
    other = await table.read("other.1")
    assert other["is_whole"] and {row[0] for row in other["rows"]} == {"run-1", "run-3"} and other["deleted"] == []
    await source.close()


def test_where_runs_live_is_in_their_rows_and_its_age_beside_them(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_compared_runs(database)
        database.execute(
            "CREATE OR REPLACE VIEW run_places AS SELECT 'run-1' AS run_id, c AS collector, c = 'a' AS is_here,"
            " 1 AS n_labels, false AS is_silent, CASE c WHEN 'b' THEN TIMESTAMP '2026-01-02 03:04:05' END AS seen_at"
            " FROM (VALUES ('a'), ('b')) t(c)"
        )

    async def read() -> dict[str, Any]:
        source = Source(dir=str(tmp_path), may_start=False)
        found = await RunTables(source).table([], []).read("")
        await source.close()
        return found

    found = asyncio.run(read())
    place = found["columns"].index("collectors")
    assert {row[0]: row[place] for row in found["rows"] if row[place]} == {"run-1": ["here", "b"]}
    assert found["seen"] == {"b": datetime(2026, 1, 2, 3, 4, 5)}


def test_values_have_the_types_that_they_were_set_with(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_compared_runs(database)
        build = RunBuilder(database)
        first = "run_id = 'run-1' AND is_primary"
        build.config({"sha": "7e12345", "seed": "0012", "amp": True, "betas": [0.9, 0.999]}, where=first)
        build.summary({"worst": "nan"}, seq=1, where=first)
    asyncio.run(_read_values(tmp_path))


async def _read_values(root: Path) -> None:
    source = Source(dir=str(root), may_start=False)
    found = await RunTables(source).table(["lr", "sha", "seed", "amp", "betas"], ["loss", "worst"]).read("")
    [row] = [row for row in found["rows"] if row[0] == "run-1"]
    values = dict(zip(found["columns"], row, strict=True))
    assert [values[f"config.{key}"] for key in ("lr", "sha", "seed", "amp", "betas")] == [
        *(0.1, "7e12345", "0012", True, [0.9, 0.999])
    ]
    assert (values["summary.loss"], values["summary.worst"]) == (3, "nan")
    await source.close()


def test_tables_that_were_asked_for_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_table, "TABLES_MAX", 2)
    tables = RunTables(Source())
    first = tables.table(["a"], [])
    assert tables.table(["a"], []) is first
    tables.table(["b"], [])
    tables.table(["c"], [])
    assert tables.table(["a"], []) is not first
