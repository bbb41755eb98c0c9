"""A collector and an agent of one directory, and the end of what a test started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from chiplog_client.client import NoDataError, QueryError, connect
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.process.procfs import read_proc_stat
from tests.support.waiting import WAIT_S, wait_until


def end_process(pid: int) -> None:
    """End a process that a test started, and wait for its end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + WAIT_S / 3
        try:
            os.kill(pid, number)
            while time.monotonic() < deadline and not _has_ended(pid):
                time.sleep(0.02)
        except ProcessLookupError:
            return
        if _has_ended(pid):
            return


def _has_ended(pid: int) -> bool:
    return read_proc_stat(pid)[:1] in ([], ["Z"])


def end_daemons(place: Paths) -> None:
    """End the agent and the collector of a directory, and those that another one just started in their place."""
    for _ in range(3):
        pids = [lock_holder_pid(directory / "lock") for directory in (place.agent, place.collector)]
        for pid in pids:
            if pid > 0:
                end_process(pid)
        if not any(pids):
            return


class Node:
    """A collector and an agent of one directory, as users start them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = paths_for_root(root)
        self.collector: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None
        self._trouble = ""  # why the last query had no answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, *agent_flags: str) -> "Node":
        self.start_collector()
        self.start_agent(*agent_flags)
        wait_until(lambda: self.try_sql("SELECT 1"), "a collector that answers")
        return self

    def start_collector(self) -> None:
        self.collector = self._start("chiplog_collector")

    def start_agent(self, *flags: str) -> None:
        self.agent = self._start("chiplog_agent", "--no-stats", *flags)
        agent = self.agent
        wait_until(lambda: lock_holder_pid(self.place.agent / "lock") == agent.pid, "an agent that holds its lock")

    def _start(self, module: str, *flags: str) -> "subprocess.Popen[bytes]":
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / f"{module}.log", "ab") as log:
            command = [sys.executable, "-P", "-m", module, "--dir", str(self.root), *flags]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def sql(self, query: str, params: Any = None) -> list[dict[str, Any]]:
        with connect(dir=self.root, start=False) as client:
            rows: list[dict[str, Any]] = client.sql(query, params).rows()
            return rows

    def try_sql(self, query: str) -> list[dict[str, Any]]:
        """Return the rows; none while no collector answers."""
        self._trouble = ""
        try:
            return self.sql(query)
        except (QueryError, NoDataError) as error:
            self._trouble = str(error)
            return []

    def until(self, query: str, holds: Callable[[list[dict[str, Any]]], Any] = bool) -> list[dict[str, Any]]:
        """Query until the rows match, and return them."""
        rows: list[dict[str, Any]] = []

        def asked() -> bool:
            nonlocal rows
            rows = self.try_sql(query)
            return bool(rows) and bool(holds(rows))

        try:
            wait_until(asked, query)
        except AssertionError as error:
            trouble, labels = self._trouble, self.try_sql("SELECT label, attempt, state, reason, node FROM labels")
            raise AssertionError(f"{error}; last answer: {rows[:20]} {trouble}; labels: {labels[:20]}") from None
        return rows

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def stop_agent(self) -> None:
        self._stop(self.agent)

    def stop_collector(self) -> None:
        self._stop(self.collector)

    def stop(self) -> None:
        self.stop_agent()
        self.stop_collector()

    @staticmethod
    def _stop(process: "subprocess.Popen[bytes] | None") -> None:
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(WAIT_S / 2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    def output(self, module: str = "chiplog_agent") -> str:
        return (self.root / f"{module}.log").read_text()
