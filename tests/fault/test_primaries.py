"""Two primaries, a stale one, one that was restarted: one writer, the others refused, and each refusal is a row.

The reference model is one rule: a claim carries launch and restart count. Within one launch the higher
restart count wins; otherwise the holder keeps it until it has ended. Decided once, in log order; refusals recorded.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chiplog_collector.index.apply.applier import Applier
from chiplog_collector.index.apply.state import State
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import VIEWS, Rank, block_of, contents_of, records
from tests.support.index import Index, empty_database
from tests.support.node import Node
from tests.support.rounds import Rounds
from tests.support.safeguard import proves


@dataclass
class Claim:
    """One incarnation: its events, in order."""

    rank: Rank
    launch: str
    restart: int
    ends_at: int | None = None  # seq


@dataclass
class Model:
    """Who is primary, by the sentence alone."""

    holder: str | None = None
    launch: str = ""
    restart: int = 0
    members: dict[str, list[int]] = field(default_factory=dict)  # label -> incarnations that named it
    ended: set[int] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)

    def end(self, who: int) -> None:
        self.ended.add(who)

    def claim(self, who: int, label: str, launch: str, restart: int) -> None:
        self.members.setdefault(label, []).append(who)
        if self.holder == label:
            self.restart = max(restart, self.restart) if launch == self.launch else restart
            self.launch = launch
        elif self.holder is None or self._yields(launch, restart):
            self.holder, self.launch, self.restart = label, launch, restart
        else:
            self.refused.append(label)

    def _yields(self, launch: str, restart: int) -> bool:
        if launch == self.launch:
            return restart > self.restart
        assert self.holder is not None
        return all(who in self.ended for who in self.members[self.holder])


def claims_of(chooser: random.Random) -> list[Claim]:
    """Return up to seven incarnations that all claim to be primary, of few labels, launches and restart counts."""
    found = []
    for number in range(chooser.randint(2, 7)):
        launch, restart = chooser.choice(["one", "two"]), chooser.randint(0, 2)
        rank = Rank(number, chooser.choice(["rank0", "rank1", "eval"]), primary=True, launch=launch, restart=restart)
        rank.say(EventKind.CONFIG, {"by": json.dumps(f"{rank.label}/{number}")})
        claim = Claim(rank, launch, restart)
        if chooser.random() < 0.6:
            claim.ends_at = rank.say(EventKind.STATE, {"state": "finished"})
        found.append(claim)
    return found


def deliveries(chooser: random.Random, claims: list[Claim]) -> list[list[tuple[int, int]]]:
    """Return blocks of (claim, seq): every event at least once, in any order, some again."""
    events = [(n, seq) for n, claim in enumerate(claims) for seq in range(len(claim.rank.events))]
    events += chooser.sample(events, len(events) // 4)
    chooser.shuffle(events)
    blocks = []
    while events:
        size = chooser.randint(1, 4)
        blocks.append(list(dict.fromkeys(events[:size])))
        events = events[size:]
    return blocks


def expected(claims: list[Claim], blocks: Iterable[list[tuple[int, int]]]) -> Model:
    """Let the model see the same log: a block's events by producer, as first seen, and seq; each once."""
    model, done, order = Model(), set(), dict[int, int]()
    for block in blocks:
        for who, _ in block:
            order.setdefault(who, len(order))
        for who, seq in sorted(block, key=lambda event: (order[event[0]], event[1])):
            if (who, seq) in done:
                continue
            done.add((who, seq))
            claim = claims[who]
            if seq == 0:
                model.claim(who, claim.rank.label, claim.launch, claim.restart)
            elif seq == claim.ends_at:
                model.end(who)
    return model


def payload(claims: list[Claim], block: list[tuple[int, int]]) -> bytes:
    return block_of(*((claims[who].rank, seq, seq) for who, seq in block))


def refused(applier: Applier) -> list[str]:
    labels = {producer.producer: producer.label for producer in applier.state.producers.values()}
    return [str(labels[row[0]]) for row in applier.batch.rows.get("events", []) if row[3] == "primary_refused"]


@proves("higher-restart-is-primary", "within a launch the higher restart count wins", part=">", new=">=")
@proves(
    "stale-restart-changes-nothing",
    "a stale incarnation of the primary changes nothing",
    value="producer.launch, producer.restart",
)
@proves("refused-claim-is-row", "a refused claim is a row")
@pytest.mark.promise(7)
@pytest.mark.soak
def test_in_any_order_of_delivery_there_is_one_writer_and_it_is_the_models(rounds: Rounds) -> None:
    """Invariant: after every block at most one label is primary; at the end it is the model's, and so are refusals."""
    for seed in rounds(350):
        chooser = random.Random(seed)
        claims = claims_of(chooser)
        blocks = deliveries(chooser, claims)
        applier = Applier(State())
        for count, record in enumerate(records(*(payload(claims, block) for block in blocks))):
            applier.apply(record, record.number)
            if count % 2:
                writers = {p.label for p in applier.state.producers.values() if p.is_primary}
                assert len(writers) <= 1, f"seed {seed}: {writers}"
        model = expected(claims, blocks)
        run = applier.state.runs["r"]
        assert (run.primary_label, run.primary_launch, run.primary_restart) == (
            model.holder,
            model.launch,
            model.restart,
        ), f"seed {seed}"
        assert {p.label for p in applier.state.producers.values() if p.is_primary} == {model.holder}, f"seed {seed}"
        assert refused(applier) == model.refused, f"seed {seed}"
        rounds.count("claims", len(claims))
        rounds.count("refused", len(model.refused))


@pytest.mark.full
@pytest.mark.soak
def test_what_was_decided_is_the_same_after_restarts_of_the_index_and_a_rebuild(tmp_path: Path, rounds: Rounds) -> None:
    """Invariant: the config that SQL shows is the model's holder's, and a rebuild shows the same in every view."""
    from chiplog_collector.index.follower import LogFollower

    for seed in rounds(1):
        chooser = random.Random(seed)
        claims = claims_of(chooser)
        blocks = deliveries(chooser, claims)
        directory = tmp_path / str(seed)
        directory.mkdir()
        index = Index(directory)
        for block in blocks:
            index.take(payload(claims, block))
            if chooser.random() < 0.3:
                index.reopen()
        model = expected(claims, blocks)
        [(label, value)] = index.sql("SELECT label, value FROM config")
        assert label == model.holder, f"seed {seed}"
        assert json.loads(value).split("/")[0] == model.holder, f"seed {seed}"
        assert len(index.sql("SELECT * FROM events WHERE kind = 'primary_refused'")) == len(model.refused)
        database = empty_database(directory / "rebuilt.duckdb")
        follower = LogFollower(database, directory / "log")
        while follower.step(index.log.next_number):
            pass
        views = index.views()
        index.close()
        for name in VIEWS:
            rebuilt = contents_of(lambda query, at=database: at.connection.execute(query).fetchall(), name)
            assert rebuilt == views[name], f"seed {seed}: {name}"
        database.close()


WRITER = """
import sys, chiplog
run = chiplog.init(project="p", run_id="contested", label=sys.argv[1], primary=True, config={"by": sys.argv[1]},
                   capture_console=False)
run.log({"x": 1.0})
print("up", flush=True)
sys.stdin.readline()
run.finish()
"""


def start_writer(label: str) -> "subprocess.Popen[str]":
    """Start a process that claims to be the run's primary; it ends on request."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, label], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@proves("primary-kept-until-end", "the holder keeps it until it has ended", value="True")
@pytest.mark.promise(7)
def test_a_second_primary_changes_nothing_until_the_first_has_ended(node: Node) -> None:
    """Three processes, each a launch of its own, claim the same run, as after two `python train.py` by mistake."""
    first = start_writer("first")
    node.until("SELECT 1 FROM labels WHERE label = 'first'")
    second = start_writer("second")
    node.until("SELECT 1 FROM metrics WHERE label = 'second'")  # logged after its claim and its config
    [row] = node.sql("SELECT label, level, message FROM events WHERE kind = 'primary_refused'")
    assert row == {
        "label": "second",
        "level": "warning",
        "message": "second claims to be primary; first is, and has not ended",
    }
    assert node.sql("SELECT label, value FROM config") == [{"label": "first", "value": '"first"'}]
    assert [r["label"] for r in node.sql("SELECT label FROM events WHERE kind = 'config_refused'")] == ["second"]
    for process in (second, first):
        process.communicate("\n")
    node.until("SELECT count(*) AS n FROM labels WHERE state = 'finished'", lambda rows: rows[0]["n"] == 2)
    third = start_writer("third")
    node.until("SELECT label, value FROM config", lambda rows: rows == [{"label": "third", "value": '"third"'}])
    third.communicate("\n")
    again = start_writer("third")  # the primary, restarted: no claim of another's
    again.communicate("\n")
    node.until("SELECT count(*) AS n FROM labels WHERE label = 'third' AND is_primary", lambda rows: rows[0]["n"] == 2)
    assert node.sql("SELECT primary_label FROM runs") == [{"primary_label": "third"}]
    assert len(node.sql("SELECT 1 FROM events WHERE kind = 'primary_refused'")) == 1
