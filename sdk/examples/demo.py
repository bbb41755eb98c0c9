"""Train a small model on two ranks, then ask chiplog what happened: what `make demo` runs, in under two minutes.

Every command shown after a `$` is actually run, so you can repeat each one afterwards.
With --kill-agent the agent is killed in the middle of the training, and SQL has to show that nothing is missing.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

RANKS = 2
STRAGGLER_MS = 6  # a seventh of a step on two CPU cores: clear in SQL, invisible in the loss
MARKER = ".chiplog-demo"  # only a directory that carries it is ever emptied
# A busy machine may take many times as long as an idle one, so a wait ends only when nothing new happens for long.
START_LIMIT_S = 600  # until the first step: ten seconds on an idle machine, most of them to import torch
SILENCE_LIMIT_S = 120  # without a new step: 800 of them take 40 s
COMMAND_LIMIT_S = 60  # each command takes about one second
SETTLE_LIMIT_S = 30  # without news: after a kill, ranks declare the agent silent after 10 s, and a new one has to start
HERE = Path(__file__).resolve().parent
CHIPLOG = Path(sys.executable).parent / "chiplog"  # of this environment, whatever PATH says

LABELS = "SELECT label, rank, is_primary, node, pid, state, exit_code FROM labels ORDER BY rank"
LOSS = """
SELECT step, round(max(value) FILTER (key = 'train/loss' AND rank = 0), 3) AS loss_rank0,
             round(max(value) FILTER (key = 'train/loss' AND rank = 1), 3) AS loss_rank1,
             round(max(value) FILTER (key = 'eval/loss'), 3) AS held_out
FROM metrics WHERE step IN ({steps}) GROUP BY step ORDER BY step"""
SLOWEST = """
SELECT rank, round(1000 * median(seconds) FILTER (phase = 'data'), 2) AS data_ms,
             round(1000 * median(seconds) FILTER (phase = 'forward'), 2) AS forward_ms,
             round(1000 * median(seconds) FILTER (phase = 'backward'), 2) AS backward_ms,
             round(1000 * median(seconds) FILTER (phase = 'optimizer'), 2) AS optimizer_ms
FROM phases GROUP BY rank ORDER BY data_ms DESC"""
SYSTEM = """
SELECT device, name, count(DISTINCT ts) AS samples, round(min(value), 2) AS low,
       round(avg(value), 2) AS mean, round(max(value), 2) AS high
FROM system WHERE regexp_matches(name, 'utilization|load|memory.usage|temperature|power')
GROUP BY device, name ORDER BY device, name LIMIT 30"""
SLOW_STEPS = """
SELECT m.step, m.rank, l.pid, round(m.value) AS characters_per_s, p.phase AS longest_phase, p.ms
FROM metrics m
JOIN labels l USING (run_id, label, attempt)
JOIN (SELECT run_id, label, attempt, step, arg_max(phase, seconds) AS phase, round(1000 * max(seconds), 1) AS ms
      FROM phases WHERE phase <> 'eval' GROUP BY ALL) p USING (run_id, label, attempt, step)
WHERE m.key = 'train/tokens_per_s' AND m.step > 0 ORDER BY m.value LIMIT 6"""
SAMPLE = "SELECT label, step, value FROM texts WHERE key = 'sample'"
COMPLETENESS = (
    "SELECT label, attempt, produced, stored, lost, pending, reasons FROM completeness ORDER BY label, attempt"
)
EXACTLY_ONCE = """
SELECT label, count(*) AS stored, count(DISTINCT step) AS distinct_steps, min(step) AS first, max(step) AS last
FROM metrics WHERE key = 'train/loss' GROUP BY label ORDER BY label"""

ABOUT_TRAINING = f"""
A small GPT learns to write Python on {RANKS} ranks, for about 40 seconds. No daemon is started for it:
the first rank that finds no agent starts one, and a collector, in the background."""
ABOUT_SLOWEST = f"""
Which rank is slow? Rank {RANKS - 1} sleeps {STRAGGLER_MS} ms in its data phase, on purpose. In data-parallel training
all ranks wait for the slowest one in backward: steps take equally long, and only the phases tell. Medians per step:"""
ABOUT_SLOW_STEPS = """
Three views joined: the slowest steps, the process each ran in, and the phase that took longest.
(While rank 0 evaluates, the others wait for it in the backward of the following step.)"""


class DemoError(Exception):
    """A step of the demo failed; the message is the one line that the user sees."""


def fail(message: str) -> NoReturn:
    """Raise DemoError."""
    raise DemoError(message)


def emit(text: str) -> None:
    """Print one plain paragraph, in bold on a terminal; flush it, because the commands write to the same stream."""
    text = text.strip("\n")
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def environment(data_dir: Path) -> dict[str, str]:
    """Return the environment of the demo's processes: the embedded defaults in `data_dir`, and nothing else."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("CHIPLOG_")}
    env["CHIPLOG_DIR"] = str(data_dir)
    env["OMP_NUM_THREADS"] = "1"  # what torchrun would set anyway, with a warning
    env["COLUMNS"] = str(shutil.get_terminal_size((120, 40)).columns)  # through a pipe, tables would fold at 80
    return env


class StepWatch:
    """Notices when a training makes no new step for too long. Its start has a longer limit."""

    def __init__(self, now: float) -> None:
        self.step, self._at, self._limit_s = -1, now, START_LIMIT_S

    def is_silent(self, step: int, now: float) -> bool:
        """Return True if the newest step, -1 for none, has been the newest one for too long."""
        if step > self.step:
            self.step, self._at, self._limit_s = step, now, SILENCE_LIMIT_S
        return now - self._at > self._limit_s


class Demo:
    """One demo: its directory, its environment, and the commands that it runs."""

    def __init__(self, data_dir: Path, steps: int) -> None:
        self.dir, self.steps, self.env = data_dir, steps, environment(data_dir)
        self.stride = steps // 8  # between two evaluations, and two rows of the loss table
        self.step = -1  # the newest one that rank 0 has printed, or that was seen in SQL
        self.was_silent = False  # the training was ended because it made no new step

    def command(self, *arguments: str, quiet: bool = False) -> str:
        """Run one chiplog command and echo it like a shell prompt; with `quiet`, only return its output."""
        if not quiet:
            print("\n$ chiplog", " ".join(map(quoted, arguments)), flush=True)
        try:
            done = subprocess.run(
                [CHIPLOG, *arguments], env=self.env, text=True, timeout=COMMAND_LIMIT_S, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if quiet else None, stderr=subprocess.PIPE if quiet else None,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            fail(f"`chiplog {arguments[0]}` did not return within {COMMAND_LIMIT_S} s; look into {self.dir}")
        if done.returncode:
            reason = f": {done.stderr.strip()[-300:]}" if quiet and done.stderr.strip() else ""
            fail(f"`chiplog {arguments[0]}` exited with {done.returncode}{reason}")
        return done.stdout or ""

    def sql(self, query: str) -> None:
        """Show a query and its result."""
        self.command("sql", query.strip())

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return a query's rows, without showing anything."""
        return json.loads(self.command("sql", "--format", "json", query.strip(), quiet=True))

    def fresh(self) -> None:
        """Empty the directory: stop the daemons of an earlier demo, then remove its files."""
        if self.dir.exists() and any(self.dir.iterdir()):
            if not (self.dir / MARKER).exists():
                fail(f"{self.dir} holds something that is not a demo's; name another directory with --dir")
            self.command("down", quiet=True)
            shutil.rmtree(self.dir)
        self.dir.mkdir(parents=True, exist_ok=True)
        (self.dir / MARKER).touch()

    def train(self, kill_agent: bool) -> None:
        """Run the training under torchrun, streaming what it prints; in the middle, kill the agent if asked to."""
        script = [os.path.relpath(HERE / "char_gpt.py"), "--steps", str(self.steps), "--eval-every", str(self.stride)]
        script += ["--straggler-ms", str(STRAGGLER_MS)]
        print(f"\n$ torchrun --standalone --nproc-per-node {RANKS}", *script, flush=True)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        training = subprocess.Popen(
            [*launcher, *script], env=self.env, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.follow(training, kill_agent)

    def follow(self, training: subprocess.Popen[str], kill_agent: bool) -> None:
        """Wait for the end of a training, or end it when it makes no new step for too long."""
        # A thread reads: a process that outlives the training and keeps the pipe open must not block the demo.
        reader = threading.Thread(target=self.stream, args=(training,), daemon=True)
        reader.start()
        watch = StepWatch(time.monotonic())
        try:
            while training.poll() is None and not self.was_silent:
                time.sleep(0.1)
                if kill_agent and self.step >= self.steps // 2:
                    self.kill_agent()
                    kill_agent = False
                if watch.is_silent(self.step, time.monotonic()):
                    self.step = max(self.step, self.newest_stored_step())
                    self.was_silent = watch.is_silent(self.step, time.monotonic())
        finally:
            if training.poll() is None:
                training.terminate()  # torchrun forwards it to its ranks
                with contextlib.suppress(subprocess.TimeoutExpired):  # the demo already fails with an error
                    training.wait(40)  # torchrun gives its ranks 30 s
        reader.join(5)
        if kill_agent:
            fail("the training printed no step in its second half, so the agent was not killed")
        if self.was_silent and self.step < 0:
            fail(f"the training made no step within {START_LIMIT_S} s")
        if self.was_silent:
            emit(f"  no new step for {SILENCE_LIMIT_S} s after step {self.step}: the training was ended")
        elif training.returncode:
            fail(f"the training exited with {training.returncode}; its own message is above")

    def newest_stored_step(self) -> int:
        """Return the newest step that SQL has, or -1: rank 0 prints only every hundredth step."""
        try:
            return int(self.rows("SELECT coalesce(max(step), -1) AS step FROM metrics")[0]["step"])
        except DemoError:  # no collector has started yet
            return -1

    def stream(self, training: subprocess.Popen[str]) -> None:
        """Print the training's output, and keep the newest step."""
        assert training.stdout is not None
        for line in training.stdout:
            print(f"  {line}", end="", flush=True)
            if seen := re.match(r"step +(\d+)", line):
                self.step = max(self.step, int(seen[1]))

    def kill_agent(self) -> None:
        """Send SIGKILL to the agent."""
        lock = self.dir / "agent" / "lock"
        try:
            pid = int(lock.read_text().split()[0])
            cmdline = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ValueError, IndexError) as error:
            fail(f"no running agent found through {lock}: {error}")
        if "chiplog" not in cmdline:  # another process may have the PID of an old lock by now
            fail(f"{lock} names process {pid}, which is no agent: {cmdline.strip()}")
        os.kill(pid, signal.SIGKILL)
        emit(f"  killed the agent, process {pid}, with SIGKILL; the training continues")

    def settle(self) -> None:
        """Wait until everything that the ranks produced is in SQL or declared lost, and the run has ended."""
        news: tuple[Any, ...] = ()
        while True:
            counts = self.rows("SELECT count(*) AS labels, sum(pending) AS pending FROM completeness")[0]
            states = [row["state"] for row in self.rows("SELECT state FROM runs")]
            has_ended = states == ["finished"] or (self.was_silent and len(states) == 1 and states != ["running"])
            if int(counts["labels"]) >= RANKS and not int(counts["pending"] or 0) and has_ended:
                break
            if news != (counts, states):
                news, deadline = (counts, states), time.monotonic() + SETTLE_LIMIT_S
            elif time.monotonic() > deadline:
                fail(f"for {SETTLE_LIMIT_S} s after the training SQL has had {counts}, run states {states}")
            time.sleep(0.5)
        if self.was_silent and (missing := self.missing_steps()):
            fail(f"the training made no new step for {SILENCE_LIMIT_S} s, and {missing}")

    def missing_steps(self) -> str:
        """Return which steps are missing or doubled; an empty string if every rank has each exactly once."""
        rows = self.rows(EXACTLY_ONCE)
        wanted = (self.steps, self.steps, 0, self.steps - 1)
        for row in rows:
            if tuple(int(row[name]) for name in ("stored", "distinct_steps", "first", "last")) != wanted:
                return f"{row['label']} should have steps 0 to {self.steps - 1} once each, but SQL has {row}"
        if len(rows) != RANKS:
            return f"{RANKS} ranks should have logged train/loss, but SQL has {[row['label'] for row in rows]}"
        return ""

    def look(self) -> None:
        """Show the usual questions after a training, each with the command that answers it."""
        emit("Both ranks called chiplog.init() with the same arguments. They are one run:")
        self.command("runs")
        emit("Each rank is a label of that run; rank 0 is its primary:")
        self.sql(LABELS)
        emit("The loss of each rank, and the loss on text that was never trained on:")
        shown = sorted({*range(0, self.steps, self.stride), self.steps - 1})
        self.sql(LOSS.format(steps=", ".join(map(str, shown))))
        emit(ABOUT_SLOWEST)
        self.sql(SLOWEST)
        slowest = self.rows(SLOWEST)[0]["rank"]
        if int(slowest) != RANKS - 1:
            fail(f"rank {RANKS - 1} was made slow, but SQL names rank {slowest}")
        emit(f"SQL says rank {slowest}; the other one pays for it in backward.")
        emit("What the machine did during the training, sampled by the agent:")
        self.sql(SYSTEM)
        if not self.rows(SYSTEM):
            fail("the agent sampled nothing of this machine during the training")
        emit(ABOUT_SLOW_STEPS)
        self.sql(SLOW_STEPS)
        emit("What the model writes by now:")
        self.sql(SAMPLE)

    def prove(self) -> None:
        """Show that nothing is missing and nothing is doubled; raise DemoError if something is."""
        emit("And nothing is missing. Produced = stored + lost + pending, for each label:")
        self.sql(COMPLETENESS)
        for row in self.rows(COMPLETENESS):
            if int(row["stored"]) != int(row["produced"]) or int(row["lost"]) or int(row["pending"]):
                fail(f"not everything was stored: {row}")
        emit(f"Every one of the {self.steps} steps of every rank is there exactly once:")
        self.sql(EXACTLY_ONCE)
        if missing := self.missing_steps():
            fail(missing)

    def what_next(self) -> None:
        """Print commands to try next."""
        emit("Now you:")
        if shutil.which("chiplog") != str(CHIPLOG):
            print(f"  export PATH={shlex.quote(str(CHIPLOG.parent))}:$PATH")
        run_id = shlex.quote(self.rows("SELECT run_id FROM runs")[0]["run_id"])
        print(f"  export CHIPLOG_DIR={shlex.quote(str(self.dir))}")
        for command, answer in (
            ("chiplog ui", "the page: open the address that it prints in a browser"),
            ("chiplog sql", "a prompt; try: SELECT * FROM metrics LIMIT 5"),
            (f"chiplog show {run_id}", "the run on one page"),
            (f"chiplog logs {run_id}", "what the ranks printed"),
            ("chiplog down", "send agent and collector away now; idle, they leave by themselves"),
        ):
            print(f"  {command:<{len(run_id) + 26}}  {answer}")


def quoted(argument: str) -> str:
    """Quote an argument for a shell in readable form; no query here has special characters in double quotes."""
    return f'"{argument}"' if re.search(r"\s", argument) else shlex.quote(argument)


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--dir", type=Path, default=Path("demo-data"), help="CHIPLOG_DIR, emptied (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=800, help="steps of the training, 16 at least (default: %(default)s)"
    )
    parser.add_argument("--kill-agent", action="store_true", help="SIGKILL the agent in the middle of the training")
    args = parser.parse_args()
    began = time.monotonic()
    try:
        if args.steps < 16:
            fail(f"--steps {args.steps} is too few to look at; give at least 16")
        if not CHIPLOG.exists():
            fail(f"no chiplog command beside {sys.executable}; install it there: pip install -e '.[torch]'")
        if importlib.util.find_spec("torch") is None:
            fail(f"no torch for {sys.executable}; install it there: pip install '.[torch]'")
        demo = Demo(args.dir.absolute(), args.steps)
        demo.fresh()
        emit(ABOUT_TRAINING)
        demo.train(args.kill_agent)
        demo.settle()
        demo.look()
        demo.prove()
        if args.kill_agent:
            emit("The agent was killed in the middle: every rank kept its records until a new agent had them on disk.")
        demo.what_next()
    except DemoError as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo interrupted", file=sys.stderr)
        return 130
    emit(f"Done in {time.monotonic() - began:.0f} seconds.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
