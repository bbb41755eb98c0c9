"""`chiplog get`: saved files come back byte for byte, through a collector's socket or from its directory."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

from chiplog_cli.commands.keep.get import get
from chiplog_client.client import connect
from chiplog_collector.query.service import QueryService, lock_down
from chiplog_schemas.paths import ensure_private_dir, paths_for_root
from chiplog_schemas.process.file_lock import Lock
from chiplog_schemas.storage.content_files import content_path
from tests.support import stored_artifacts
from tests.support.hand_written import hand_written
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves
from tests.support.stored_artifacts import FILES, NEWER

CONTENTS = {
    "model/last.pt": os.urandom(3_000_000),  # several parts
    "model/config.json": b"{}",
    "model/empty": b"",
    "notes.txt": b"it works",
    "models": b"another name with the same beginning",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one run, and what it saved."""
    root = tmp_path_factory.mktemp("root")
    with hand_written(root) as database:
        build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
        for run_id, days_ago in (("r1", 0), ("bare", 1), ("../../evil", 366), ("..", 366)):
            build.run(run_id, primary_label="a")
            build.label(run_id, "a", is_primary=True, started_s=-86400 * days_ago)
        for seq, (path, data) in enumerate(CONTENTS.items()):
            save(database, root, path, data, seq)
        save(database, root, "gone", b"not here", 90)
        save(database, root, "../../escape", b"out", 91)
        save(database, root, "damaged", b"as it was", 92)
        for run_id in ("../../evil", ".."):
            save(database, root, "sub/owned", b"hostile", 1, run_id)
    files = paths_for_root(root).files
    content_path(files, hashlib.sha256(b"not here").digest()).unlink()
    content_path(files, hashlib.sha256(b"as it was").digest()).write_bytes(b"as it is.")
    return root


def save(database: duckdb.DuckDBPyConnection, root: Path, path: str, data: bytes, seq: int, run_id: str = "r1") -> None:
    """Store a content and its row, as receiver and index do."""
    digest = hashlib.sha256(data)
    target = content_path(paths_for_root(root).files, digest.digest())
    ensure_private_dir(target.parent.parent)
    ensure_private_dir(target.parent)
    target.write_bytes(data)
    build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
    build.file(path, data, seq=seq, where=f"run_id = '{run_id}'")


@pytest.fixture(params=["directory", "collector"])
def source(request: pytest.FixtureRequest, root: Path) -> Iterator[Path]:
    """The same data without a collector, and behind the socket of one."""
    if request.param == "directory":
        yield root
        return
    where = paths_for_root(root)
    ensure_private_dir(where.run)
    lock = Lock(where.collector / "lock")
    with duckdb.connect(str(where.index)) as connection:
        lock_down(connection)
        service = QueryService(connection, where.query_address, files=where.files)
        service.start()
        yield root
        service.close()
    lock.release()


def run(root: Path, *arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(get, [*arguments, "--dir", str(root)])


def written(directory: Path) -> dict[str, bytes]:
    """Return all files below a directory by their paths."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_a_file_comes_back_under_its_name_or_the_one_that_is_given(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(source, "latest", "model/last.pt")
    assert (done.exit_code, done.stderr) == (0, "1 file, 3,000,000 bytes, written to last.pt\n")
    assert run(source, "r1", "notes.txt", "-o", "deep/copy.txt").exit_code == 0
    (tmp_path / "there").mkdir()
    assert run(source, "r1", "model/empty", "-o", "there").exit_code == 0
    expected = {"deep/copy.txt": CONTENTS["notes.txt"], "last.pt": CONTENTS["model/last.pt"], "there/empty": b""}
    assert written(tmp_path) == expected
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "last.pt").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_destination_that_ends_with_a_slash_becomes_a_directory(root: Path, tmp_path: Path) -> None:
    assert run(root, "r1", "model/last.pt", "-o", f"{tmp_path}/new/").exit_code == 0
    assert written(tmp_path) == {"new/last.pt": CONTENTS["model/last.pt"]}


def test_a_directory_comes_back_whole(root: Path, tmp_path: Path) -> None:
    done = run(root, "r1", "model/", "-o", str(tmp_path / "copy"))
    assert done.stderr.startswith("3 files, 3,000,002 bytes"), done.stderr
    names = ("last.pt", "config.json", "empty")
    assert written(tmp_path / "copy") == {name: CONTENTS[f"model/{name}"] for name in sorted(names)}


def test_what_exists_is_replaced_only_by_force(root: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"mine")
    refused = run(root, "r1", "model", "-o", str(tmp_path))
    assert refused.exit_code == 2
    assert (
        f"{tmp_path / 'config.json'} exists; name another place with -o, or replace it with --force" in refused.stderr
    )
    assert written(tmp_path) == {"config.json": b"mine"}
    assert run(root, "r1", "model", "-o", str(tmp_path), "--force").exit_code == 0
    assert written(tmp_path)["config.json"] == b"{}"


@proves(
    "unasked-replacement-needs-exact-id", "files are replaced by those of a run with an exact ID only", condition=False
)
@pytest.mark.parametrize("word", ["r", "latest"])
def test_what_may_mean_another_run_replaces_nothing(root: Path, tmp_path: Path, word: str) -> None:
    assert run(root, word, "model", "-o", str(tmp_path / "new"), "--force").exit_code == 0, "nothing is replaced"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_bytes(b"mine")
    refused = run(root, word, "model", "-o", str(tmp_path / "mine"), "--force")
    assert refused.exit_code == 2
    says = f"'{word}' means run 'r1' now; to replace {tmp_path / 'mine' / 'config.json'} give that ID"
    assert says in refused.stderr
    assert written(tmp_path / "mine") == {"config.json": b"mine"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["r1", "model/last.pd"], "did you mean 'model/last.pt'?"),
        (["r2", "model"], "run 'r2' is unknown; chiplog runs lists all"),
        (["bare"], "run 'bare' has no saved files; save some with run.save(path)"),
    ],
)
def test_an_unknown_name_is_one_line_that_suggests(root: Path, arguments: list[str], words: str) -> None:
    done = run(root, *arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_a_file_that_has_not_arrived_is_reported_and_nothing_is_left(source: Path, tmp_path: Path) -> None:
    done = run(source, "r1", "gone", "-o", str(tmp_path / "gone"))
    assert done.exit_code == 2 and "is not stored" in done.stderr and "Traceback" not in done.stderr
    assert written(tmp_path) == {}


@proves("got-file-verified", "a file that is damaged at the collector is not written", condition=False)
def test_a_damaged_file_is_not_written(root: Path, tmp_path: Path) -> None:
    done = run(root, "r1", "damaged", "-o", str(tmp_path / "damaged"))
    assert done.exit_code == 1 and "file 'damaged' is damaged at the collector" in done.stderr
    assert written(tmp_path) == {}


@proves("got-file-stays-below-target", "a saved path never leads out of the directory that was named", condition=False)
def test_a_path_that_leads_elsewhere_is_not_written(root: Path, tmp_path: Path) -> None:
    done = run(root, "r1", "-o", str(tmp_path / "a" / "b"))
    assert done.exit_code == 1 and "it must be relative" in done.stderr
    assert written(tmp_path) == {}


@proves(
    "run-id-stays-one-name",
    "the ID of a run never leads out of the current directory",
    part="directory_name(run)",
    new="run",
)
@pytest.mark.parametrize(("run_id", "name"), [("../../evil", "%2E.%2F..%2Fevil"), ("..", "%2E.")])
def test_a_run_id_with_parts_of_a_path_is_one_name_in_the_current_directory(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str, name: str
) -> None:
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    done = run(root, run_id)
    assert done.exit_code == 0, done.output
    assert written(tmp_path) == {f"a/b/{name}/sub/owned": b"hostile"}


@proves(
    "file-read-without-collector",
    "a file is read from the directory once an embedded collector has ended",
    condition=True,
)
def test_a_collector_that_ends_between_two_parts_costs_nothing(root: Path) -> None:
    where = paths_for_root(root)
    ensure_private_dir(where.run)
    lock = Lock(where.collector / "lock")
    with duckdb.connect(str(where.index)) as connection:
        lock_down(connection)
        service = QueryService(connection, where.query_address, files=where.files)
        service.start()
        with connect(dir=root, start=False) as client:
            data = CONTENTS["model/last.pt"]
            parts = client.read_file(hashlib.sha256(data).hexdigest())
            found = next(parts)
            assert client._connection is not None
            sent = client._connection._send

            def end_first(frames: list[bytes]) -> None:
                sent(frames)
                service.close()
                lock.release()

            client._connection._send = end_first  # type: ignore[method-assign]
            service._receive = lambda socket: None  # type: ignore[method-assign]  # it ends before it answers
            assert found + b"".join(parts) == data


def test_the_files_of_an_artifact_come_back_by_alias_number_or_project(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored_artifacts.fill(tmp_path / "root")
    for name, files in (("model:best", FILES), ("model", NEWER), ("team/gpt/model:v0", FILES)):
        done = run(tmp_path / "root", "--artifact", name, "-o", "out", "--force")
        assert done.exit_code == 0 and "written to out" in done.stderr, done.output
        assert written(tmp_path / "out") == files
    assert run(tmp_path / "root", "--artifact", "model").exit_code == 0
    assert written(tmp_path / "model:v1") == NEWER
    done = run(tmp_path / "root", "--artifact", "data")
    assert "1 file, 10 bytes, written to data:v0; 1 references left out" in done.stderr
    done = run(tmp_path / "root", "--artifact", "partial")
    assert "partial:v0 has no bytes of 'large.pt': it has 13 bytes" in done.stderr and done.exit_code == 0
    assert "1 file, 2 bytes, written to partial:v0" in done.stderr
    for arguments, code, message in (
        (["--artifact", "model"], 2, "exists; name another place with -o"),
        (["--artifact", "model:x"], 2, "artifact 'model' has no version 'x'"),
        (["--artifact", "modl"], 2, "artifact 'modl' is unknown"),
        (["--artifact", ":"], 1, "an artifact is named as"),
        (["--artifact", "evil"], 1, "it must be relative"),
        (["r1", "--artifact", "model"], 2, "exclude each other"),
        ([], 2, "or an artifact with --artifact NAME:ALIAS"),
    ):
        done = run(tmp_path / "root", *arguments)
        assert (done.exit_code, message in done.stderr) == (code, True), done.output
