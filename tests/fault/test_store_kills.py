"""A store has each row once, whichever process of a collector is killed, at random and at each named moment.

Real processes, on a disk and on a server of S3. A reader checks each version of the tables. The oracle is what the rank
has written into files of its own.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.published_tables import COMPLETE
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.storage.record import Kind, Record
from chiplog_schemas.storage.segment_format import list_segments, read_segment
from tests.support.kill_points import ARMED, MOMENTS, VARIABLE, KillPlan
from tests.support.lake import VersionReader
from tests.support.node import Node
from tests.support.oracle import compare
from tests.support.patched import patch_daemons
from tests.support.rounds import SOAK_MINUTES, Rounds
from tests.support.s3_server import BUCKET, s3_server
from tests.support.store_ranks import OFTEN, n_logged, rank_of
from tests.support.waiting import WAIT_S, wait_until

N_RANDOM = 6  # kills of a round; in a soak as many as there are moments
N_NAMED = 6  # likewise; in a soak as many as there are moments
AT_ONCE = 4  # moments of a plan: some points have nothing to do now
PATIENCE_S = 6.0
N_GONE = 4  # short runs, each of which is deleted at another time
VICTIMS = ("receiver", "index", "publisher", "publisher")  # with the thread of maintenance
# Children start again soon, commits are often checkpointed, and maintenance has something to do all the time.
BUSY = """
if "chiplog_collector" in sys.orig_argv:
    from chiplog_collector.receiver import child_process
    child_process.Backoff = lambda min_s: child_process_backoff(0.1, 0.4)
    from chiplog_schemas.backoff import Backoff as child_process_backoff
if "chiplog_collector.store" in sys.orig_argv:
    from chiplog_collector.store import compaction, delta_store, maintainer
    delta_store.CHECKPOINT_COMMITS = 4
    maintainer.LOOK_S, maintainer.VACUUM_S = 0.5, 2.0
    compaction.compact.__kwdefaults__["pieces_min"] = 5
"""
SHORT_RUNS = """
import sys, chiplog
for run_id in sys.argv[1:]:
    with chiplog.init(run_id=run_id, project="p", label="rank0") as run:
        for step in range(50):
            run.log({"value": 0.5}, step=step)
"""
# Asked again while the collector or its index is killed.
DELETION = """
import subprocess, sys, time
command = [sys.executable, "-P", "-m", "chiplog_cli", "rm", *sys.argv[1:], "--yes"]
for _ in range(60):
    if not subprocess.run(command).returncode:
        break
    time.sleep(0.5)
else:
    sys.exit(1)
"""
# A day lasts two seconds at the collector, facts leave its database after one, and sealed segments of its log at once.
DAYS = """
import time
if "chiplog_collector" in " ".join(sys.orig_argv):
    import chiplog_schemas.clock as clock
    import chiplog_schemas.limits as limits
    limits.SEGMENT_BYTES = 32 << 10
    clock.now_us = lambda: {begun_us} + (time.time_ns() // 1000 - {begun_us}) * 43_200
if "chiplog_collector.index" in sys.orig_argv:
    from chiplog_collector.index.cleaning import hot_days
    hot_days.INTERVAL_S = 0.3
"""
TRIMMED_KILLS = 5  # while facts leave database and log, and again after a restore
CREATIONS = [moment for moment in MOMENTS if "creation" in moment]  # before there is more to kill
KEYS = {"metrics": "producer, seq, key", "console": "producer, seq", COMPLETE: "log, number"}


@pytest.fixture(params=["disk", pytest.param("S3", marks=pytest.mark.full)])
def base(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address below which the stores of the rounds are."""
    patch_daemons(monkeypatch, tmp_path / "patch", OFTEN + BUSY + ARMED)
    (tmp_path / "server").mkdir()
    is_s3 = request.param == "S3"
    with s3_server(tmp_path / "server") if is_s3 else nullcontext({}) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}" if is_s3 else f"file://{tmp_path}"


def kill(node: Node, victim: str) -> None:
    """Kill a process of the collector, and start the receiver again."""
    if victim == "receiver":
        assert node.collector is not None
        node.collector.kill()
        node.collector.wait()
        node.start_collector()
    else:
        lock = node.place.collector / "store.lock" if victim == "publisher" else node.place.index_lock
        wait_until(lambda: _kill_holder(lock), f"a process of the {victim}")


def _kill_holder(lock: Path) -> bool:
    try:
        pid = lock_holder_pid(lock)
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return pid > 0


def kill_at(plan: KillPlan, moments: list[str]) -> str:
    """Have a process kill itself at one of some moments; return which, or nothing if none gets there in time."""
    plan.set(moments)
    try:
        return str(wait_until(plan.met, " or ".join(moments), PATIENCE_S))
    except AssertionError:
        return plan.cancel()


def run_program(node: Node, program: str, *arguments: str) -> None:
    environment = os.environ | {"CHIPLOG_DIR": str(node.root), "CHIPLOG_AGENT": node.place.agent_address}
    command = [sys.executable, "-P", "-c", program, *arguments]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=WAIT_S)


def wait_for_values(reader: VersionReader, file: Path) -> None:
    """Wait until a store has all values of the run `kept`, and nothing that was deleted."""
    wait_until(lambda: len(reader.rows("metrics", "seq")) == 2 * n_logged(file), "a store with the values of one run")


def check(reader: VersionReader, file: Path) -> int:
    """Compare a store with what the run `kept` logged, and the pieces with a log; return the number of its values."""
    rows = reader.rows("metrics", "run_id, key, step, value")
    found = [{"step": step, "value": value} for run, key, step, value in rows if (run, key) == ("kept", "value")]
    verdict = compare(file, found)
    assert verdict.ok and not verdict.extra, verdict
    assert len(rows) == 2 * n_logged(file)
    lines = sorted(line for run, line in reader.rows("console", "run_id, line") if line.startswith("at "))
    assert lines == sorted(f"at {step}" for step in range(0, verdict.expected, 10))
    pieces = sorted(reader.rows(COMPLETE, "after, number"))
    assert [after for after, _ in pieces] == [-1, *(number for _, number in pieces[:-1])]
    return len(rows)


def check_versions(reader: VersionReader) -> None:
    for table, key in KEYS.items():
        reader.check_versions(table, key)


@pytest.mark.promise(11)
@pytest.mark.soak(4)
def test_each_row_is_in_the_store_once_whichever_process_is_killed_at_whichever_point(
    base: str, tmp_path: Path, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = KillPlan(tmp_path / "plan")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "plan"))
    for seed in rounds(1):
        chooser, place = random.Random(seed), tmp_path / f"round {seed}"
        url = f"{base}/lake of {seed}"
        monkeypatch.setenv("CHIPLOG_STORE", url)
        waiting = [moment for moment in chooser.sample(MOMENTS, len(MOMENTS)) if moment not in CREATIONS]
        n_named = len(waiting) if SOAK_MINUTES else N_NAMED
        n_random = len(MOMENTS) if SOAK_MINUTES else N_RANDOM
        schedule = [*[""] * n_named, *(chooser.choice(VICTIMS) for _ in range(n_random))]
        chooser.shuffle(schedule)
        gone = [f"gone {n}" for n in range(N_GONE)]
        place.mkdir()
        reader, kills = VersionReader(url, place), Counter[str]()
        with Node(place / "node") as node:
            node.start()
            first = chooser.choice(CREATIONS)
            plan.set([first])
            run_program(node, SHORT_RUNS, *gone)
            node.until(f"SELECT 1 FROM labels WHERE state <> 'running' HAVING count(*) = {N_GONE}")
            kills[first] += bool(plan.cancel())
            with rank_of(node, place / "kept", "kept"):
                for turn, victim in enumerate(schedule):
                    if gone and turn % (len(schedule) // N_GONE) == 0:
                        run_program(node, DELETION, gone.pop())
                    if victim:
                        time.sleep(chooser.uniform(0.1, 1.0))
                        kill(node, victim)
                        kills[f"of {victim} at random"] += 1
                    elif moment := kill_at(plan, waiting[:AT_ONCE]):
                        kills[moment] += 1
                        waiting.remove(moment)
                    else:  # they have nothing to do now
                        waiting = waiting[AT_ONCE:] + waiting[:AT_ONCE]
                    check_versions(reader)
            wait_for_values(reader, place / "kept")
            [counted] = node.until("SELECT produced, stored, lost, pending FROM completeness WHERE run_id = 'kept'")
            assert counted["produced"] == counted["stored"], counted
            node.stop()
            assert Outbox(node.place.store).ends() == []
        check_versions(reader)
        rounds.count("values", check(reader, place / "kept"))
        rounds.count("versions", reader.n_versions)
        for victim, n in kills.items():
            rounds.count("kills", n)
            rounds.count(victim, n)
        reader.close()
        shutil.rmtree(place)
        if base.startswith("file:"):
            shutil.rmtree(tmp_path / f"lake of {seed}")


def restore_over(node: Node, directory: Path) -> None:
    """Back a node's collector up while it runs, kill it, and restore the backup in its place."""
    cli = [sys.executable, "-P", "-m", "chiplog_cli"]
    run = partial(subprocess.run, check=True, capture_output=True, timeout=WAIT_S)
    run([*cli, "backup", str(directory / "backup"), "--from", str(node.root)])
    assert node.collector is not None
    node.collector.kill()
    node.collector.wait()
    locks = node.place.collector / "store.lock", node.place.index_lock
    wait_until(lambda: not any(map(lock_holder_pid, locks)), "a collector that ended")
    node.place.collector.rename(directory / "lost")
    run([*cli, "restore", str(directory / "backup"), "--dir", str(node.root)])


def trimmed_records(node: Node) -> int:
    segments = list_segments(node.place.collector / "log")
    records = (item for _, path in segments for item in read_segment(path))
    return sum(isinstance(item, Record) and item.kind == Kind.TRIMMED for item in records)


@pytest.mark.full
@pytest.mark.soak(4)
def test_each_row_is_found_once_while_days_leave_database_and_log_and_after_a_restore(
    tmp_path: Path, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receiver, index and publisher are killed at random. The views answer from database, files and former files."""
    for seed in rounds(1):
        chooser, place = random.Random(seed), tmp_path / f"round {seed}"
        place.mkdir()
        monkeypatch.setenv("CHIPLOG_STORE", f"file://{place}/lake")
        monkeypatch.setenv("CHIPLOG_HOT_DAYS", "1")
        patch_daemons(monkeypatch, tmp_path / "patch", OFTEN + BUSY + DAYS.format(begun_us=time.time_ns() // 1000))
        with Node(place / "node") as node:
            node.start()
            for run_id in ("before", "after"):
                with rank_of(node, place / run_id, run_id):
                    for _ in range(TRIMMED_KILLS):
                        time.sleep(chooser.uniform(0.5, 2.5))
                        kill(node, chooser.choice(VICTIMS))
                ended = f"SELECT 1 FROM labels WHERE run_id = '{run_id}' AND state = 'finished'"
                node.until(ended)
                if run_id == "before":
                    wait_until(lambda: trimmed_records(node), "facts that left the log")
                    restore_over(node, place)
                    node.start_collector()
            for run_id in ("before", "after"):
                steps = n_logged(place / run_id)
                counted = "SELECT count(*) AS n, count(DISTINCT (label, attempt, key, step)) AS distinct_n FROM metrics"
                expected = [{"n": 2 * steps, "distinct_n": 2 * steps}]
                node.until(f"{counted} WHERE run_id = '{run_id}'", lambda rows, expected=expected: rows == expected)
                # A query is refused for a moment after a day has left.
                found = node.until(f"SELECT step, value FROM metrics WHERE run_id = '{run_id}' AND key = 'value'")
                verdict = compare(place / run_id, found)
                assert verdict.ok and not verdict.extra, verdict
                rounds.count("values", steps)
            node.stop()
            assert trimmed_records(node)
            assert "have left the database" in node.output("chiplog_collector")
        shutil.rmtree(place)
