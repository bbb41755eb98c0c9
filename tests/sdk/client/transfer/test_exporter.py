"""An export holds what the views of its run show, and its saved files; it is complete or absent."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from chiplog_client.client import Client, QueryError, connect
from chiplog_client.transfer import exporter
from chiplog_client.transfer.export_format import PARQUET_FILES
from chiplog_client.transfer.exporter import export_run
from chiplog_schemas.paths import Paths
from chiplog_schemas.storage.content_files import content_path
from tests.support.exported_run import ABSENT, IMAGE, SAVES, both_runs, make_place, served, sha256_of
from tests.support.marks import everyday
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves

pytestmark = pytest.mark.xdist_group("exports")  # one worker makes them
# What the views show beside the columns of an export, or compute from its rows.
DERIVED = {
    "events": ("kind NOT IN ('config_drift', 'file_stored')", "run_id, label, attempt, seq, ts, kind, level, message")
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return make_place(tmp_path_factory.mktemp("place"), *both_runs())


@pytest.fixture(scope="module")
def client(place: Paths) -> Iterator[Client]:
    with served(place) as client:
        yield client


@pytest.fixture(scope="module", params=everyday(1, ["whole", "r"]))
def exported(request: pytest.FixtureRequest, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("exports") / "deep" / request.param
    done = export_run(client, request.param, target)
    assert done.path == target
    return target


def test_an_export_holds_the_rows_of_the_views(exported: Path, client: Client) -> None:
    run = json.loads((exported / "run.json").read_text())["run"]["run_id"]
    connection = duckdb.connect()
    for view in ("metrics", "texts", "histograms", "phases", "console", "events", "system"):
        where, selected = DERIVED.get(view, ("true", "*"))
        columns = client.sql(f"SELECT {selected} FROM {view} LIMIT 0").columns
        rows = client.sql(f"SELECT {selected} FROM {view} WHERE run_id = $run AND {where}", {"run": run}).tuples()
        assert rows, view
        query = f"SELECT {', '.join(columns)} FROM '{exported}/{view}.parquet'"
        assert sorted(map(repr, connection.execute(query).fetchall())) == sorted(map(repr, rows)), view


def test_each_file_has_the_columns_of_the_format_in_order(exported: Path) -> None:
    listed = json.loads((exported / "run.json").read_text())["tables"]
    found = sorted(path.name for path in exported.glob("*.parquet"))
    assert found == sorted(listed)
    for name in found:
        described = duckdb.sql(f"DESCRIBE FROM '{exported}/{name}'").fetchall()
        assert {column: kind for column, kind, *_ in described} == PARQUET_FILES[name.removesuffix(".parquet")]
        data = (exported / name).read_bytes()
        assert (listed[name]["bytes"], listed[name]["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        rows = duckdb.sql(f"SELECT count(*) FROM '{exported}/{name}'").fetchall()
        assert rows == [(listed[name]["rows"],)]
        [(codec,)] = duckdb.sql(f"SELECT DISTINCT compression FROM parquet_metadata('{exported}/{name}')").fetchall()
        assert codec == "ZSTD"


def test_rows_are_sorted_by_name_label_and_step(exported: Path) -> None:
    for name, key in (("metrics", "key"), ("phases", "phase"), ("texts", "key")):
        query = f"SELECT {key}, label, attempt, step, seq FROM '{exported}/{name}.parquet'"
        rows = duckdb.sql(query).fetchall()
        assert rows == sorted(rows)


def test_producers_have_their_stored_and_lost_ranges(exported: Path, client: Client) -> None:
    run = json.loads((exported / "run.json").read_text())["run"]["run_id"]
    rows = duckdb.sql(
        "SELECT sum(list_sum(list_transform(stored, lambda x: x.last_seq - x.first_seq + 1))), "
        "sum(coalesce(list_sum(list_transform(lost, lambda x: x.last_seq - x.first_seq + 1)), 0)), "
        f"bool_and(length(producer) = 32) FROM '{exported}/producers.parquet' WHERE role <> 'agent'"
    ).fetchall()
    # Events that the database rejected have arrived; completeness counts them as lost.
    rejected = "(SELECT count(*) FROM events WHERE run_id = $run AND kind = 'quarantined' AND label IS NOT NULL)"
    query = f"SELECT sum(stored) + {rejected}, sum(lost) - {rejected}, true FROM completeness WHERE run_id = $run"
    assert [tuple(map(int, row)) for row in rows] == [
        tuple(map(int, row)) for row in client.sql(query, {"run": run}).tuples()
    ]


def test_saved_files_come_under_their_paths_and_earlier_versions_by_their_digests(
    client: Client, tmp_path: Path
) -> None:
    done = export_run(client, "whole", tmp_path / "e")
    found = {
        str(p.relative_to(tmp_path / "e")): p.read_bytes()
        for p in (tmp_path / "e").rglob("*")
        if p.is_file() and p.suffix != ".parquet"
    }
    run = json.loads(found.pop("run.json"))
    digests = [hashlib.sha256(data).hexdigest() for _, data in SAVES]
    # `ckpt` and `ckpt/last.pt` were saved: one of them has no place.
    assert found == {
        f"contents/{sha256_of(IMAGE).hex()}": IMAGE,
        f"contents/{digests[0]}": b"earlier",
        f"contents/{digests[1]}": b"newest" * 1000,
        "files/ckpt": b"a file",
        "files/empty": b"",
    }
    assert (done.n_files, done.n_absent) == (5, 1)
    assert run["absent_contents"] == {ABSENT.hex(): "not arrived yet"}
    assert [file["path"] for file in run["files"]] == ["absent", "ckpt", "ckpt/last.pt", "empty"]
    assert run["config"] == {"lr": 0.2, "deep": {"a": [1, None]}}
    assert run["run"]["tags"] == ["t"]


@pytest.fixture
def other_place(tmp_path: Path) -> Paths:
    return make_place(tmp_path / "other")


@proves(
    "exported-file-verified",
    "a file that is damaged at the collector is not exported as if it were whole",
    condition=True,
)
@pytest.mark.full
def test_a_content_that_is_lost_or_damaged_is_left_out_and_named(other_place: Paths, tmp_path: Path) -> None:
    lost, damaged = (hashlib.sha256(SAVES[n][1]).digest() for n in (0, 1))
    content_path(other_place.files, lost).unlink()
    content_path(other_place.files, damaged).write_bytes(b"newest" * 999 + b"NEWEST")
    with served(other_place) as client:
        export_run(client, "whole", tmp_path / "e")
    absent = json.loads((tmp_path / "e" / "run.json").read_text())["absent_contents"]
    reasons = {lost.hex(): "lost by the collector", damaged.hex(): "damaged at the collector"}
    assert absent == {ABSENT.hex(): "not arrived yet", **reasons}
    assert [path.name for path in (tmp_path / "e" / "contents").iterdir()] == [sha256_of(IMAGE).hex()]
    assert sorted(path.name for path in (tmp_path / "e" / "files").iterdir()) == ["ckpt", "empty"]


@proves("exported-file-stays-below-target", "a path of a saved file never leads out of the export", condition=True)
def test_a_path_that_leads_elsewhere_or_is_taken_is_exported_by_its_digest(other_place: Paths, tmp_path: Path) -> None:
    digest = hashlib.sha256(SAVES[0][1]).hexdigest()
    with duckdb.connect(str(other_place.index)) as database:  # as if the index had not refused such paths
        database.execute("DELETE FROM base.files WHERE path LIKE 'ckpt%'")
        for path in ("../../../escaped", f"{'x' * 300}"):
            where = "label = 'rank0' AND role = 'rank'"
            RunBuilder(database).saved_file(path, 7, digest, seq=1, where=where)
    with served(other_place) as client:
        export_run(client, "whole", tmp_path / "out" / "e")
    assert (tmp_path / "out" / "e" / "contents" / digest).read_bytes() == b"earlier"
    assert list(tmp_path.rglob("escaped")) == []


@proves("failed-export-removed", "an export that fails leaves no part of a directory")
def test_an_export_that_fails_leaves_nothing(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> Iterator[bytes]:
        yield b"begun"
        raise QueryError("unreachable", "the collector has stopped answering")

    monkeypatch.setattr(client, "read_file", fail)
    with pytest.raises(QueryError):
        export_run(client, "whole", tmp_path / "e")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "e").mkdir()
    monkeypatch.undo()
    with pytest.raises(FileExistsError):
        export_run(client, "whole", tmp_path / "e")
    assert list(tmp_path.rglob("*")) == [tmp_path / "e"]


@pytest.mark.full
def test_rows_that_arrive_during_the_export_are_left_out(
    other_place: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(dir=other_place.root, start=False) as client:
        sql = client.sql

        def also_receive(query: str, *rest: object) -> object:
            result = sql(query, *rest)  # type: ignore[arg-type]
            if query == exporter._PRODUCERS:
                with duckdb.connect(str(other_place.index)) as database:
                    RunBuilder(database).metrics_of_all(7, steps=[777])
            return result

        monkeypatch.setattr(client, "sql", also_receive)
        export_run(client, "whole", tmp_path / "e")
    assert duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/e/metrics.parquet'").fetchall() == [(189,)]
    assert duckdb.sql(f"FROM '{tmp_path}/e/metrics.parquet' WHERE step = 777").fetchall() == []
