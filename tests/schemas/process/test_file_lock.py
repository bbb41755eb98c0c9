"""The lock of a living process: held across processes, not by a forked child, gone with kill -9."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_schemas.process.file_lock import Lock, LockHeldError, kernel_lock_holder_pid, lock_holder_pid
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

HOLD = """
import sys
from pathlib import Path
from chiplog_schemas.process.file_lock import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    process.stdin.close()


def test_a_lock_that_another_process_holds_is_refused_and_names_it(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    with pytest.raises(LockHeldError, match=str(holder.pid)) as caught:
        Lock(tmp_path / "lock")
    assert caught.value.pid == holder.pid
    assert lock_holder_pid(tmp_path / "lock") == holder.pid


@proves(
    "kernel-names-lock-holder",
    "the holder of a lock is named from the first moment, never an earlier one",
    new="return read_pid(descriptor)",
)
@pytest.mark.parametrize("text", ["", "1\n\n", "4194304\n\n"])
def test_a_holder_is_named_before_it_has_written_its_pid(tmp_path: Path, text: str) -> None:
    """The file is empty, or has the PID of a process that is dead or that held the lock earlier."""
    path = tmp_path / "lock"
    path.write_text(text)
    code = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX)\n"
    code += "print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"\n"
        with pytest.raises(LockHeldError) as caught:
            Lock(path)
        assert (caught.value.pid, lock_holder_pid(path)) == (holder.pid, holder.pid)
        holder.stdin.close()
        holder.wait()
    assert lock_holder_pid(path) == 0


def test_kill_9_frees_the_lock(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert lock_holder_pid(tmp_path / "lock") == 0
    Lock(tmp_path / "lock", create=False).release()


def test_a_forked_child_does_not_hold_the_lock_and_its_release_leaves_the_parents_alone(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    child = os.fork()
    if child == 0:  # the child cannot get what its parent holds, before and after releasing its own copy
        status = 1
        try:
            if lock_holder_pid(tmp_path / "lock") == os.getppid():
                lock.release()
                status = 0 if lock_holder_pid(tmp_path / "lock") == os.getppid() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lock.release()


def test_a_lock_is_freed_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    hold, let_go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(let_go)
        os.read(hold, 1)
        os._exit(0)
    lock.release()
    done = subprocess.run(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], input="", capture_output=True, text=True, check=False
    )
    os.close(let_go)
    os.close(hold)
    os.waitpid(child, 0)
    assert done.stdout == "held\n", done.stderr


def test_an_absent_lock_file_has_no_holder_and_is_made_only_when_asked(tmp_path: Path) -> None:
    assert lock_holder_pid(tmp_path / "lock") == 0
    with pytest.raises(FileNotFoundError):
        Lock(tmp_path / "lock", create=False)
    Lock(tmp_path / "lock").release()
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_to_look_at_a_lock_of_this_process_does_not_release_it(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    assert (lock_holder_pid(lock.path), kernel_lock_holder_pid(lock.path)) == (os.getpid(), os.getpid())
    lock.path.unlink()
    lock.renew()
    assert (lock_holder_pid(lock.path), kernel_lock_holder_pid(lock.path)) == (os.getpid(), os.getpid())
    code = "from chiplog_schemas.process.file_lock import *; "
    code += f"print(lock_holder_pid(Path({str(lock.path)!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert int(done.stdout) == os.getpid(), "another process still finds it locked"
    lock.release()
    assert (lock_holder_pid(lock.path), kernel_lock_holder_pid(lock.path)) == (0, 0)


def test_release_twice_is_once(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    lock.release()
    lock.release()


def test_a_full_disk_does_not_keep_a_lock_from_being_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = Lock(tmp_path / "lock")
    lock.release()


def test_a_file_system_without_locks_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with pytest.raises(OSError, match="no locks") as caught:
        Lock(tmp_path / "lock")
    assert not isinstance(caught.value, LockHeldError)


@proves(
    "closed-lock-is-not-held",
    "a file that has the inode of an earlier lock is not held",
    part=" and id_of(os.fstat(descriptor)) == file",
)
@pytest.mark.parametrize("is_released", [True, False], ids=["released", "not released"])
def test_a_lock_that_other_code_closed_is_not_held_whichever_file_gets_its_inode(
    tmp_path: Path, is_released: bool
) -> None:
    """A file system gives the inode of a removed file to the next one; a rename gives it at once, on each of them."""
    lock = Lock(tmp_path / "lock")
    os.close(lock._descriptor)
    if is_released:
        lock.release()
    (tmp_path / "lock").rename(tmp_path / "of another process")
    assert lock_holder_pid(tmp_path / "of another process") == 0
    assert kernel_lock_holder_pid(tmp_path / "of another process") == 0


def test_a_lock_that_was_taken_again_is_not_released_by_a_look_at_its_holder(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    os.close(lock._descriptor)
    lock.renew()
    assert lock_holder_pid(tmp_path / "lock") == os.getpid()
    done = subprocess.run(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], input="", capture_output=True, text=True
    )
    assert "LockHeldError" in done.stderr, "no other process can take it"
    lock.release()
