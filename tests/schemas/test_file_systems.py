"""Which file systems count as this node's own: a short list, and nothing that can be either."""

import errno
import io
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from chiplog_schemas import file_systems
from chiplog_schemas.file_systems import LOCAL_FILE_SYSTEMS, VOLATILE_FILE_SYSTEMS, file_system_type
from tests.support.safeguard import proves


def test_what_can_be_shared_is_not_local() -> None:
    either = {"nfs4", "lustre", "fuse", "fuseblk", "fuse.juicefs", "wekafs", "9p", "virtiofs", "autofs", "ocfs2", ""}
    assert not either & LOCAL_FILE_SYSTEMS
    assert {"ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs"} <= LOCAL_FILE_SYSTEMS
    assert VOLATILE_FILE_SYSTEMS < LOCAL_FILE_SYSTEMS


@pytest.mark.skipif(not Path("/proc/self/mounts").exists(), reason="no list of mounts")
def test_the_file_system_of_a_link_is_that_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    assert file_system_type(tmp_path / "link" / "not made yet") == "proc"
    assert file_system_type(Path("/proc/1")) == "proc"
    assert file_system_type(tmp_path) != "proc"


def test_a_mount_point_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    table = r"""/dev/vda1 / ext4 rw 0 0
node1:/a /a\040b\011c nfs4 rw 0 0
node1:/b /back\134slash nfs4 rw 0 0
node1:/c /new\012line\043 nfs4 rw 0 0
"""
    monkeypatch.setattr(file_systems, "_read_mounts", lambda: table)
    for path in ("/a b\tc", "/back\\slash/x", "/new\nline#"):
        assert file_system_type(Path(path)) == "nfs4", path
    assert file_system_type(Path("/back")) == "ext4"


@proves(
    "local-without-descriptors",
    "a process without descriptors keeps its journals where the agent looks for them",
    part=" or _mounts_at_import",
)
@pytest.mark.skipif(not Path("/proc/self/mounts").exists(), reason="no list of mounts")
def test_without_descriptors_the_file_systems_are_those_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most local ones have no device: tmpfs, overlay, btrfs and zfs."""

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    paths = [Path("/proc"), Path("/dev"), tmp_path, Path("/var/tmp")]
    kinds = list(map(file_system_type, paths))
    assert all(kinds)
    monkeypatch.setattr(file_systems, "open", refuse, raising=False)
    assert list(map(file_system_type, paths)) == kinds


@pytest.mark.parametrize("mounts", [None, "proc /proc proc rw 0 0\n"], ids=["no /proc", "in a chroot"])
def test_without_a_mount_a_disk_is_local_and_a_file_system_without_a_device_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounts: str | None
) -> None:
    def open_(*arguments: object, **named: object) -> io.StringIO:
        if mounts is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return io.StringIO(mounts)

    def stat(path: Path) -> SimpleNamespace:
        return SimpleNamespace(st_dev=device)

    device = os.makedev(254, 0)
    monkeypatch.setattr(file_systems, "_mounts_at_import", "")
    monkeypatch.setattr(file_systems, "open", open_, raising=False)
    monkeypatch.setattr(file_systems, "os", SimpleNamespace(path=os.path, major=os.major, stat=stat))
    assert file_system_type(tmp_path) in LOCAL_FILE_SYSTEMS
    device = os.makedev(0, 40)
    assert file_system_type(tmp_path) not in LOCAL_FILE_SYSTEMS
