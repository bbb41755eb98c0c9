"""A process in place of a daemon: it holds a lock, and listens at a socket if it is given one."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CODE = """
import signal, socket, sys, time
from pathlib import Path
from chiplog_schemas.process.file_lock import Lock
path, listens_at, note, pause_s, ignores = sys.argv[1:]
if ignores:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if listens_at:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(listens_at)
    listener.listen()
if float(pause_s):
    print(flush=True)
    time.sleep(float(pause_s))
lock = Lock(Path(path), note=note)
print(flush=True)
time.sleep(600)
"""


@contextmanager
def lock_holder(
    lock: Path, listens_at: Path | None = None, *, note: str = "", pause_s: float = 0.0, ignores_sigterm: bool = False
) -> "Iterator[subprocess.Popen[bytes]]":
    """Yield the process once it holds the lock; with a pause, once it listens, and the lock is taken after it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    if listens_at is not None:
        listens_at.parent.mkdir(parents=True, exist_ok=True)
    values = [str(lock), str(listens_at or ""), note, str(pause_s), "yes" if ignores_sigterm else ""]
    process = subprocess.Popen([sys.executable, "-c", _CODE, *values], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        yield process
    finally:
        process.kill()
        process.communicate()
