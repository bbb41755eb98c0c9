"""Three collectors on one store, killed at random, one deleted with its disk: what was logged, stored and declared.

    python -m tests.bench.lake.three_collectors [--minutes N]

The store is a bucket of a server of S3 on this host. A run is spread over two collectors, another one is at the third.
Their receivers, indexes, publishers and agents get SIGKILL at random moments; then the disk of one is removed. The same
query must have the same answer from each collector that is left, from a reader without a collector, from Spark (which
reads a copy of the bucket on this disk) and from Sail. Exit code 1 if something is missing that is not declared, or if
an answer is another one.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
from obstore.store import from_url

from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.published_tables import COMPLETE
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.storage.segment_format import log_owner
from tests.bench.lake.environment import ENGINES, ROOT, prepare
from tests.support.lake import VersionReader
from tests.support.node import Node
from tests.support.oracle import compare, read
from tests.support.s3_server import BUCKET, s3_server
from tests.support.waiting import WAIT_S, wait_until

VICTIMS = ("receiver", "index", "publisher", "agent")
LOST = "third"  # the collector that is deleted: the one with rank 1 of the spread run
SILENT_S = 200.0  # a collector without a heartbeat for 180 s is silent
# Values as the oracle's rank writes them.
RANK = """
import os, random, struct, sys, time, chiplog
file, run_id, label = sys.argv[1:]
chooser = random.Random(run_id + label)
target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with chiplog.init(run_id=run_id, project="p", label=label, primary=label == "rank0", capture_console=False) as run:
    step = 0
    while not os.path.exists(file + ".stop"):
        value = chooser.random()
        run.log({"value": value, "other": 1.0}, step=step)
        os.write(target, f"{step} {struct.pack('<d', value).hex()}\\n".encode())
        step += 1
        time.sleep(0.01)
"""
QUESTION = """SELECT run_id, label, key, count(*) AS n, count(DISTINCT step) AS n_steps, min(value) AS least,
    max(value) AS most, CAST(sum(CAST(floor(value * 1000000) AS BIGINT)) AS BIGINT) AS total
    FROM metrics GROUP BY run_id, label, key ORDER BY run_id, label, key"""
DECLARED = """SELECT l.run_id, l.label, l.state, c.produced, c.stored, c.lost, c.pending
    FROM labels l JOIN completeness c ON c.run_id = l.run_id AND c.label = l.label"""


@dataclass
class Rank:
    """A rank and the collector that its node delivers to."""

    node: Node
    run_id: str
    label: str
    file: Path
    process: "subprocess.Popen[bytes]"


def start_rank(node: Node, run_id: str, label: str, directory: Path) -> Rank:
    file = directory / f"{run_id}-{label}"
    environment = os.environ | {"CHIPLOG_DIR": str(node.root), "CHIPLOG_AGENT": node.place.agent_address}
    command = [sys.executable, "-P", "-c", RANK, str(file), run_id, label]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return Rank(node, run_id, label, file, process)


def pid_of(node: Node, victim: str) -> int:
    if victim == "index":
        return lock_holder_pid(node.place.index_lock)
    return lock_holder_pid(node.place.collector / "store.lock")


def kill(node: Node, victim: str) -> bool:
    """Kill a process of a node, and start it again if no other process does; return False if it is not there."""
    if victim in ("receiver", "agent"):
        process = node.collector if victim == "receiver" else node.agent
        assert process is not None
        process.kill()
        process.wait()
        if victim == "receiver":
            node.start_collector()
        else:
            node.start_agent()
        return True
    pid = pid_of(node, victim)
    try:
        if pid > 0:
            os.kill(pid, 9)
    except ProcessLookupError:
        return False
    return pid > 0


def lose(node: Node, rank: Rank) -> None:
    """End all processes of a host at once, and remove its disk."""
    rank.process.kill()
    for process in (node.agent, node.collector):
        assert process is not None
        process.kill()
        process.wait()
    for victim in ("index", "publisher"):
        kill(node, victim)
        wait_until(lambda victim=victim: pid_of(node, victim) <= 0, f"the end of the {victim}")
    rank.process.wait()
    shutil.rmtree(node.root)


def copy_bucket(url: str, directory: Path) -> str:
    """Copy a store to this disk, for an engine that reads no bucket; return the address of the copy."""
    objects = from_url(url)
    for page in obstore.list(objects):
        for meta in page:
            target = directory / meta["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(obstore.get(objects, meta["path"]).bytes())
    return f"file://{directory}"


def plain(rows: list[dict[str, Any]]) -> list[list[Any]]:
    return [list(row.values()) for row in rows]


def ask_engine(python: str, engine: str, url: str) -> list[list[Any]]:
    """Return the answer of an engine to the question."""
    command = [sys.executable, "-m", "chiplog_collector.store.commands", "spark-tables", url]
    given = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    asked = json.dumps(given | {"url": url, "question": QUESTION})
    command = [python, "-m", "tests.bench.lake.in_engine", engine]
    done = subprocess.run(command, cwd=ROOT, input=asked, capture_output=True, text=True, env=environ)
    if done.returncode:
        raise RuntimeError(f"{engine}: {done.stderr[-2000:]}")
    found: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def ask_reader(url: str, cache: Path) -> list[list[Any]]:
    command = [sys.executable, "-P", "-m", "chiplog_cli", "sql", "--store", url, "--format", "json", QUESTION]
    environ = os.environ | {"XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=WAIT_S)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return plain(json.loads(done.stdout))


def check_ranks(ranks: list[Rank], reader: VersionReader, left: Node) -> bool:
    """Print what of each rank was logged, stored and declared; return False if something is missing or doubled."""
    rows = reader.rows("metrics", "run_id, label, key, step, value")
    declared = {(row["run_id"], row["label"]): row for row in left.sql(DECLARED)}
    print(f"\n{'run':8} {'label':6} {'logged':>8} {'stored':>8} {'missing':>8}  what SQL has")
    is_right = True
    for rank in ranks:
        found = [
            {"step": step, "value": value}
            for run_id, label, key, step, value in rows
            if (run_id, label, key) == (rank.run_id, rank.label, "value")
        ]
        verdict = compare(rank.file, found)
        logged = read(rank.file)
        known = declared[(rank.run_id, rank.label)]
        counts = (f"{name} {known[name]}" for name in ("produced", "stored", "lost", "pending"))
        text = ", ".join((known["state"], *counts)).replace("None", "NULL")
        n_missing = len(verdict.lost)
        print(f"{rank.run_id:8} {rank.label:6} {len(logged):8,} {len(found):8,} {n_missing:8,}  {text}")
        is_right = is_right and not verdict.doubled and not verdict.altered
        if rank.node.root.exists():
            is_right = is_right and not n_missing and known["pending"] == known["lost"] == 0
        else:  # of the lost disk: the end is missing, and SQL does not claim to know how much that is
            is_right = is_right and verdict.lost == sorted(logged)[len(logged) - n_missing :]
            is_right = is_right and known["state"] == "unknown" and known["produced"] is known["pending"] is None
    return is_right


def check_answers(answers: dict[str, list[list[Any]]]) -> bool:
    """Print which answers are alike; return False if one is another."""
    print(f"\n{QUESTION}\n")
    wanted = next(iter(answers.values()))
    for row in wanted:
        print("  " + ", ".join(map(str, row)))
    print()
    for name, answer in answers.items():
        print(f"{name:45} {'the same' if answer == wanted else f'ANOTHER: {answer}'}")
    return all(answer == wanted for answer in answers.values())


def main() -> int:
    """Run it; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long processes are killed (default 10)")
    minutes = parser.parse_args().minutes
    sail, seed = prepare("engines", ENGINES), time.time_ns() % 1_000_000
    with tempfile.TemporaryDirectory(prefix="chiplog-three-") as directory:
        root = Path(directory)
        (root / "server").mkdir()
        with s3_server(root / "server") as variables:
            os.environ.update(variables | {"CHIPLOG_STORE": f"s3://{BUCKET}/three"})
            return _run(root, minutes, seed, sail)


def _run(root: Path, minutes: float, seed: int, sail: str) -> int:
    url, chooser, kills = os.environ["CHIPLOG_STORE"], random.Random(seed), Counter[str]()
    nodes = {name: Node(root / name) for name in ("first", "second", LOST)}
    reader = VersionReader(url, root)
    try:
        for node in nodes.values():
            node.start()
        ranks = [
            start_rank(nodes["first"], "spread", "rank0", root),
            start_rank(nodes[LOST], "spread", "rank1", root),
            start_rank(nodes["second"], "alone", "rank0", root),
        ]
        print(f"seed {seed}: killing processes of three collectors and agents for {minutes:g} minutes", flush=True)
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            time.sleep(chooser.uniform(0.2, 2.0))
            victim = chooser.choice(VICTIMS)
            kills[victim] += kill(chooser.choice(list(nodes.values())), victim)
            if not sum(kills.values()) % 20:
                reader.check_versions("metrics", "producer, seq, key")
        log = log_owner(nodes[LOST].place.collector / "log")
        assert log is not None
        wait_until(lambda: log.hex() in {name for (name,) in reader.rows(COMPLETE, "log")}, "a piece of each collector")
        lose(nodes[LOST], ranks[1])
        lost_at = time.monotonic()
        for rank in (ranks[0], ranks[2]):
            Path(f"{rank.file}.stop").touch()
            assert rank.process.wait(WAIT_S) == 0
        left = [nodes["first"], nodes["second"]]
        for node in left:
            node.until("SELECT 1 FROM completeness WHERE pending = 0 AND lost = 0 AND label = 'rank0'")
            wait_until(lambda node=node: not Outbox(node.place.store).ends(), "a published log")
        named = ", ".join(f"{n} {name}" for name, n in sorted(kills.items()))
        print(f"killed: {kills.total()} ({named}); then one of the three was deleted with its disk", flush=True)
        time.sleep(max(0.0, lost_at + SILENT_S - time.monotonic()))
        wanted = ask_reader(url, root / "cache")
        for node in left:
            wait_until(lambda node=node: plain(node.sql(QUESTION)) == wanted, "a collector that has seen the store")
        is_right = check_ranks(ranks, reader, left[0])
        reader.check_versions("metrics", "producer, seq, key")
        print(f"versions of the table metrics, each without a double row: {reader.n_versions}")
        answers = {
            "first collector": plain(left[0].sql(QUESTION)),
            "second collector": plain(left[1].sql(QUESTION)),
            "chiplog sql --store, without a collector": ask_reader(url, root / "cache"),
            "Spark, a copy of the bucket on this disk": ask_engine(
                sys.executable, "spark", copy_bucket(url, root / "copy")
            ),
            "Sail, the bucket": ask_engine(sail, "sail", url),
        }
        return 0 if check_answers(answers) and is_right else 1
    finally:
        for node in nodes.values():
            if node.root.exists():
                node.stop()
        reader.close()


if __name__ == "__main__":
    sys.exit(main())
