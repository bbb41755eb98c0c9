"""Directories, nodes and waiting for tests with real processes. What a test started is ended here."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import chiplog
from chiplog.recording import start
from chiplog_schemas.bounds import RANGES
from chiplog_schemas.model.events import FIELDS, decode
from chiplog_schemas.paths import Places, places
from chiplog_schemas.process.file_lock import holder_of
from chiplog_schemas.process.procfs import stat_fields
from chiplog_schemas.storage.journal_dir import DeadJournal, list_journals
from chiplog_schemas.storage.record import Record
from tests.soak import Rounds, rounds, share_the_minutes, write_report

__all__ = ["Rounds", "rounds"]

WAIT_S = 120.0  # generous: a loaded machine is slow, a hung test names itself
_LAUNCHERS = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_")
_SETTINGS = (
    "AGENT",
    "COLLECTOR",
    "MODE",
    "PROJECT",
    "RUN_ID",
    "GROUP",
    "LABEL",
    "PRIMARY",
    "GPU_DEVICE_IDS",
    "PARENT_RUN",
    "SETUP",
    "KEYS",
    *(variable.removeprefix("CHIPLOG_") for variable in RANGES),
)
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")


class Event(NamedTuple):
    """One event of a journal."""

    producer: bytes
    seq: int
    kind: int
    ts: int
    fields: dict[str, Any]


def wait_until(holds: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> Any:
    """Return the first true result of `holds`, or fail naming what was waited for."""
    deadline = time.monotonic() + wait_s
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {wait_s:g} s in vain for: {what}"
        time.sleep(0.02)


def read_events(journals: Path) -> list[Event]:
    """Return every event of every journal in a directory, by producer and seq. Takes no lock."""
    events = []
    for producer, directory in list_journals(journals):
        for item in DeadJournal(directory).records():
            assert isinstance(item, Record), item
            kind, ts, *values = decode(item.payload)
            names = [name for name, _ in FIELDS[kind]]
            events.append(Event(producer, item.number, kind, ts, dict(zip(names, values, strict=True))))
    return events


def end_process(pid: int) -> None:
    """End a process that a test started, and wait for its end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 60.0
        try:
            os.kill(pid, number)
            while time.monotonic() < deadline and not _has_ended(pid):
                time.sleep(0.02)
        except ProcessLookupError:
            return
        if _has_ended(pid):
            return


def _has_ended(pid: int) -> bool:
    return stat_fields(pid)[:1] in ([], ["Z"])


def end_daemons(place: Places) -> None:
    """End the agent and the collector of a directory, and those that another one just started in their place."""
    for _ in range(3):
        pids = [holder_of(directory / "lock") for directory in (place.agent, place.collector)]
        for pid in pids:
            if pid > 0:
                end_process(pid)
        if not any(pids):
            return


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Take away what a launcher or a user may have set, and every run that a test leaves open."""
    for name in list(os.environ):
        is_ours = name.startswith("CHIPLOG_") and name.removeprefix("CHIPLOG_") in _SETTINGS
        if is_ours or name.startswith(_LAUNCHERS) or name in _RANK_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("CHIPLOG_DIR", str(tmp_path / "chiplog"))  # never ~/.chiplog
    monkeypatch.setenv("CHIPLOG_SURROUNDINGS", "0")  # tests count events; those of surroundings say so themselves
    yield
    if chiplog.run is not None:
        chiplog.finish()
        start._current = None


@pytest.fixture
def chiplog_dir(tmp_path: Path) -> Iterator[Path]:
    """A CHIPLOG_DIR of the test's own; daemons that were started for it are ended."""
    root = tmp_path / "chiplog"
    yield root
    if chiplog.run is not None:
        chiplog.finish()
    end_daemons(places(root))


@pytest.fixture
def offline(chiplog_dir: Path) -> Callable[..., list[Event]]:
    """Return what reads the events of all offline runs."""
    return lambda kind=None: [e for e in read_events(chiplog_dir / "offline") if kind is None or e.kind == kind]


class Node:
    """A collector and an agent of one directory, as users start them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = places(root)
        self.collector: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None

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
        wait_until(lambda: holder_of(self.place.agent / "lock") == agent.pid, "an agent that holds its lock")

    def _start(self, module: str, *flags: str) -> "subprocess.Popen[bytes]":
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / f"{module}.log", "ab") as log:
            command = [sys.executable, "-P", "-m", module, "--dir", str(self.root), *flags]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def sql(self, query: str, params: Any = None) -> list[dict[str, Any]]:
        with chiplog.connect(dir=self.root, start=False) as client:
            rows: list[dict[str, Any]] = client.sql(query, params).rows()
            return rows

    def try_sql(self, query: str) -> list[dict[str, Any]]:
        """Return the rows; none while nobody answers."""
        try:
            return self.sql(query)
        except (chiplog.query.client.QueryError, chiplog.query.client.NoDataError):
            return []

    def until(self, query: str, holds: Callable[[list[dict[str, Any]]], Any] = bool) -> list[dict[str, Any]]:
        """Ask until the rows are as wanted, and return them."""
        rows: list[dict[str, Any]] = []

        def asked() -> bool:
            nonlocal rows
            rows = self.try_sql(query)
            return bool(rows) and bool(holds(rows))

        try:
            wait_until(asked, query)
        except AssertionError as error:
            raise AssertionError(f"{error}; last answer: {rows[:20]}") from None
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


@pytest.fixture
def bare_node(chiplog_dir: Path) -> Iterator[Node]:
    """A node of which nothing runs yet."""
    node = Node(chiplog_dir)
    try:
        yield node
    finally:
        if chiplog.run is not None:
            chiplog.finish()
        node.stop()


@pytest.fixture
def node(bare_node: Node) -> Node:
    """A node whose collector answers."""
    return bare_node.start()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background: ranks would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "soak(weight): has small counts in `make test`, and long ones in `make soak`")


@pytest.hookimpl(trylast=True)  # behind -k and -m: the minutes are for those that run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share_the_minutes(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write_report(terminalreporter)


_exit_status = 0


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    global _exit_status
    _exit_status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave without tearing the interpreter down: DuckDB's bindings would print their leaks behind pytest's summary."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_status)
