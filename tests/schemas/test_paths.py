"""Places: one answer for daemons and SDK, short enough for a socket, and on a disk of this node."""

import os
import stat
from pathlib import Path

import pytest

from chiplog_schemas import paths as module
from chiplog_schemas.paths import (
    LOCAL_DIR,
    SOCKET_PATH_BYTES_MAX,
    check_root,
    ensure_private_dir,
    paths_for_root,
    resolve_root,
)
from tests.support.safeguard import proves
from tests.support.tools import ROOT, needs


def test_everything_lies_under_a_short_chiplog_dir(tmp_path: Path) -> None:
    place = paths_for_root(Path("/tmp/short"))
    assert place.local == place.root == Path("/tmp/short")
    assert place.journals == Path("/tmp/short/journals")
    assert place.agent == Path("/tmp/short/agent")
    assert place.index == Path("/tmp/short/collector/index.duckdb")
    assert place.agent_address == "ipc:///tmp/short/run/agent.sock"
    assert place.collector_address == "ipc:///tmp/short/run/collector.sock"
    assert place.query_address == "ipc:///tmp/short/run/query.sock"


def test_a_long_path_moves_the_sockets_alone() -> None:
    root = Path("/tmp") / ("long" * 40)
    place = paths_for_root(root)
    assert place.journals == root / "journals"
    assert place.collector == root / "collector"
    for address in (place.agent_address, place.collector_address, place.query_address):
        assert len(address.removeprefix("ipc://").encode()) <= SOCKET_PATH_BYTES_MAX
    assert paths_for_root(root) == place
    assert paths_for_root(root / "other").run != place.run


@pytest.mark.parametrize("length", range(60, 110))
def test_no_path_length_makes_a_socket_path_too_long(length: int) -> None:
    place = paths_for_root(Path("/" + "x" * length))
    for address in (place.agent_address, place.collector_address, place.query_address):
        assert len(address.removeprefix("ipc://").encode()) <= SOCKET_PATH_BYTES_MAX


def on(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "file_system_type", lambda path: kind)


@proves("unknown-file-system-not-local", "a file system that several nodes may share has no journals", value="False")
@pytest.mark.parametrize("kind", ["nfs4", "fuse", "fuse.juicefs", "wekafs", "9p", "virtiofs", "fuseblk", ""])
def test_a_file_system_that_is_not_known_to_be_local_keeps_the_collector_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(kind, monkeypatch)
    place = paths_for_root(tmp_path, {})
    assert place.collector == tmp_path / "collector"
    substitute = Path(f"/var/tmp/chiplog-{os.getuid()}")
    assert place.local.parent == substitute
    assert {place.journals.parent, place.agent.parent, place.run.parent, place.outbox.parent} == {place.local}
    assert place.may_be_shared and place.former == (tmp_path,), "where an earlier version had them"


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs"])
def test_a_file_system_that_is_known_to_be_local_has_everything(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(kind, monkeypatch)
    place = paths_for_root(tmp_path, {})
    assert place.local == place.root == tmp_path
    assert not place.may_be_shared


def test_the_variable_chooses_a_directory_or_declares_the_disk_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("fuse.juicefs", monkeypatch)
    scratch = paths_for_root(tmp_path, {LOCAL_DIR: "/scratch"})
    assert scratch.local.parent == Path(f"/scratch/chiplog-{os.getuid()}")
    assert scratch.may_be_shared and tmp_path in scratch.former
    assert paths_for_root(tmp_path / "other", {LOCAL_DIR: "/scratch"}).local != scratch.local
    declared = paths_for_root(tmp_path, {LOCAL_DIR: "same"})
    assert declared.local == tmp_path and not declared.may_be_shared
    on("ext4", monkeypatch)
    assert paths_for_root(tmp_path, {LOCAL_DIR: "/scratch"}).local == scratch.local, "what a user says wins"


def test_a_relative_local_directory_is_one_warning_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    on("ext4", monkeypatch)
    for _ in range(2):
        assert paths_for_root(tmp_path, {LOCAL_DIR: "scratch"}).local == tmp_path
    assert caplog.messages == [
        "chiplog: CHIPLOG_LOCAL_DIR is 'scratch', neither an absolute path nor 'same'; it is not used"
    ]


def test_chiplog_dir_is_the_argument_else_the_variable_else_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    assert resolve_root("/a", {"CHIPLOG_DIR": "/b"}) == Path("/a")
    assert resolve_root(None, {"CHIPLOG_DIR": "/b/../c"}) == Path("/c")
    assert resolve_root(None, {}) == Path("/home/alice/.chiplog")
    assert resolve_root("rel", {}) == Path.cwd() / "rel"


def test_without_a_home_directory_it_is_a_private_one_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_entry(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    monkeypatch.setattr(module, "SUBSTITUTE_PREFIX", f"{tmp_path}/chiplog-")
    monkeypatch.setattr(module, "_has_warned_homeless", False)
    home = tmp_path / f"chiplog-{os.getuid()}" / "home"
    own = home / ".chiplog"
    assert resolve_root(None, {}) == own
    assert resolve_root(None, {"CHIPLOG_DIR": "~/runs"}) == home / "runs"
    assert resolve_root(None, {"CHIPLOG_DIR": "~nobody_of_that_name/x"}) == home / "x"
    assert resolve_root(None, {"CHIPLOG_DIR": "/a"}) == Path("/a")
    [line] = [record.getMessage() for record in caplog.records]
    assert line == (f"chiplog: no home directory is known for ~/.chiplog; {own} is used; set HOME or CHIPLOG_DIR")
    ensure_private_dir(own / "journals")
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    home.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="is writable by others"):
        ensure_private_dir(own / "journals")


def test_directories_are_private_from_the_top_down(tmp_path: Path) -> None:
    ensure_private_dir(tmp_path / "a" / "b" / "c")
    ensure_private_dir(tmp_path / "a" / "b" / "c")
    for part in ("a", "a/b", "a/b/c"):
        assert stat.S_IMODE((tmp_path / part).stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720, 0o777])
def test_a_directory_that_others_can_write_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "a"
    directory.mkdir()
    os.chmod(directory, mode)
    for refuse in (ensure_private_dir, lambda path: check_root(paths_for_root(path))):
        with pytest.raises(PermissionError, match=f"{directory} is writable by others; chmod go-w it"):
            refuse(directory)
    os.chmod(directory, 0o755)
    ensure_private_dir(directory)
    check_root(paths_for_root(directory))
    check_root(paths_for_root(tmp_path / "not there yet"))


@needs(ROOT)
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to uid 65534"):
        ensure_private_dir(tmp_path)


@needs(ROOT)
def test_what_lies_in_a_directory_that_somebody_else_made_for_us_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SUBSTITUTE_PREFIX", f"{tmp_path}/chiplog-")
    theirs = tmp_path / "chiplog-0"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to uid 65534"):
        ensure_private_dir(theirs / "hash" / "journals")
