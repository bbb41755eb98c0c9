"""From a full log to committed rows, with a store and without, in turns: the index also cuts and publishes pieces."""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from chiplog_collector.index.database import Database
from chiplog_collector.index.follower import LogFollower
from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.piece_cutter import PieceCutter
from chiplog_schemas.limits import INDEX_FLUSH_ROWS
from chiplog_schemas.paths import paths_for_root
from tests.bench.bench_collector import BLOCK_EVENTS, KEYS, blocks, write_log
from tests.bench.figure import Figure

FLUSHES = 30
ROUNDS = 3
LOG_ID = bytes(16)


@dataclass
class CatchUp:
    """Seconds of wall time and of CPU in the index's thread, and what all of it took after the last piece."""

    wall_s: float
    thread_s: float
    n_points: int
    publisher_s: float = 0.0
    lag_s: float = 0.0


def measure() -> list[Figure]:
    made = blocks(FLUSHES * INDEX_FLUSH_ROWS // KEYS, BLOCK_EVENTS)
    found: dict[bool, list[CatchUp]] = {False: [], True: []}
    for number in range(ROUNDS):
        for has_store in (number % 2 == 0, number % 2 == 1):
            with tempfile.TemporaryDirectory() as root:
                found[has_store].append(_catch_up(made, Path(root), has_store=has_store))
    wall = [without.wall_s / with_store.wall_s for without, with_store in zip(found[False], found[True], strict=True)]
    cpu = [
        without.thread_s / with_store.thread_s for without, with_store in zip(found[False], found[True], strict=True)
    ]
    publisher = [1e6 * each.publisher_s / each.n_points for each in found[True]]
    rates = {
        has_store: statistics.median(each.n_points / each.wall_s for each in done) for has_store, done in found.items()
    }
    yardstick = f"{rates[True]:,.0f} points/s, without a store {rates[False]:,.0f}"
    return [
        Figure("catch-up with a store, rate", statistics.median(wall), "times", at_least=0.85, yardstick=yardstick),
        Figure("catch-up with a store, by CPU of the index's thread", statistics.median(cpu), "times", at_least=0.85),
        Figure("publisher, CPU of a row", statistics.median(publisher), "µs", at_most=1, yardstick="with its start"),
        Figure(
            "all published after the last flush",
            statistics.median(each.lag_s for each in found[True]),
            "s",
            at_most=15,
            yardstick=f"{found[True][0].n_points:,} points",
        ),
    ]


def _catch_up(made: list[bytes], root: Path, *, has_store: bool) -> CatchUp:
    place, url = paths_for_root(root), f"file://{root}/lake"
    place.collector.mkdir()
    log = write_log(made, place.collector / "log")
    database = Database(place.index, LOG_ID)
    follower = LogFollower(database, place.collector / "log")
    outbox, before = Outbox(place.store), _children_s()
    publisher, cutter = None, None
    if has_store:
        command = [sys.executable, "-P", "-m", "chiplog_collector.store", str(root), url]
        publisher = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        while outbox.published() is None:
            time.sleep(0.01)
        cutter = PieceCutter(database.connection, LOG_ID, outbox, url)
        cutter.start()
    begun, thread = time.perf_counter(), time.thread_time()
    while database.next_number < log.next_number:
        follower.step(log.next_number)
    found = CatchUp(time.perf_counter() - begun, time.thread_time() - thread, len(made) * BLOCK_EVENTS * KEYS)
    if publisher is not None and cutter is not None:
        assert publisher.stdin is not None
        begun = time.perf_counter()
        cutter.close()
        while outbox.ends():
            time.sleep(0.05)
        found.lag_s = time.perf_counter() - begun
        publisher.stdin.close()
        publisher.wait()
        found.publisher_s = _children_s() - before
        assert sum(file.n_rows for file in DeltaStore(url, LOG_ID.hex()).snapshot("metrics")) == found.n_points
    database.close()
    log.close()
    return found


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
