"""A training that a real launcher starts, and the check of its rows in SQL.

The scripts call chiplog as users do: `init()`, `log()`, `finish()`, without passing anything on. In addition each rank
writes what it logged into a file (truth.py). `Training.check` compares everything, and records a line of the matrix.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.launchers.truth import DIRECTORY, Writer, read
from tests.support.failed_output import ended_with
from tests.support.network import Network
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
# For PYTHONPATH: modules that each Python runs first.
STARTUP = os.pathsep.join((str(Path(__file__).with_name("startup")), str(ROOT / "tests/support/startup")))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
COLUMNS = ("one run", "all labels", "right ranks", "right attempts", "all rows", "complete", "right states")
_MADE_UP = re.compile(r"[^/]+-[a-z2-9]{6}")  # {host}-{random}
_SHOWN = 6  # differences in a message
END_S = 6 * WAIT_S  # of a launcher that imports torch in several processes, on a machine that is busy

Sql = Callable[[str, Any], list[dict[str, Any]]]
States = Sequence[tuple[str, int, str]]  # label, attempt, state


class Training:
    """One start of one training. It has its own project, so that many share a collector.

    launcher: the name of its line in the matrix. sql: queries the collector. root: CHIPLOG_DIR of its processes.
    record: called with the line of the matrix.
    """

    def __init__(
        self, launcher: str, directory: Path, root: Path, sql: Sql, record: Callable[[dict[str, Any]], None]
    ) -> None:
        self.launcher = launcher
        self.directory = directory
        self.run_id = ""  # known after `check`
        self._sql = sql
        self._record = record
        self._processes: list[subprocess.Popen[bytes]] = []
        self._project = directory.name
        self._truth = directory / "truth"
        self._truth.mkdir(parents=True)
        self._begun_us = time.time_ns() // 1000
        path = os.pathsep.join(filter(None, (STARTUP, str(ROOT), os.environ.get("PYTHONPATH"))))
        self.environ = {
            **os.environ,
            "CHIPLOG_DIR": str(root),
            "CHIPLOG_PROJECT": self._project,
            DIRECTORY: str(self._truth),
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",  # two ranks on two cores, and others beside them
        }
        record({"launcher": launcher})  # a line even if the launcher never gets to the check

    # -- start --

    def script(self, text: str, name: str = "train.py") -> str:
        """Write a training script and return its path."""
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def start(
        self,
        command: Sequence[str],
        environ: Mapping[str, str] | None = None,
        on: tuple[Network, int] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Start a process of the training; its output goes to `output`. It is killed with its group at the end.

        on: a host of a network, in place of this one.
        """
        with open(self.directory / "output", "ab") as output:
            options: dict[str, Any] = {
                "env": self.environ | (dict(environ) if environ else {}),
                "cwd": self.directory,
                "stdin": subprocess.DEVNULL,
                "stdout": output,
                "stderr": output,
                "start_new_session": True,
            }
            if on is None:
                process = subprocess.Popen(command, **options)
            else:
                process = on[0].start(on[1], list(command), **options)
        self._processes.append(process)
        return process

    def run(self, command: Sequence[str], environ: Mapping[str, str] | None = None, exit_code: int = 0) -> None:
        """Run a command to its end."""
        self.end(self.start(command, environ), exit_code)

    def end(self, process: "subprocess.Popen[bytes]", exit_code: int = 0) -> None:
        """Wait until a process ends by itself."""
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.launcher} {ended_with(None, self.output)}") from None
        assert process.returncode == exit_code, f"{self.launcher}: {ended_with(process.returncode, self.output)}"
        said = [line for line in self.output.splitlines() if line.startswith("chiplog: ")]
        assert not said, f"chiplog complains: {said}"

    @property
    def output(self) -> str:
        """What all of its processes printed."""
        return (self.directory / "output").read_text(errors="replace")

    def writers(self) -> list[Writer]:
        """Return what the ranks have written so far."""
        return read(self._truth)

    def events(self, kind: str) -> list[str]:
        """Return the messages of a kind that the run has in `events`. To be called after `check`."""
        query = "SELECT message FROM events WHERE run_id = $run AND kind = $kind"
        return [row["message"] for row in self._sql(query, {"run": self.run_id, "kind": kind})]

    def close(self) -> None:
        """Kill what still runs, including ranks and their children, which launchers put into separate sessions."""
        for process in self._processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended, and all of its group
            process.wait()
        for rank in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if rank.environ().get(DIRECTORY) == str(self._truth):
                    rank.kill()

    # -- check --

    def check(self, states: States, *, run_state: str = "finished") -> str:
        """Compare all rows of this training in SQL with what its ranks wrote; return the run's ID.

        states: the expected label, attempt and state of each. A label that init() generated is `*`.
        """
        found = _Found(self._sql, self._project, self._begun_us, self.writers())
        deadline = time.monotonic() + WAIT_S
        while True:
            problems = found.look(states, run_state)
            if not any(problems.values()) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self._record({"launcher": self.launcher, **{column: not problems[column] for column in COLUMNS}})
        wrong = "\n".join(f"{column}: {problem}" for column, problem in problems.items() if problem)
        assert not wrong, f"{self.launcher}\n{wrong}\n{self.output[-4000:]}"
        [self.run_id] = found.runs
        return self.run_id


Launched = Callable[[str], Training]  # what makes a training, given the name of its line in the matrix


class _Found:
    """The rows of one training in SQL, beside what its ranks wrote."""

    def __init__(self, sql: Sql, project: str, begun_us: int, writers: list[Writer]) -> None:
        self.runs: list[str] = []
        self._sql = sql
        self._project = project
        self._begun_us = begun_us
        self._writers = writers

    def look(self, states: States, run_state: str) -> dict[str, str]:
        """Return the faults by column of the matrix; '' for none."""
        pids = [writer.pid for writer in self._writers]
        of_these = (  # by project, and by the processes, wherever these ended up
            "SELECT run_id FROM runs WHERE project = $project UNION SELECT run_id FROM labels "
            "WHERE list_contains($pids, pid) AND started_at >= make_timestamp($begun)"
        )
        asked = {"project": self._project, "pids": pids, "begun": self._begun_us}
        self.runs = sorted(row["run_id"] for row in self._sql(of_these, asked))
        about = {"runs": self.runs}
        own = "list_contains($runs, run_id)"
        labels = self._sql(f"SELECT * FROM labels WHERE {own}", about)
        complete = self._sql(f"SELECT * FROM completeness WHERE {own}", about)
        run_states = [row["state"] for row in self._sql(f"SELECT state FROM runs WHERE {own}", about)]
        rows = self._sql(f"SELECT * FROM metrics WHERE {own}", about)

        self._name_those_made_up(labels)
        named = {label for label, _, _ in states}
        ended = sorted((_shown(row["label"], named), row["attempt"], row["state"]) for row in labels)
        unfinished = [row for row in complete if row["pending"] or row["lost"] or not row["stored"]]
        return {
            "one run": "" if len(self.runs) == 1 else f"{len(self.runs)} runs: {self.runs}",
            "all labels": _difference(
                Counter((writer.label, writer.pid) for writer in self._writers),
                Counter((row["label"], row["pid"]) for row in labels),
            ),
            "right ranks": _difference(
                Counter((writer.label, writer.rank, writer.world_size) for writer in self._writers),
                Counter((row["label"], row["rank"], row["world_size"]) for row in labels),
            ),
            "right attempts": _difference(
                Counter((writer.label, writer.attempt, writer.pid) for writer in self._writers),
                Counter((row["label"], row["attempt"], row["pid"]) for row in labels),
            ),
            "all rows": self._rows_wrong(rows),
            "complete": f"{unfinished[:_SHOWN]}" if unfinished or len(complete) != len(labels) else "",
            "right states": ""
            if (ended, run_states) == (sorted(states), [run_state])
            else f"labels {ended}, runs {run_states}; expected {sorted(states)}, {run_state}",
        }

    def _name_those_made_up(self, labels: list[dict[str, Any]]) -> None:
        """Give a writer that was free in its name the one that it got, if that is a name that init() makes up."""
        by_pid = {row["pid"]: row["label"] for row in labels if _MADE_UP.fullmatch(row["label"])}
        for writer in self._writers:
            if writer.label is None and writer.pid in by_pid:
                writer.label = by_pid[writer.pid]

    def _rows_wrong(self, rows: list[dict[str, Any]]) -> str:
        run_id = self.runs[0] if self.runs else ""
        expected: Counter[tuple[Any, ...]] = Counter()
        perhaps: Counter[tuple[Any, ...]] = Counter()
        for writer in self._writers:
            who = (run_id, writer.label, writer.attempt, writer.rank)
            expected.update((*who, *row) for row in writer.rows)
            perhaps.update((*who, *row) for row in writer.perhaps)
        names = ("run_id", "label", "attempt", "rank", "step", "key", "value")
        stored = Counter(tuple(row[name] for name in names) for row in rows)
        surplus = stored - expected
        return _difference(expected, stored - (surplus & perhaps)) or ("" if expected else "nothing was logged")


def _shown(label: str, named: set[str]) -> str:
    return "*" if label not in named and _MADE_UP.fullmatch(label) else label


def _difference(expected: Counter[tuple[Any, ...]], found: Counter[tuple[Any, ...]]) -> str:
    missing, surplus = expected - found, found - expected
    parts = []
    for name, counter in (("missing", missing), ("surplus", surplus)):
        if counter:
            some = sorted(counter.elements(), key=str)[:_SHOWN]
            parts.append(f"{name} {counter.total()} of {expected.total()}: {some}")
    return "; ".join(parts)


def finished(world_size: int, attempt: int = 0) -> list[tuple[str, int, str]]:
    """Return the states of ranks 0..n-1 that each ended well."""
    return [(f"rank{rank}", attempt, "finished") for rank in range(world_size)]
