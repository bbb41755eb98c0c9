"""Random histories over one, two and three collectors on one store: the rows of one collector without a store.

A history has restarts, runs that merge, identities that come late, losses, deletions, edits, imports, blocks of a newer
version, and blocks that a sender was refused.
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chiplog_collector.store.published_tables import COMPLETE
from chiplog_schemas.codec import pack
from chiplog_schemas.model.change_record import Action
from chiplog_schemas.model.events import EventKind
from tests.support.changes import change
from tests.support.collector_log import START_US, VIEWS, Rank, block_of, whole
from tests.support.imported_blocks import block as imported_block
from tests.support.imported_blocks import head
from tests.support.index import Index
from tests.support.published_index import publish_in_pieces
from tests.support.rounds import Rounds
from tests.support.store_reader import Reader

# Rows that a collector adds by what it knows and when, beside those of its own records, which have no label.
OWN_WORDS = "('config_refused', 'file_refused', 'merge_refused', 'primary_refused', 'refused_node')"
MACROS = (
    "history('{run}', 'loss')",
    "ema('{run}', 'loss', 0.5)",
    "downsample('{run}', ['loss', 'x'], 7)",
    "pivot_steps('{run}', ['loss', 'x'])",
    "compare('{run}', 'run1')",
    "config_history('{run}')",
    "pivot_runs(['lr'], ['loss'])",
    "stragglers_between('{run}', 0, 9)",
    "data_wait_between('{run}', 2, 9)",
    "excess_between('{run}', 'step', 0, 9)",
)


@dataclass
class Step:
    """What one agent delivers."""

    payload: Any
    home: int | None = None  # whose collector takes it; None: each collector has a record of its own
    sender: str = ""
    nodes: list[str] | None = None  # those that the sender's key is for; None: all


def take(index: Index, *steps: Step) -> None:
    for step in steps:
        if step.sender:
            index.take_from(step.sender, step.payload, restricted=step.nodes is not None, nodes=step.nodes)
        else:
            index.take(step.payload)


class History:
    """Writes one history."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._ranks: list[Rank] = []
        self.runs = [f"run{number}" for number in range(self._chance.randrange(2, 5))]
        lines = [line for run in self.runs for line in self._lines_of(run)]
        self.steps = list(self._mixed(lines))
        gone = self._chance.choice(self.runs)
        producers = [rank.uuid for rank in self._ranks if rank.identity["run_id"] == gone]
        if self._chance.random() < 0.6:
            self.steps.append(Step(change(Action.DELETE, 1, producers=producers, runs=[gone])))
        if self._chance.random() < 0.6:
            fields = {"name": "better", "tags": ["z"]}
            self.steps.append(Step(change(Action.EDIT, 2, run=self.runs[0], fields=fields)))
        late = self._rank("late", run_id=gone, rank=7)  # what comes after a deletion is new
        self.steps.append(Step(whole(late), 1))

    def _rank(self, label: str, **identity: Any) -> Rank:
        chance, rank = self._chance, Rank(len(self._ranks) + 1, label, **{"primary": False} | identity)
        self._ranks.append(rank)
        for step in range(chance.randrange(1, 14)):
            # Of such fractions every sum is exact: it does not depend on the order of the rows.
            rank.log(step, loss=chance.randrange(1024) / 1024, **{f"only/{label}": float(step)})
            seconds = [chance.randrange(1024) / 1024 for _ in range(2)]
            rank.say(EventKind.PHASES, step, pack(["data", "step"]), struct.pack("<2d", *seconds))
        if chance.random() < 0.5:
            rank.say(EventKind.TEXT, 3, "note", f"of {label}")
            rank.say(EventKind.CONSOLE, 1, 1, f"{label} prints")
            rank.say(EventKind.NOTICE, "alert", "warning", "high", {"text": "x"})
            rank.say(EventKind.TAG, "stage", label)
        if rank.identity["primary"]:
            rank.say(EventKind.CONFIG, {"lr": "0.1", label: '"x"'})
            rank.say(EventKind.SUMMARY, {"best": "0.5"})
        if chance.random() < 0.3:
            rank.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
        return rank

    def _lines_of(self, run: str) -> list[list[Step]]:
        """Return what is delivered of a run, in lines within which the order counts."""
        chance = self._chance
        lines = []
        for number in range(chance.randrange(1, 5)):
            home = chance.randrange(3)
            label, place = f"rank{number}", {"run_id": run, "rank": number, "launch": run, "primary": number == 0}
            rank = self._rank(label, **place)
            line = [Step(payload, home) for payload in self._delivered(rank)]
            if chance.random() < 0.3:
                again = self._rank(label, **place | {"restart": 1, "start_us": START_US + 10_000_000 + number})
                line.append(Step(whole(again), chance.choice((home, chance.randrange(3)))))
            lines.append(line)
        lines += chance.choices(
            [self._merged(run), self._imported(run), self._unreadable(run), self._refused(run)], k=2
        )
        return lines

    def _delivered(self, rank: Rank) -> list[bytes]:
        """Return a rank's events in blocks: some overlap, some are lost, or its name comes last."""
        last, form = len(rank.events) - 1, self._chance.random()
        if form < 0.3:
            return [block_of((rank, 1, last)), block_of((rank, 0, 0))]
        if form < 0.6 and last > 3:
            agent = self._rank(f"agent{len(self._ranks)}", role="agent", run_id=rank.identity["run_id"], rank=None)
            agent.say(EventKind.LOST, rank.uuid, 2, 3, "disk")
            agent.say(EventKind.PEER, rank.uuid, {"state": "crashed", "reason": "gone", "produced": last + 3})
            return [block_of((rank, 0, 1)), block_of((rank, 4, last)), whole(agent)]
        middle = self._chance.randrange(last + 1)
        return [block_of((rank, 0, middle)), block_of((rank, max(0, middle - 2), last)), whole(rank)]

    def _merged(self, run: str) -> list[Step]:
        home = self._chance.randrange(3)
        own = self._rank("elsewhere", run_id=f"{run}-own", rank=None)
        before = block_of((own, 0, len(own.events) - 1))
        at = own.become(run_id=run, label="joined", rank=8, formerly=f"{run}-own")
        own.log(20, loss=0.5)
        return [Step(before, home), Step(block_of((own, at, at + 1)), home)]

    def _imported(self, run: str) -> list[Step]:
        values = self._rank("imported", run_id=f"{run}-imported")
        block = imported_block(head(f"{run}-imported"), metrics=values, uuid=values.uuid)
        return [Step(block, self._chance.randrange(3))]

    def _unreadable(self, run: str) -> list[Step]:
        block = bytearray(whole(self._rank("newer", run_id=run, rank=9)))
        block[4:6] = (7).to_bytes(2, "little")
        return [Step(bytes(block), self._chance.randrange(3))]

    def _refused(self, run: str) -> list[Step]:
        """Blocks of a node that the sender's key is not for, and perhaps a key that is for both."""
        home, sender = self._chance.randrange(3), f"{run}-sender"
        rank, other = self._rank("foreign", run_id=run, rank=10), self._rank("own", run_id=run, rank=11, node="node-b")
        line = [Step(whole(rank), home, sender, ["node-b"])]
        if self._chance.random() < 0.6:
            line.append(Step(whole(other), home, sender, ["node-a", "node-b"]))
        return line

    def _mixed(self, lines: list[list[Step]]) -> Iterator[Step]:
        while lines := [line for line in lines if line]:
            yield self._chance.choice(lines).pop(0)


def rows(source: Any, of: str, *, is_spread: bool = False) -> list[str]:
    where = f"WHERE label IS NOT NULL AND kind NOT IN {OWN_WORDS}" if is_spread and of == "events" else ""
    shown = "* EXCLUDE (last_seen_at)" if is_spread and of == "labels" else "*"  # that is when an event was received
    return sorted(repr(tuple(map(plain, row))) for row in source.sql(f"SELECT {shown} FROM {of} {where}"))


def plain(value: Any) -> Any:
    """Return a float to nine digits: sums depend on their order."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def asked(history: History) -> list[str]:
    return [*VIEWS, *(macro.format(run=run) for macro in MACROS for run in history.runs[:2])]


@pytest.mark.soak
def test_the_rows_of_one_collector_are_the_same_hot_and_cold(tmp_path: Path, rounds: Rounds) -> None:
    for seed in rounds(1):
        history, directory = History(seed), tmp_path / str(seed)
        (directory / "alone").mkdir(parents=True)
        index = Index(directory)
        store = publish_in_pieces(index, directory / "lake", history.steps, 5, take)
        expected = {of: rows(index, of) for of in asked(history)}
        without = Reader(store.url, directory / "alone")
        assert {of: rows(without, of) for of in asked(history)} == expected
        reader = Reader(store.url, directory, index.database.connection, index.log_id.hex())
        until = sorted(file.ranges["number"][1] for file in store.snapshot(COMPLETE))
        for share in (0.0, 0.5, 1.0):
            if share:
                index.database.drop_facts(until[round(share * len(until)) - 1])
            assert {of: rows(reader, of) for of in asked(history)} == expected
        rounds.count("steps", len(history.steps))
        for opened in (without, reader, index):
            opened.close()


@pytest.mark.soak
@pytest.mark.full
@pytest.mark.parametrize("n_logs", [2, 3])
def test_the_rows_of_several_collectors_are_those_of_one(tmp_path: Path, n_logs: int, rounds: Rounds) -> None:
    for seed in rounds(1):
        history, directory = History(seed), tmp_path / str(seed)
        directory.mkdir()
        one = Index(directory)
        take(one, *history.steps)
        logs = [Index(directory / f"collector {number}", bytes([200 + number]) * 16) for number in range(n_logs)]
        for number, index in enumerate(logs):
            steps = [step for step in history.steps if step.home is None or step.home % n_logs == number]
            publish_in_pieces(index, directory / "lake", steps, 3, take)
        url = f"file://{directory}/lake"
        readers = [Reader(url, directory)]
        readers += [Reader(url, index.directory, index.database.connection, index.log_id.hex()) for index in logs]
        for of in asked(history):
            expected = rows(one, of, is_spread=True)
            for reader in readers:
                assert rows(reader, of, is_spread=True) == expected, of
        rounds.count("steps", len(history.steps))
        for opened in (*readers, one, *logs):
            opened.close()
