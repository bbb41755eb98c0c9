"""`chiplog import`: a run comes into a collector, here and over TCP; bad input is one line, and nothing is sent."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from chiplog_cli.commands.keep import import_runs
from chiplog_cli.commands.keep.import_runs import import_
from chiplog_client.client import connect
from chiplog_client.transfer.exporter import export_run
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import paths_for_root
from tests.support.collector_log import Rank, whole
from tests.support.exported_run import SAVES, export_of_whole, make_place, rewrite, served
from tests.support.hosts import Centre, Host
from tests.support.node import end_daemons
from tests.support.safeguard import proves


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_of_whole(tmp_path_factory.mktemp("exports"))


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Centre]:
    """A collector with keys, empty at first."""
    centre = Centre(tmp_path_factory.mktemp("centre"))
    centre.keys("new", "collector")
    centre.start_collector()
    yield centre
    centre.stop()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path / f"h{time.time_ns()}")
    host.root.mkdir()
    host.key_directory.mkdir(mode=0o700)
    return host


def run(*arguments: object, **variables: str) -> Result:
    return CliRunner(env={"CHIPLOG_COLLECTOR": None, **variables}).invoke(import_, [str(word) for word in arguments])


def rows(root: Path, query: str) -> list[dict[str, Any]]:
    with connect(dir=root, start=False) as client:
        return client.sql(query).rows()


def test_a_run_with_its_files_comes_into_the_collector_of_a_directory(centre: Centre, exported: Path) -> None:
    done = run(exported, "--dir", centre.root)
    assert done.exit_code == 0, done.output
    assert done.stderr == f"run whole: 189 points, 5 files, delivered to {centre.place.collector_address}\n"
    query = "SELECT label, attempt, state, stored, lost FROM labels JOIN completeness USING (run_id, label, attempt)"
    expected = [("rank0", 0, 0), ("rank1", 0, 0), ("rank1", 1, 21)]
    found = rows(centre.root, f"{query} WHERE run_id = 'whole' ORDER BY label, attempt")
    assert [(row["label"], row["attempt"], row["lost"]) for row in found] == expected
    files = rows(centre.root, "SELECT path, sha256 FROM files WHERE run_id = 'whole' AND path = 'ckpt/last.pt'")
    with connect(dir=centre.root, start=False) as client:
        assert b"".join(client.read_file(files[0]["sha256"])) == SAVES[1][1]
    before = [rows(centre.root, f"FROM {view} ORDER BY ALL") for view in ("runs", "labels", "completeness", "config")]
    again = run(exported, "--dir", centre.root)
    assert (again.exit_code, again.stderr) == (0, f"{done.stderr.rstrip()}; it had all of its events before\n")
    after = [rows(centre.root, f"FROM {view} ORDER BY ALL") for view in ("runs", "labels", "completeness", "config")]
    assert after == before


@proves("rejected-import-reported", "an import of events that the index rejects fails", condition=False)
def test_rejected_events_fail_the_import_and_are_lost(centre: Centre, exported: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(exported, tmp_path / "changed")
    rewrite(changed, "summary", "SELECT * REPLACE ('no JSON' AS value) FROM '{table}' WHERE label = 'rank0'")
    done = run(changed, "--as", "changed", "--dir", centre.root)
    assert done.exit_code == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(
        "Error: run changed is incomplete: the collector rejected 1 of its events, the first because "
    )
    found = rows(centre.root, "SELECT * FROM completeness WHERE run_id = 'changed' AND label = 'rank0'")
    assert [(row["lost"], row["pending"], row["reasons"]) for row in found] == [
        (1, 0, "rejected: see quarantined in events")
    ]
    assert run(changed, "--as", "changed", "--dir", centre.root).exit_code == 1, "nor does it arrive with another try"


def test_events_that_were_rejected_before_the_export_are_imported_as_such(centre: Centre, tmp_path: Path) -> None:
    rank = Rank(77, "rank0", run_id="odd", rank=0)
    rank.say(EventKind.SUMMARY, {"best": "no JSON"})
    rank.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    (tmp_path / "place").mkdir()
    with served(make_place(tmp_path / "place", whole(rank))) as client:
        export_run(client, "odd", tmp_path / "odd")
        query = "SELECT produced, stored, lost, pending, reasons FROM completeness WHERE run_id = 'odd'"
        expected = client.sql(query).rows()
    assert [row["lost"] for row in expected] == [1]
    done = run(tmp_path / "odd", "--dir", centre.root)
    assert done.exit_code == 0, done.output
    assert rows(centre.root, query) == expected


@proves("unknown-rejections-reported", "an import that cannot ask for rejected events says so")
def test_an_import_without_a_readers_key_says_that_rejected_events_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path))
    blocks = cast(Any, SimpleNamespace(run_id="r", senders=[b"\1" * 16]))
    import_runs._check_rejected(None, "tcp://192.0.2.1:9", blocks)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("run r: whether the collector rejected some of its events is unknown: ") and "reader" in line


@pytest.mark.full
def test_a_run_comes_over_tcp_with_a_key_and_under_another_name(centre: Centre, host: Host, exported: Path) -> None:
    centre.admit(host, "agent", "--node", "node-a", "--node", "here")
    done = run(exported, "--as", "copy", "--url", centre.address, CHIPLOG_DIR=str(host.root), CHIPLOG_NODE="here")
    assert done.exit_code == 0, done.output
    unknown, delivered = done.stderr.splitlines()
    assert unknown.startswith("run copy: whether the collector rejected some of its events is unknown: ")
    assert delivered == f"run copy: 189 points, 5 files, delivered to {centre.address}"
    found = rows(
        centre.root, "SELECT count(*) AS n, count(DISTINCT label) AS labels FROM metrics WHERE run_id = 'copy'"
    )
    assert found == [{"n": 189, "labels": 2}]


@proves("refused-import-reported", "an import that the collector keeps without applying it fails", condition=False)
@pytest.mark.full
def test_a_key_that_does_not_cover_the_runs_nodes_fails_the_import(centre: Centre, host: Host, exported: Path) -> None:
    centre.admit(host, "agent", "--node", "here")
    done = run(exported, "--as", "alien", "--url", centre.address, CHIPLOG_DIR=str(host.root), CHIPLOG_NODE="here")
    assert done.exit_code == 1
    assert "events without applying them: the key of this host does not cover the run's nodes" in done.stderr
    assert rows(centre.root, "FROM runs WHERE run_id = 'alien'") == []


@pytest.mark.full
def test_a_collector_is_started_for_a_directory_without_one(exported: Path, tmp_path: Path) -> None:
    root = tmp_path / "fresh"
    try:
        done = run(exported, "--dir", root)
        assert done.exit_code == 0, done.output
        assert [row["run_id"] for row in rows(root, "FROM runs")] == ["whole"]
    finally:
        end_daemons(paths_for_root(root))


@proves("deleted-run-imported-again", "a run that was deleted can be imported again", new="pass")
@pytest.mark.full
def test_a_run_that_was_deleted_comes_back_with_an_import(exported: Path, tmp_path: Path) -> None:
    root = tmp_path / "fresh"
    try:
        assert run(exported, "--dir", root).exit_code == 0
        points = rows(root, "SELECT label, key, step, value::VARCHAR AS value FROM metrics ORDER BY ALL")
        with connect(dir=root, start=False) as client:
            client.delete_runs(["whole"], force=True)
            assert client.sql("SELECT count(*) AS n FROM metrics").rows() == [{"n": 0}]
        done = run(exported, "--dir", root)
        assert done.exit_code == 0 and "before" not in done.stderr, done.output
        assert rows(root, "SELECT label, key, step, value::VARCHAR AS value FROM metrics ORDER BY ALL") == points
    finally:
        end_daemons(paths_for_root(root))


@proves(
    "changed-source-refused",
    "what a source has gained since its import does not come in without its end",
    condition=False,
)
def test_a_source_comes_in_once_and_is_refused_when_it_has_changed(centre: Centre, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("step,loss,note\n1,0.5,hi\n2,nan,\n")
    told = f"run from-csv: 2 points, 0 files, delivered to {centre.place.collector_address}"
    arguments = [path, "--project", "p", "--as", "from-csv", "--dir", centre.root]
    assert [run(*arguments).stderr for _ in range(2)] == [f"{told}\n", f"{told}; it had all of its events before\n"]
    assert rows(centre.root, "SELECT project, name, state FROM runs WHERE run_id = 'from-csv'") == [
        {"project": "p", "name": "a", "state": "finished"}
    ]
    before = centre.accepted()
    path.write_text("step,loss,note\n1,0.5,hi\n2,nan,\n3,1,\n")
    changed = run(*arguments)
    assert changed.exit_code == 1
    assert changed.stderr.startswith(
        f"Error: {path}: run from-csv was imported before, and the source has changed since"
    )
    path.write_text("step,loss\n1,2\n3\n")
    assert run(path, exported_csv := tmp_path / "b.csv", "--dir", centre.root).exit_code == 2
    assert not exported_csv.exists() and centre.accepted() == before


@proves(
    "run-from-elsewhere-refused", "a run that something else recorded does not get each value twice", condition=False
)
def test_a_run_from_elsewhere_is_refused_before_anything_is_sent(
    centre: Centre, exported: Path, tmp_path: Path
) -> None:
    assert run(exported, "--dir", centre.root).exit_code == 0
    path = tmp_path / "metrics.csv"
    path.write_text("run,label,step,time,loss\nwhole,rank0,1,2026-01-01,0.5\n")
    before = centre.accepted()
    refused = run(path, "--dir", centre.root)
    assert (refused.exit_code, refused.stderr) == (
        1,
        f"Error: {path}: run whole is in the collector already, and not from this source; give this one another ID "
        "with --as ID\n",
    )
    assert centre.accepted() == before
    assert run(path, "--as", "whole-2", "--dir", centre.root).exit_code == 0


def test_another_spelling_of_a_path_is_the_same_source(centre: Centre, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "metrics.csv").write_text("run,label,step,time,loss\nspelled,main,1,2026-01-01,0.5\n")
    assert run(folder / "metrics.csv", "--dir", centre.root).exit_code == 0
    moved = shutil.copytree(folder, tmp_path / "moved", copy_function=shutil.copyfile)
    for path in (folder, moved, moved / "metrics.csv"):
        again = run(path, "--dir", centre.root)
        assert (again.exit_code, "it had all of its events before" in again.stderr) == (0, True), again.stderr
    (folder / "undated.csv").write_text("step,loss\n1,0.5\n")
    assert run(folder / "undated.csv", "--as", "undated", "--dir", centre.root).exit_code == 0
    (folder / "undated.csv").touch()
    assert "before" in run(folder / "undated.csv", "--as", "undated", "--dir", centre.root).stderr


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("step,other,loss\n1,5,0.25\n", []),
        ("step,other,loss\n1,5,0.5\n", ["--map", "step=other"]),
        ("step,other,loss\n1,5,0.5\n", ["--project", "q"]),
        ("step,other,gain\n1,5,0.5\n", []),
    ],
)
def test_a_changed_source_with_as_many_events_is_refused(
    centre: Centre, tmp_path: Path, content: str, options: list[str]
) -> None:
    path, run_id = tmp_path / "a.csv", f"same-{time.time_ns()}"
    path.write_text("step,other,loss\n1,5,0.5\n")
    assert run(path, "--as", run_id, "--dir", centre.root).exit_code == 0
    before = centre.accepted()
    path.write_text(content)
    changed = run(path, *options, "--as", run_id, "--dir", centre.root)
    assert (changed.exit_code, changed.stderr) == (
        1,
        f"Error: {path}: run {run_id} was imported before, and the source has changed since, or --map or --project; "
        f"chiplog rm {run_id}, then import it again, or give this one another ID with --as ID\n",
    )
    assert centre.accepted() == before
    assert rows(centre.root, f"FROM run_tags WHERE run_id = '{run_id}'") == []


def test_a_changed_run_does_not_keep_the_others_of_its_source_out(centre: Centre, tmp_path: Path) -> None:
    path = tmp_path / "store.csv"
    path.write_text("run,label,step,time,loss\nold,main,1,2026-01-01,0.5\n")
    assert run(path, "--dir", centre.root).exit_code == 0
    path.write_text("run,label,step,time,loss\nold,main,1,2026-01-01,0.25\nnew,main,1,2026-01-01,2\n")
    done = run(path, "--dir", centre.root)
    refused, delivered = done.stderr.splitlines()
    assert done.exit_code == 1 and delivered.startswith("run new: 1 point, 0 files, delivered to ")
    assert refused == (
        f"Error: {path}: run old was imported before, and the source has changed since, or --map or --project; "
        "chiplog rm old, then import it again"
    )
    assert rows(centre.root, "SELECT run_id, value FROM metrics WHERE run_id IN ('old', 'new') ORDER BY run_id") == [
        {"run_id": "new", "value": 2.0},
        {"run_id": "old", "value": 0.5},
    ]
    named = run(path, "--as", "x", "--dir", centre.root)
    assert (named.exit_code, named.stderr.splitlines()[-1]) == (2, f"Error: {path} has 2 runs; --as names one")


def test_a_directory_of_several_formats_names_those_that_are_left(centre: Centre, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,loss\n1,0.5\n")
    (tmp_path / "trainer_state.json").write_text('{"log_history": []}')
    done = run(tmp_path, "--dir", centre.root)
    named, delivered = done.stderr.splitlines()
    assert named == f"{tmp_path}: read as lightning; it looks like huggingface, too: --from reads it as that"
    assert ": 1 point, 0 files, delivered to " in delivered


def test_several_exports_are_checked_before_the_first_is_sent(centre: Centre, exported: Path, tmp_path: Path) -> None:
    before = centre.accepted()
    damaged = shutil.copytree(exported, tmp_path / "damaged")
    (damaged / "metrics.parquet").write_bytes(b"no longer")
    for arguments in ([exported, damaged], [damaged]):
        done = run(*arguments, "--dir", centre.root)
        assert done.exit_code == 2
        assert done.stderr.splitlines()[-1].startswith(
            f"Error: {damaged} cannot be imported: metrics.parquet is damaged"
        )
    content = json.loads((exported / "run.json").read_text())
    newer = shutil.copytree(exported, tmp_path / "newer")
    (newer / "run.json").write_text(json.dumps({**content, "version": 99}))
    assert run(newer, "--dir", centre.root).exit_code == 2
    assert centre.accepted() == before


@proves("bad-run-id-refused", "a command refuses a run ID that `init` would change", condition=False)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["{export}", "{export}", "--as", "x"],
            "--as names one run, and 2 directories are given; import each by itself",
        ),
        (["{export}", "--as", "x" * 129], "has 129 characters, over the limit of 128; give 'xxx"),
        (["{export}", "--as", "a\nb"], "run ID 'a\\nb' has control characters; give 'a_b'"),
        (["{export}", "--as", "../../evil"], "run ID '../../evil' has a slash; give '.._.._evil'"),
        (["{export}", "--as", " "], "run ID ' ' has no characters; give another one"),
        (["/nowhere"], "/nowhere does not exist; name an export of chiplog, or what another library wrote"),
        (["{export}/metrics.parquet"], "metrics.parquet is no export of chiplog, and looks like none of "),
        (["{export}/metrics.parquet", "--from", "chiplog"], "is no export of chiplog: name a directory with run.json"),
        (["{export}/run.json", "--from", "csv"], "run.json:1: no column of steps; name it: --map step=COLUMN"),
        (["/nowhere", "--from", "csv"], "/nowhere: No such file or directory; check the path, its disk, and TMPDIR"),
        (["{export}", "--map", "step=x"], "--map names columns of CSV files, and {export} is chiplog; leave it out"),
        (["{export}", "--map", "x"], "--map 'x' is not ROLE=COLUMN; roles are step, time, label, run, key, value"),
        (["{export}", "--map", "step=a", "--map", "step=b"], "--map names two columns for step: 'a' and 'b'; give one"),
        (["sqlite:///nope.db"], "sqlite:///nope.db does not exist; name an export of chiplog"),
        (["{export}", "--dir", "a", "--url", "tcp://x:1"], "--dir a and --url tcp://x:1 exclude each other"),
        (["{export}", "--url", "x"], "'x'"),
        (["{export}", "--url", "tcp://192.0.2.1:9"], "is on another host, which needs CURVE keys"),
    ],
)
def test_bad_input_is_one_line(exported: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(*(word.format(export=exported) for word in arguments), CHIPLOG_DIR=str(tmp_path))
    assert done.exit_code == 2
    assert message.replace("{export}", str(exported)) in done.stderr.splitlines()[-1]
    assert os.listdir(tmp_path) == []
