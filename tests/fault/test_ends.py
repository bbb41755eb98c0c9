"""However a rank ends, it ends as it would without chiplog: as fast, with the same code, and leaving no process.

Each ending runs twice side by side, with chiplog and without it, all of them at the same time. The oracle compares the
calls of log() that returned with SQL.
"""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from chiplog_agent.ranks.exit_cause import STATE_LOST, VANISHED
from chiplog_schemas.limits import FINISH_WAIT_S
from tests.support.node import Node
from tests.support.oracle import compare
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

PROMISED_S = 2.0  # by which an end may be later with chiplog than without it
NOISE_S = 4.0  # extra time on a busy machine, also for finish() …
PLAYS = 3  # … in one of this many runs of the same ending
HUNG_S = WAIT_S  # a rank that has not ended by then is killed, and its test fails
AT_ONCE = 4
NOWHERE = {"CHIPLOG_AGENT": "ipc:///nowhere/agent.sock"}  # an agent that is named and not there: none is started
KILLED, TERMINATED, ABORTED = (("crashed", None, f"killed by {name}") for name in ("SIGKILL", "SIGTERM", "SIGABRT"))


def left(code: int) -> tuple[str, int | None, str | None]:
    return "crashed", code, f"ended with exit code {code} without finish(): os._exit, or native code"


UNSEEN = ("crashed", None, VANISHED)  # by no agent, and by no helper
ENDS_AT_ONCE = ("os_exit", "os_exit_in_log", "aborts")
KEYBOARD = ("failed", 1, "KeyboardInterrupt")


# All endings are played for the first test, and for one worker.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("ends")]


@dataclass(frozen=True)
class Ending:
    """How one rank ends, and its expected row in `labels`: state, exit code, reason."""

    name: str
    plays: str  # in endings.py
    says: tuple[str, int | None, str | None]
    method: str = "script"
    signal: int = 0  # sent by the test once the rank is ready
    at_terminal: bool = False
    agent: str = "serves"  # or "stopped", or "missing"
    disk_refuses: bool = False
    like: str = ""  # the ending without chiplog to compare with, if not its own

    @property
    def label(self) -> str:
        return self.name.replace(" ", "-")


ALL = [
    Ending("returns", "returns", ("finished", 0, None)),
    Ending("sys.exit(3)", "sys_exit", ("failed", 3, "SystemExit: 3")),
    Ending("sys.exit(3) that is caught", "sys_exit_that_is_caught", ("finished", 0, None)),
    Ending("sys.exit(4) in atexit", "sys_exit_in_atexit", ("finished", 0, None)),
    Ending("os._exit(5)", "os_exit", left(5)),
    Ending("abort()", "aborts", ABORTED),
    Ending("exception", "raises", ("failed", 1, "ValueError: boom")),
    Ending("exception in a worker", "raises_in_a_worker", ("failed", 1, "ValueError: Caught ValueError in DataLoader")),
    Ending("exception in a thread", "raises_in_a_thread", ("finished", 0, None)),
    Ending("exception in __del__", "raises_in_del", ("finished", 0, None)),
    Ending("exception in an import", "raises_in_import", ("failed", 1, "RuntimeError: broken module")),
    Ending("exception in a child by fork", "raises", ("failed", 1, "ValueError: boom"), method="fork"),
    Ending("sys.exit(3) in a child by forkserver", "sys_exit", ("failed", 3, "SystemExit: 3"), method="forkserver"),
    Ending("SIGKILL", "is_ended", KILLED, signal=signal.SIGKILL),
    Ending("SIGTERM", "is_ended", TERMINATED, signal=signal.SIGTERM),
    Ending("SIGTERM, by fork", "is_ended", TERMINATED, method="fork", signal=signal.SIGTERM),
    Ending("SIGTERM, by forkserver", "is_ended", TERMINATED, method="forkserver", signal=signal.SIGTERM),
    Ending("SIGTERM, by spawn", "is_ended", TERMINATED, method="spawn", signal=signal.SIGTERM, like="SIGTERM, by fork"),
    Ending("returns, spawned workers", "returns_with_spawned_workers", ("finished", 0, None)),
    Ending("SIGTERM, spawned workers", "is_ended_with_spawned_workers", TERMINATED, signal=signal.SIGTERM),
    Ending("SIGINT, spawned workers", "is_ended_with_spawned_workers", KEYBOARD, signal=signal.SIGINT),
    Ending("SIGINT", "is_ended", KEYBOARD, signal=signal.SIGINT),
    Ending("SIGINT, by fork", "is_ended", KEYBOARD, method="fork", signal=signal.SIGINT),
    Ending("SIGINT, by forkserver", "is_ended", KEYBOARD, method="forkserver", signal=signal.SIGINT),
    Ending("SIGINT, by spawn", "is_ended", KEYBOARD, method="spawn", signal=signal.SIGINT, like="SIGINT, by fork"),
    Ending("Ctrl-C at a terminal", "is_ended", KEYBOARD, at_terminal=True),
    Ending("SIGTERM with a handler", "ends_by_its_handler", ("failed", 143, "SystemExit: 143"), signal=signal.SIGTERM),
    Ending("sys.exit(7) in log()", "sys_exit_in_log", ("failed", 7, "SystemExit: 7")),
    Ending("os._exit(9) in log()", "os_exit_in_log", left(9)),
    Ending("finish() in log()", "finish_in_log", ("finished", 0, None)),
    Ending("returns, no agent", "returns", ("finished", 0, None), agent="missing", like="returns"),
    Ending("exception, no agent", "raises", ("failed", 1, "ValueError: boom"), agent="missing", like="exception"),
    Ending("returns, disk refuses", "logs_much", ("finished", 0, None), disk_refuses=True),
    Ending("returns, agent stopped", "returns", ("finished", 0, None), agent="stopped", like="returns"),
    Ending("exception, agent stopped", "raises", ("failed", 1, "ValueError: boom"), agent="stopped", like="exception"),
    Ending("SIGTERM, agent stopped", "is_ended", TERMINATED, signal=signal.SIGTERM, agent="stopped", like="SIGTERM"),
    Ending("SIGINT, agent stopped", "is_ended", KEYBOARD, signal=signal.SIGINT, agent="stopped", like="SIGINT"),
    Ending(
        "returns, disk refuses, agent stopped",
        "logs_much",
        ("finished", 0, STATE_LOST),
        agent="stopped",
        disk_refuses=True,
        like="returns, disk refuses",
    ),
]
AGAIN = " again "  # in the name of a further play
ENDINGS = [ending for ending in ALL if os.environ.get("CHIPLOG_FAULT_ENDINGS", "") in ending.name]
EVERYDAY = {  # the others are full
    "returns",
    "os._exit(5)",
    "exception",
    "SIGKILL",
    "SIGINT, by fork",
    "returns, disk refuses",
    "returns, agent stopped",
}
TEST = "test_a_rank_ends_as_it_would_without_chiplog_and_everything_it_logged_is_there"


@dataclass
class End:
    """What became of one rank."""

    folder: Path
    code: int
    took_s: float  # from the moment at which it was to end: the end of its own code, or the signal
    pid: int

    @property
    def finish_s(self) -> float:
        """How long finish() took, as the rank measured it; 0.0 if it never returned."""
        return float(_read_bytes(self.folder / "finish") or 0)

    def is_late(self, bare: "End") -> bool:
        """Return True if it took longer than promised, compared with the same end without chiplog."""
        return self.took_s > bare.took_s + PROMISED_S + NOISE_S or self.finish_s > FINISH_WAIT_S + NOISE_S


class Stage:
    """The process that starts all ranks. `play` may be called by several threads at once."""

    def __init__(self, root: Path, marker: str, methods: set[str]) -> None:
        environment = os.environ | {"CHIPLOG_DIR": str(root), "CHIPLOG_TEST_STAGE": marker, "OMP_NUM_THREADS": "1"}
        self.marker = f"CHIPLOG_TEST_STAGE={marker}".encode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.endings", *methods],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=environment,
            start_new_session=True,
        )
        self._said: dict[str, Queue[dict[str, Any]]] = {}
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            self._said[told["name"]].put(told)

    def play(self, ending: Ending, folder: Path, telemetry: bool) -> End:
        """Let a rank be and end."""
        folder.mkdir(parents=True)
        master, terminal = pty.openpty() if ending.at_terminal else (-1, -1)
        part = {
            "name": str(folder),
            "folder": str(folder),
            "label": ending.label,
            "ending": ending.plays,
            "method": ending.method,
            "telemetry": telemetry,
            "is_served": ending.agent == "serves",
            "environment": NOWHERE if ending.agent == "missing" else {},
            "terminal": os.ttyname(terminal) if ending.at_terminal else "",
            "file_bytes_max": 300_000 if ending.disk_refuses else 0,
        }
        said = self._said[str(folder)] = Queue()
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.write(json.dumps(part).encode() + b"\n")
            self._process.stdin.flush()
        pid = said.get(timeout=HUNG_S)["pid"]
        left = 0.0
        if ending.signal or ending.at_terminal:
            wait_until(lambda: (folder / "ready").exists(), f"{ending.name} to be ready: {_output(folder)}", HUNG_S)
            left = time.monotonic()
            if ending.at_terminal:
                os.write(master, b"\x03")
            else:
                os.kill(pid, ending.signal)
        ended = self._wait_for(pid)
        told = said.get(timeout=HUNG_S)
        for descriptor in (master, terminal):
            if descriptor >= 0:
                os.close(descriptor)
        assert left or (folder / "leaving").exists(), f"{ending.name} with {told}: {_output(folder)}"
        left = left or float((folder / "leaving").read_text())
        return End(folder, told["code"], (ended or told["ended"]) - left, pid)

    @staticmethod
    def _wait_for(pid: int) -> float:
        """Return when a process ended, 0.0 if it was gone already. One that hangs is killed."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return 0.0
        try:
            end = select.poll()  # select() accepts no descriptor above 1023, and a worker of pytest may have more
            end.register(descriptor, select.POLLIN)
            if not end.poll(HUNG_S * 1000):
                os.kill(pid, signal.SIGKILL)
            return time.monotonic()
        finally:
            os.close(descriptor)

    def processes(self) -> list[str]:
        """Return the command lines of all that the stage and its ranks started and that still runs."""
        return [
            (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            for entry in _processes()
            if self.marker in _read_bytes(entry / "environ").split(b"\0") and int(entry.name) != self._process.pid
        ]

    def close(self) -> None:
        """End the stage; what it keeps for its ranks (the fork server) ends with it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        self._process.stdout.close()


@dataclass
class Played:
    """Endings, with chiplog and without it, and their rows in SQL."""

    endings: list[Ending]
    ours: dict[str, End] = field(default_factory=dict)
    bare: dict[str, End] = field(default_factory=dict)
    plays: dict[str, list[End]] = field(default_factory=dict)  # with chiplog: more than one of those that were late
    labels: dict[str, dict[str, Any]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # of all labels, those of workers too if there were any
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    left_behind: dict[int, list[str]] = field(default_factory=dict)  # by the rank's PID
    stayed: list[str] = field(default_factory=list)

    def bare_of(self, ending: Ending) -> End:
        """Return what an ending is compared with."""
        return self.bare.get(ending.name) or self.bare[ending.like]


def _processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it ended in between, or belongs to another user


def _output(folder: Path) -> str:
    return _read_bytes(folder / "output").decode(errors="replace")[-2000:]


def _of_session(sessions: set[int]) -> dict[int, list[str]]:
    """Return what still runs in these sessions, zombies included."""
    found: dict[int, list[str]] = {}
    for entry in _processes():
        name, _, rest = _read_bytes(entry / "stat").decode(errors="replace").rpartition(")")
        fields = rest.split()
        is_orphaned_zombie = fields[:2] == ["Z", "1"]  # the init process here must reap it
        if fields and int(fields[3]) in sessions and not is_orphaned_zombie:
            found.setdefault(int(fields[3]), []).append(f"{name}) {fields[0]}")
    return found


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """The endings whose tests were asked for, all at the same time."""
    cases = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    endings = [case["ending"] for case in cases] or ENDINGS
    root = tmp_path_factory.mktemp("ends")
    node = Node(root / "chiplog")
    stage = Stage(node.root, root.name + str(time.time_ns()), {ending.method for ending in endings})
    try:
        node.start()
        yield _play_all(endings, node, stage, root)
    finally:
        with contextlib.suppress(ProcessLookupError):
            assert node.agent is not None
            node.agent.send_signal(signal.SIGCONT)
        stage.close()
        node.stop()


def _play_all(endings: list[Ending], node: Node, stage: Stage, root: Path) -> Played:
    played = Played(endings)
    assert node.agent is not None
    with ThreadPoolExecutor(AT_ONCE) as pool:

        def play(endings: list[Ending], telemetry: bool) -> list[tuple[str, Any]]:
            folder = root / ("ours" if telemetry else "bare")
            return [
                (ending.name, pool.submit(stage.play, ending, folder / ending.label, telemetry)) for ending in endings
            ]

        with_agent = [ending for ending in endings if ending.agent != "stopped"]
        likes = {ending.like or ending.name for ending in endings}
        without = [ending for ending in ALL if ending.name in likes]
        # Spawned ranks are slowest, and the stage waits for its fork server to have imported torch.
        with_agent.sort(key=lambda ending: ("spawn", "script", "fork", "forkserver").index(ending.method))

        def play_again(endings: list[Ending]) -> None:
            """Run the late ones again, alone and side by side: was the machine busy, or are they late?"""
            for ending in endings:
                ends = played.plays[ending.name] = [played.ours[ending.name]]
                if ends[0].is_late(played.bare_of(ending)) and ending.name not in played.bare:
                    played.bare[ending.name] = stage.play(ending, root / "bare" / ending.label, False)
                while ends[-1].is_late(played.bare_of(ending)) and ends[-1].took_s < HUNG_S and len(ends) < PLAYS:
                    part = replace(ending, name=f"{ending.name}{AGAIN}{len(ends)}")
                    ends.append(stage.play(part, root / "ours" / part.label, True))

        ours, bare = play(with_agent, True), play(without, False)
        played.ours = {name: end.result() for name, end in ours}
        stopped = [ending for ending in endings if ending.agent == "stopped"]
        node.agent.send_signal(signal.SIGSTOP)
        played.ours |= {name: end.result() for name, end in play(stopped, True)}
        played.bare = {name: end.result() for name, end in bare}
        play_again(stopped)
        node.agent.send_signal(signal.SIGCONT)
        play_again(with_agent)
    all_ours = [end for ends in played.plays.values() for end in ends]
    sessions = {end.pid for end in (*all_ours, *played.bare.values())}
    with contextlib.suppress(AssertionError):  # who is still there is named by the test of that rank
        wait_until(lambda: not _of_session(sessions), "the end of all that ranks started")
    played.left_behind = _of_session(sessions)
    kept = ("forkserver", "resource_tracker")

    def stayed() -> list[str]:
        return [line for line in stage.processes() if not any(word in line for word in kept)]

    with contextlib.suppress(AssertionError):  # likewise: a helper of the console has a session of its own
        wait_until(lambda: not stayed(), "the end of all that ranks started elsewhere")
    played.stayed = stayed()
    query = "SELECT l.*, c.pending, c.lost FROM labels l JOIN completeness c USING (run_id, label, attempt)"
    with contextlib.suppress(AssertionError):  # likewise
        node.until(f"{query} WHERE l.state <> 'running' AND c.pending = 0", lambda rows: len(rows) >= len(all_ours))
    for row in node.sql(query):
        played.labels[row["label"]] = row
        if AGAIN.strip() not in row["label"]:
            played.names.append(row["label"])
    for row in node.sql("SELECT label, step, value FROM metrics WHERE key = 'value'"):
        played.rows.setdefault(row["label"], []).append(row)
    return played


@proves(
    "finish-waits-one-second",
    "finish() waits at most a second",
    new="wait_s = 8.0\n...",
    environment={"CHIPLOG_FAULT_ENDINGS": "returns, agent stopped"},
)
@proves(
    "sender-thread-is-daemon",
    "no thread of chiplog keeps a process alive",
    part="True",
    new="False",
    environment={"CHIPLOG_FAULT_ENDINGS": "exception in a thread"},
)
@proves(
    "child-exception-seen",
    "the exception of a child of multiprocessing is seen",
    value="_pending_exit",
    environment={"CHIPLOG_FAULT_ENDINGS": "by fork"},
)
@proves(
    "unfinished-rank-declared-dead",
    "a rank whose state was lost with its memory does not run forever",
    part="(finished and produced == adopted.next_seq)",
    new="finished",
    environment={"CHIPLOG_FAULT_ENDINGS": "disk refuses, agent stopped"},
)
@pytest.mark.promise(3)
@pytest.mark.parametrize(
    "ending",
    [pytest.param(e, marks=() if e.name in EVERYDAY else pytest.mark.full, id=e.name) for e in ENDINGS],
)
def test_a_rank_ends_as_it_would_without_chiplog_and_everything_it_logged_is_there(
    played: Played, ending: Ending
) -> None:
    ours, bare = played.ours[ending.name], played.bare_of(ending)
    plays = played.plays[ending.name]
    seen = [f"{end.took_s:.3f} s, finish() {end.finish_s:.3f} s" for end in plays]
    print(f"{ending.name}: {'; '.join(seen)}; without chiplog {bare.took_s:.3f} s, code {ours.code}")
    assert ours.code == bare.code, _output(ours.folder)
    assert not all(end.is_late(bare) for end in plays), f"{seen}, without chiplog {bare.took_s:.3f} s"
    assert ours.finish_s or ending.says[0] == "crashed", "it reports that it finished, but finish() did not return"
    assert not played.left_behind.get(ours.pid), played.left_behind
    said = played.labels[ending.label]
    assert said["pending"] == 0
    verdict = compare(ours.folder / "oracle", played.rows.get(ending.label, []), said["lost"])
    assert verdict.expected > 10
    if ending.disk_refuses and ending.agent == "stopped":
        assert verdict.is_honest and verdict.lost, verdict
    else:
        assert verdict.ok and not said["lost"], (verdict, said)
    assert len(verdict.extra) <= 1, verdict
    quick = ending.plays in ENDS_AT_ONCE and said["reason"] == VANISHED  # before the agent knew of it
    state, code, reason = UNSEEN if quick else ending.says
    assert (said["state"], said["exit_code"]) == (state, code), said
    assert (said["reason"] or "").startswith(reason or "") and bool(said["reason"]) == bool(reason), said


def test_endings_leave_no_process_and_workers_no_label(played: Played) -> None:
    assert not played.left_behind and not played.stayed
    assert sorted(played.names) == sorted(ending.label for ending in played.endings)
    best_s = {name: min(end.took_s for end in ends) for name, ends in played.plays.items()}
    later_s = {e.name: best_s[e.name] - played.bare_of(e).took_s for e in played.endings}
    slowest_s = max(min(end.finish_s for end in ends) for ends in played.plays.values())
    print(f"the longest finish() took {slowest_s:.2f} s")
    latest = max(later_s, key=later_s.__getitem__)
    print(f"latest beside its like without chiplog: {latest}, by {later_s[latest]:.2f} s; promised {PROMISED_S:g} s")
