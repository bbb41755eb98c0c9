"""A store with the samples of nodes of two collectors, over several days, and runs that used the nodes for a while."""

import itertools
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import START_US, Rank, block_of
from tests.support.days import DAY_US, take_on
from tests.support.index import Index
from tests.support.published_index import publish_in_pieces

NODES = (("node0", "node1"), ("node2",))  # of each collector
N_DAYS = 3
SAMPLES = 12  # of a device in a day
_KEYS = ("hw.gpu.clock.sm", "hw.gpu.throttle.reasons")


@dataclass(frozen=True)
class Stay:
    """A label on a node, with a GPU, from one time to another; in days. until: None while it runs."""

    run_id: str
    label: str
    node: str
    since: float
    until: float | None = None
    gpu: int = 0
    restart: int = 0
    late: int = 0  # days after which it is known


def random_stays(chooser: random.Random, n: int) -> list[Stay]:
    """Return labels of a few runs, some of which move between nodes, share one, run on, or are known late."""
    stays = []
    for number in range(n):
        since = chooser.randrange(N_DAYS * SAMPLES) / SAMPLES  # the time of a sample
        lasted = chooser.choice((0.0, 1 / SAMPLES, chooser.uniform(0, 1), chooser.uniform(0, N_DAYS)))
        until = None if chooser.random() < 0.2 else since + lasted
        place = chooser.choice([*itertools.chain(*NODES)]), since, until
        run_id, label = f"run{chooser.randrange(n // 3)}", f"rank{chooser.randrange(3)}"
        stays.append(Stay(run_id, label, *place, chooser.randrange(2), number, chooser.randrange(2)))
    return stays


def publish_samples(directory: Path, stays: list[Stay]) -> str:
    """Publish a piece for each node and day; return the address of the store."""
    ranks = [(stay, _rank(number, stay)) for number, stay in enumerate(stays)]
    for number, nodes in enumerate(NODES):
        agents = [_agent(200 + 10 * number + place, node) for place, node in enumerate(nodes)]
        payloads = [(day, _block(agent, ranks, day)) for day in range(N_DAYS) for agent in agents]
        index = collector(directory, number)
        publish_in_pieces(index, directory / "lake", payloads, len(payloads), _take)
        index.close()
    return f"file://{directory / 'lake'}"


def collector(directory: Path, number: int) -> Index:
    """Return the index of a collector."""
    return Index(directory / f"collector{number}", bytes([7 + number]) * 16)


def _take(index: Index, *payloads: tuple[int, bytes]) -> None:
    for day, block in payloads:
        take_on(index, day, block)


def _rank(number: int, stay: Stay) -> Rank:
    since = START_US + int(stay.since * DAY_US)
    place: dict[str, Any] = {"node": stay.node, "gpus": [f"GPU-{stay.node}-{stay.gpu}"], "pid": 100 + number}
    launch = {"launch": f"launch{stay.restart}", "restart": stay.restart}
    rank = Rank(number, stay.label, start_us=since, run_id=stay.run_id, rank=int(stay.label[4:]), **place, **launch)
    if stay.until is not None:
        end = {"state": "finished", "exit_code": 0}
        rank.say(EventKind.STATE, end, ts=START_US + int(stay.until * DAY_US))
    return rank


def _agent(number: int, node: str) -> Rank:
    agent = Rank(number, role="agent", node=node)
    for name in ("run_id", "label", "primary", "rank", "launch", "restart"):
        del agent.identity[name]
    agent.events.clear()
    agent.say(EventKind.IDENTITY, agent.identity)
    for place in range(N_DAYS * SAMPLES):
        for device in ("", f"GPU-{node}-0", f"GPU-{node}-1"):
            values = struct.pack("<2d", 1e9 + place, 64.0 * (place % 2))
            agent.say(EventKind.SYSTEM, device, pack(list(_KEYS)), values, ts=START_US + place * DAY_US // SAMPLES)
    return agent


def _block(agent: Rank, ranks: list[tuple[Stay, Rank]], day: int) -> bytes:
    """Return what a node sends on a day: samples, and the ranks that begin or end."""
    of_day = 3 * SAMPLES
    parts = [(agent, day * of_day + (day > 0), (day + 1) * of_day)]
    for stay, rank in ranks:
        if stay.node == agent.identity["node"]:
            times = (stay.since, stay.until or 0.0)[: len(rank.events)]
            due = [min(int(time) + stay.late, N_DAYS - 1) for time in times]
            parts += [(rank, seq, seq) for seq, at in enumerate(due) if at == day]
    return block_of(*parts)
