"""Descriptors that other code closes."""

import mmap
import os
from pathlib import Path

import pytest

from chiplog_schemas.process.descriptors import OwnedDescriptor, map_file
from chiplog_schemas.process.file_lock import Lock, LockHeldError


def test_a_number_that_belongs_to_another_file_is_not_closed(tmp_path: Path) -> None:
    owned = OwnedDescriptor(os.open(tmp_path / "a", os.O_CREAT | os.O_RDWR))
    other = os.open(tmp_path / "b", os.O_CREAT | os.O_RDWR)
    number = owned.number
    assert owned.is_ours
    owned.check()
    os.dup2(other, number)
    assert not owned.is_ours
    with pytest.raises(OSError, match="closed by other code"):
        owned.check()
    owned.close()
    os.write(number, b"still open")
    os.close(number)
    os.close(other)


def test_one_that_is_ours_is_closed_once(tmp_path: Path) -> None:
    owned = OwnedDescriptor(os.open(tmp_path / "a", os.O_CREAT | os.O_RDWR))
    number = owned.number
    owned.close()
    with pytest.raises(OSError):
        os.fstat(number)
    owned.close()


def test_a_lock_whose_descriptor_was_closed_is_taken_again(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    assert lock.is_ours
    os.close(lock._descriptor)
    assert not lock.is_ours
    pid = os.fork()
    if not pid:
        try:
            Lock(tmp_path / "lock").release()
        except LockHeldError:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "no process holds it"
    assert not lock.is_there
    lock.renew()
    assert lock.is_there
    assert lock.is_ours
    pid = os.fork()
    if not pid:
        try:
            Lock(tmp_path / "lock")
        except LockHeldError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    lock.release()


def test_a_mapping_shares_the_file_and_keeps_no_descriptor(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "a", os.O_CREAT | os.O_RDWR)
    os.ftruncate(descriptor, 2 * mmap.PAGESIZE)
    memory = map_file(descriptor, 2 * mmap.PAGESIZE)
    links = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    assert [int(link.name) for link in links if link.exists() and link.samefile(tmp_path / "a")] == [descriptor]
    os.close(descriptor)
    memory[5:9] = b"here"
    assert (tmp_path / "a").read_bytes()[5:9] == b"here"
    pid = os.fork()
    if not pid:
        memory[-1:] = b"!"
        os._exit(0)
    os.waitpid(pid, 0)
    assert memory[-1:] == b"!", "a fork shares it"
    view = memoryview(memory)[5:9]
    memory = None  # type: ignore[assignment]
    assert bytes(view) == b"here", "it lives as long as its views"
    view.release()
    assert str(tmp_path / "a") not in Path("/proc/self/maps").read_text()


def test_a_file_that_is_shorter_or_not_for_writing_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"short")
    with open(tmp_path / "a", "r+b") as file, pytest.raises(ValueError, match=r"shorter than|greater than"):
        map_file(file.fileno(), mmap.PAGESIZE)
    with open(tmp_path / "a", "rb") as file, pytest.raises(PermissionError):
        map_file(file.fileno(), 5)
