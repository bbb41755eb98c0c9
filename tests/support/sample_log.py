"""A log with records of every kind, and an index that is moved into a CHIPLOG_DIR."""

import random

from chiplog.values.metrics import Histogram
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US, Rank, block_of, whole
from tests.support.index import Index


def sample_ranks(n_steps: int, chooser: random.Random) -> list[Rank]:
    """Return producers with events of every kind: three ranks, two of them twice, and their agent."""
    import struct

    ranks = [Rank(n, launch="one", gpus=[f"GPU-{n}"], project="p", tags=["a", "b"]) for n in range(3)]
    again = Rank(10, "rank0", rank=0, launch="one", restart=1, primary=True)
    resumed = Rank(11, "rank2", rank=2, launch="one", restart=1, start_us=START_US + 1_000_000)
    agent = Rank(9, label="agent", role="agent", pid=9)
    for rank in (*ranks, again, resumed):
        for step in range(n_steps):
            # Of such fractions every sum is exact: it does not depend on the order of the rows.
            rank.log(step, loss=chooser.randrange(1024) / 1024, **{f"only/{rank.label}": float(step)})
            rank.log(step, **{f"odd/{rank.label}": float("nan")})
            seconds = [chooser.randrange(1024) / 1024 for _ in range(3)]
            rank.say(EventKind.PHASES, step, pack(["forward", "data", "step"]), struct.pack("<3d", *seconds))
        rank.say(EventKind.TEXT, 3, "note", f"text of {rank.label} 'quoted'")
        histogram = Histogram((0.0, 1.0, 2.0), (3.0, 4.0))
        packed = [struct.pack(f"<{len(values)}d", *values) for values in (histogram.edges, histogram.counts)]
        rank.say(EventKind.HISTOGRAM, 3, "weights", *packed)
        rank.say(EventKind.CONSOLE, 1, 1, "a line\0 with ü")
        rank.say(EventKind.CONFIG, {"lr": "0.1", "deep": '{"a": [1, null]}'})
        rank.say(EventKind.SUMMARY, {"best": "0.5"})
        rank.say(EventKind.FILE, "last.pt", 10, bytes(32))
        rank.say(EventKind.NOTICE, "alert", "warning", "high", {"text": "x"})
        rank.say(EventKind.SUMMARY, "hostile")
        rank.say(EventKind.DEFINE, "l*", {"summary": "min", "step_metric": "epoch"})
        rank.say(EventKind.DEFINE, "lr", {"hidden": True})
        rank.say(EventKind.MEDIA, 3, "images", "image", b"\7" * 32, 5, '{"caption": "ü"}')
        for number in (0, rank.uuid[0]):
            digest = bytes([number]) * 32
            rank.say(EventKind.ARTIFACT_FILE, digest, "model.pt", 10, bytes(32), "")
            rank.say(EventKind.ARTIFACT_FILE, digest, "data", 0, None, "s3://bucket/data")
            rank.say(EventKind.ARTIFACT_FILE, digest, "huge.pt", 99, b"\1" * 32, "", "too large")
            rank.say(EventKind.ARTIFACT, "p", "model", "model", digest, 3, 109, '{"of": "ü"}', rank.label)
            rank.say(EventKind.ARTIFACT_ALIAS, "p", "model", digest, "best", 1)
            rank.say(EventKind.ARTIFACT_USE, "p", "model", digest)
        rank.say(EventKind.CONFIG_HASHES, 1, {"lr": rank.label})
        rank.say(EventKind.TAG, "stage", f"set by {rank.label} ü")
        rank.say(EventKind.TAG, "gone", "soon")
        rank.say(EventKind.TAG, "gone", None)
    ranks[0].say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    ranks[1].become(label="worker1", notes="moved")
    for step in range(20):
        for device in ("", "GPU-0", "GPU-7", "pid:101"):
            keys = pack(["hw.power", "hw.util"])
            agent.say(
                EventKind.SYSTEM, device, keys, struct.pack("<2d", step, chooser.random()), ts=START_US + step * 1000
            )
        clocks = struct.pack("<2d", 1.5e9, 64.0 * (step % 2))
        keys = pack(["hw.gpu.clock.sm", "hw.gpu.throttle.reasons"])
        agent.say(EventKind.SYSTEM, "GPU-1", keys, clocks, ts=START_US + step * 1000)
    agent.say(EventKind.NOTICE, "gpu.lost", "error", "GPU-1 is lost", {"device": "GPU-1"}, ts=START_US + 30_000)
    agent.say(EventKind.PEER, ranks[2].uuid, {"state": "crashed", "reason": "gone", "produced": 500})
    agent.say(EventKind.LOST, ranks[2].uuid, 300, 350, "disk")
    return [*ranks, again, resumed, agent]


def in_blocks(rank: Rank, chooser: random.Random) -> list[bytes]:
    """Return all events of a producer in blocks that overlap."""
    payloads, at = [], 0
    while at < len(rank.events):
        last = min(len(rank.events) - 1, at + chooser.randrange(1, 30))
        payloads.append(block_of((rank, at, last)))
        at = max(at + 1, last - chooser.randrange(3))
    return payloads


def everything(n_steps: int = 40, seed: int = 1) -> list:
    """Return payloads of every kind: overlapping, late, lost, hostile, with identities that change."""
    chooser = random.Random(seed)
    ranks = sample_ranks(n_steps, chooser)
    payloads = [payload for rank in ranks for payload in in_blocks(rank, chooser)]
    chooser.shuffle(payloads)
    payloads += [whole(*ranks[:3]), b"garbage", (Kind.GAP, pack([b"S" * 16, 1, 2, "trimmed"])), (66, b"?")]
    payloads.append((Kind.STORED, pack([b"S" * 16, bytes(32), 10])))
    payloads.append((Kind.MANAGE, pack([b"8 bytes!", "save_view", {"name": "mine", "view": "{}"}])))
    return payloads


def place_of(index: Index):
    """Make the index the one of a CHIPLOG_DIR, and return that."""
    place = paths_for_root(index.directory / "chiplog")
    place.collector.parent.mkdir(parents=True)
    index.close()
    place.collector.mkdir()
    (index.directory / "log").rename(place.collector / "log")
    index.path.rename(place.index)
    return place
