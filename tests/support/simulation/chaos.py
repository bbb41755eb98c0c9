"""What may happen in a simulation: each function does one thing to the world."""

from typing import TYPE_CHECKING, Any

from chiplog_schemas.limits import PEER_SILENT_S
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Record, scan_records
from chiplog_schemas.storage.segment_format import SEGMENT_HEADER_BYTES

if TYPE_CHECKING:
    from tests.support.simulation.world import Node, World


def _node(world: "World") -> "Node":
    return world.chance.choice(world.nodes)


def log_events(world: "World") -> None:
    for node in world.nodes:
        if node.rank is not None:
            for _ in range(world.chance.randint(1, 4)):
                node.rank.journal.append(EventKind.METRICS)


def log_many_events(world: "World") -> None:
    rank = _node(world).rank
    if rank is not None:
        for _ in range(20):
            rank.journal.append(EventKind.METRICS)


def work(world: "World") -> None:
    for _ in range(3):
        world.turn(0.06)


def kill_rank(world: "World") -> None:
    rank = _node(world).rank
    if rank is not None:
        rank.die()


def finish_rank(world: "World") -> None:
    rank = _node(world).rank
    if rank is not None:
        rank.finish()


def start_rank(world: "World") -> None:
    from tests.support.simulation.world import Rank

    node = _node(world)
    if node.rank is None:
        node.rank = Rank(world, node)


def kill_agent(world: "World") -> None:
    _node(world).kill_agent()


def kill_agent_in_its_sync(world: "World") -> None:
    world.disk.kill_at[_node(world).name] = world.chance.choice(("before", "after"))


def start_agents(world: "World") -> None:
    for node in world.nodes:
        if node.agent is None:
            node.start_agent()


def kill_collector(world: "World") -> None:
    world.kill_collector()


def kill_collector_in_its_sync(world: "World") -> None:
    world.disk.kill_at["c"] = world.chance.choice(("before", "after"))


def start_collector(world: "World") -> None:
    if world.collector is None:
        world.start_collector()


def restart_index(world: "World") -> None:
    from tests.support.simulation.world import Index

    world.index = None if world.index is not None and world.chance.random() < 0.5 else Index(world)


def power_fails_at_a_node(world: "World") -> None:
    node = _node(world)
    node.kill_agent()
    if node.rank is not None:
        node.rank.die()
    world.lose_power(node.name)
    for journal in node.journals.values():
        kept = world.chance.randint(0, len(journal.records))
        while len(journal.records) > kept:
            journal.records.pop()
        behind = journal.records[-1][0] + 1 if journal.records else journal.acked
        gone = set(range(max(behind, journal.acked), journal.next_seq))
        world.excused.setdefault(journal.producer, set()).update(gone)
        if world.chance.random() < 0.5:
            journal.acked = world.chance.choice(journal.acked_before)  # the head page was not written for a while


def power_fails_at_the_collector(world: "World") -> None:
    world.kill_collector()
    world.index = None
    world.lose_power("c")


def disk_fills(world: "World") -> None:
    world.disk.full.add(world.chance.choice(("c", *(node.name for node in world.nodes))))


def disk_has_room(world: "World") -> None:
    world.disk.full.clear()


def spool_is_lost(world: "World") -> None:
    node = _node(world)
    if node.agent is not None:
        return
    held = {spool for spool, path in world.owners.items() if path == node.spool_path}
    world.excuse(b for (spool, _), b in world.numbers.items() if spool in held and b not in world.in_log)
    world.disk.delete(node.spool_path)
    world.ends.pop(f"{node.spool_path}/end", None)


def spool_is_damaged(world: "World") -> None:
    """Flip a bit in a record that the collector may not have yet; no agent runs.

    Only while the small file next to the log still shows its end. If a power failure has set that file back, and a bit
    flips in the very last record too, nothing shows that the record existed.
    """
    node = _node(world)
    files = world.disk.directories.get(node.spool_path, {})
    if node.agent is not None or not files:
        return
    file = files[world.chance.choice(sorted(files))]
    start = SEGMENT_HEADER_BYTES
    whole = [item for item in scan_records(bytes(file.data[start:]), sealed=False) if isinstance(item, Record)]
    end = world.ends.get(f"{node.spool_path}/end", 0)
    if whole and len(file.safe) == len(file.data) and end > max(record.number for record in whole):
        world.ends_at_least[f"{node.spool_path}/end"] = end
        record = world.chance.choice(whole)
        world.damage(node, bytes(record.payload), record.number)
        file.data[start + record.end - 1] ^= 1
        file.safe = bytes(file.data)


def network_is_cut(world: "World") -> None:
    way = world.chance.choice(("forth", "back"))
    world.network.cuts.add((_node(world).name, way))


def network_heals(world: "World") -> None:
    world.network.cuts.clear()


def network_is_slow(world: "World") -> None:
    world.network.delay_s = world.chance.choice((0.0, 0.05, 1.0))


def connection_loses_messages(world: "World") -> None:
    if world.network.dealers:
        world.network.lose_some(world.chance.choice(world.network.dealers))


def message_comes_again(world: "World") -> None:
    world.network.repeat_one()


def long_silence(world: "World") -> None:
    for _ in range(2):
        world.turn(PEER_SILENT_S / 2 + 1)


def clock_jumps(world: "World") -> None:
    world.clock.skew_us += world.chance.randint(-(10**10), 10**10)


def log_is_backed_up(world: "World") -> None:
    files = world.disk.directories.get(world.log_path, {})
    world.backup = {name: file.safe for name, file in files.items() if file.named}


def log_is_rolled_back(world: "World") -> None:
    """Restore an old copy of the collector's log: it has lost what it acknowledged since."""
    if world.backup:
        world.kill_collector()
        world.index = None
        world.roll_back(world.backup)


def _weighted() -> list[Any]:
    often = {log_events: 12, work: 8, start_agents: 5, start_collector: 4, start_rank: 4, network_heals: 3}
    some = {
        disk_has_room: 3,
        kill_agent: 2,
        kill_rank: 2,
        message_comes_again: 2,
        spool_is_damaged: 2,
        connection_loses_messages: 3,
    }
    once = (log_many_events, finish_rank, kill_agent_in_its_sync, kill_collector, kill_collector_in_its_sync)
    rare = (restart_index, power_fails_at_a_node, power_fails_at_the_collector, disk_fills, spool_is_lost)
    last = (network_is_cut, network_is_slow, long_silence, clock_jumps, log_is_backed_up, log_is_rolled_back)
    weights = {**often, **some, **dict.fromkeys((*once, *rare, *last), 1)}
    return [action for action, weight in weights.items() for _ in range(weight)]


ACTIONS = _weighted()
