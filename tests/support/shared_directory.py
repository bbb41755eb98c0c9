"""Two nodes that share one directory over FUSE: mount and host-name namespaces, bindfs in each, a disk of their own.

A node has its own host name, machine ID, boot ID and /var/tmp. Its mount of the directory has the same path on each
node. A test module needs TOOLS.
"""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from tests.support.tools import FUSE, NAMESPACES, ROOT
from tests.support.waiting import WAIT_S, wait_until

TOOLS = ("bindfs", "unshare", "nsenter", NAMESPACES, FUSE, ROOT)

_SETUP = """set -e
mount --make-rprivate /
hostname "$1"
mount --bind "$2/var-tmp" /var/tmp
mount --bind "$2/machine-id" /etc/machine-id
mount --bind "$2/boot-id" /proc/sys/kernel/random/boot_id
bindfs -f $4 "$3/real" "$3/shared" &
while ! grep -q " $3/shared fuse" /proc/self/mounts; do sleep 0.02; done
touch "$2/is-up"
wait
"""
_LOCKS = "--enable-lock-forwarding --multithreaded"  # nodes see each other's locks


class SharedNode:
    """One node. `start` runs a Python command on it; `close` ends everything that it started."""

    def __init__(self, directory: Path, name: str, *, has_locks: bool) -> None:
        self.name = name
        self.home = directory / name
        self.shared = directory / "shared"
        for path in (self.home / "var-tmp", directory / "real", self.shared):
            path.mkdir(parents=True, exist_ok=True)
        (self.home / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        self._processes: list[subprocess.Popen[Any]] = []
        self._directory, self._locks = directory, _LOCKS if has_locks else ""
        self.boot()

    def boot(self) -> None:
        """Start the node, under a new boot ID."""
        (self.home / "boot-id").write_text(f"{uuid.uuid4()}\n")
        (self.home / "is-up").unlink(missing_ok=True)
        command = ["unshare", "-m", "-u", "sh", "-c", _SETUP, "sh", self.name, self.home, self._directory, self._locks]
        self._holder = subprocess.Popen(command, start_new_session=True)
        wait_until(lambda: (self.home / "is-up").exists() or self._holder.poll() is not None, "a shared directory")
        assert self._holder.poll() is None, "bindfs or a mount failed"

    def start(self, *arguments: str, **environ: str) -> "subprocess.Popen[str]":
        """Run Python with these arguments on the node, with the shared directory as CHIPLOG_DIR."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("CHIPLOG_")}
        process = subprocess.Popen(
            ["nsenter", f"--target={self._holder.pid}", "-m", "-u", sys.executable, "-P", *arguments],
            env={**kept, "CHIPLOG_DIR": str(self.shared / "chiplog"), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def run(self, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run Python to its end."""
        process = self.start(*arguments, **environ)
        out, err = process.communicate(timeout=WAIT_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def chiplog(self, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run a chiplog command to its end."""
        return self.run("-c", "from chiplog_cli.root import main; main()", *arguments, **environ)

    def pids(self) -> list[int]:
        """Return the processes of this node, also daemons that left their parents."""
        if self._holder.poll() is not None:
            return []
        world = os.readlink(f"/proc/{self._holder.pid}/ns/mnt")
        found = []
        for name in os.listdir("/proc"):
            try:
                if name.isdecimal() and os.readlink(f"/proc/{name}/ns/mnt") == world:
                    found.append(int(name))
            except OSError:
                continue  # it has just ended
        return found

    def crash(self) -> None:
        """Kill all processes of the node at once, and with them its mounts."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._holder.wait()
        for process in self._processes:
            process.communicate()
        self._processes = []

    close = crash
