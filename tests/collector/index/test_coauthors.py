"""A driver with an open run that starts ranks: rank 0 is the primary, and what either of them writes counts."""

import json
import zlib

import pytest

from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import START_US, Rank, block_of, whole
from tests.support.index import Index
from tests.support.safeguard import proves

REFUSALS = "SELECT kind FROM events WHERE kind LIKE '%refused' OR kind = 'config_drift' OR kind = 'quarantined'"
CONFIG = "SELECT key, value->>'$', label FROM config ORDER BY ALL"


def writes(producer: Rank, at_s: int, **config: object) -> Rank:
    """Have a producer write config and a file named by its label, and one that others save, too."""
    producer.say(EventKind.CONFIG, {key: json.dumps(value) for key, value in config.items()})
    for path in (f"{producer.label}.pt", "both.pt"):
        digest = bytes([producer.uuid[0]]) * 32
        producer.say(EventKind.FILE, path, at_s, digest, ts=START_US + at_s * 1_000_000)
    producer.say(
        EventKind.CONFIG_HASHES, 1, {key: f"{zlib.crc32(str(value).encode()):x}" for key, value in config.items()}
    )
    return producer


def driver(number: int = 0, **more: object) -> Rank:
    said = {
        "rank": None,
        "launch": f"process:{number}",
        "primary": True,
        "project": "p",
        "tags": ["d"],
        "sets_run": True,
    }
    return Rank(number, **({"label": "vm-driver"} | said | more))


def rank0(number: int = 1, launch: str = "spark-1", **more: object) -> Rank:
    said = {"rank": 0, "launch": launch, "primary": True, "parent": "vm-driver", "tags": ["r"], "notes": "of rank 0"}
    return Rank(number, **({"label": "rank0", "sets_run": True} | said | more))


@proves("child-rank-becomes-primary", "rank 0 of ranks that the primary started becomes the primary", value="False")
@proves("late-driver-not-refused", "a driver whose events arrive after its ranks' is not refused", condition=False)
@proves(
    "coauthor-rows-stay",
    "what a driver wrote stays when its ranks come",
    part="i.is_primary OR i.is_coauthor",
    new="i.is_primary",
)
@pytest.mark.parametrize("is_driver_first", [True, False])
def test_rank_0_is_primary_and_its_driver_writes_beside_it_whichever_came_first(
    index: Index, is_driver_first: bool
) -> None:
    notebook, zero = writes(driver(), 1, data="wiki", lr=0.1), writes(rank0(), 2, lr=0.2, batch=8)
    for producer in (notebook, zero) if is_driver_first else (zero, notebook):
        index.take(whole(producer))
        index.reopen()
    late = notebook.say(EventKind.CONFIG, {"best": "3"})
    index.take(block_of((notebook, late, late)))
    assert index.sql(REFUSALS) == []
    assert index.sql("SELECT primary_label, project, tags, notes FROM runs") == [
        ("rank0", "p", ["d", "r"] if is_driver_first else ["d"], "of rank 0")
    ]
    assert index.sql("SELECT label FROM labels WHERE is_primary") == [("rank0",)]
    assert index.sql(CONFIG) == [
        ("batch", "8", "rank0"),
        ("best", "3", "vm-driver"),
        ("data", "wiki", "vm-driver"),
        ("lr", "0.2", "rank0"),
    ]
    assert index.sql("SELECT path, bytes FROM files ORDER BY ALL") == [
        ("both.pt", 2),
        ("rank0.pt", 2),
        ("vm-driver.pt", 1),
    ]


def test_a_second_training_and_a_notebook_that_is_started_again_keep_what_was_written(index: Index) -> None:
    index.take(whole(writes(driver(), 1, data="wiki"), writes(rank0(), 2, lr=0.2)))
    index.take(whole(writes(rank0(2, "spark-2"), 3, lr=0.3)))
    index.take(whole(writes(driver(3), 4, best=1), writes(rank0(4, "spark-3"), 5, lr=0.4)))
    assert index.sql(REFUSALS) == []
    assert index.sql(CONFIG) == [("best", "1", "vm-driver"), ("data", "wiki", "vm-driver"), ("lr", "0.4", "rank0")]
    assert index.sql("SELECT count(*) FROM files") == [(3,)]


@proves(
    "late-launcher-not-primary",
    "a launcher that arrives after its training has ended does not take the run from it",
    condition=False,
)
@pytest.mark.parametrize("is_launcher_first", [True, False])
@pytest.mark.parametrize("trains", [{"rank": 0}, {"rank": 0, "node": "node-b"}, {"rank": None, "fallback": True}])
def test_a_training_is_primary_of_its_launchers_run_on_any_node_whichever_came_first(
    index: Index, trains: dict, is_launcher_first: bool
) -> None:
    said = {"rank": None, "primary": True, "fallback": True, "launch": "process:1", "tags": ["l"], "name": "by option"}
    launcher = Rank(1, "launcher-a", **said)
    claims = {"primary": True, "parent": "launcher-a", "launch": "process:2", "name": "by script", "tags": ["s"]}
    training = Rank(2, "main", **claims | trains)
    training.say(EventKind.CONFIG, {"lr": "1"})
    training.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    launcher.say(EventKind.STATE, {"state": "failed", "exit_code": 3, "reason": "python ended with exit code 3"})
    for producer in (launcher, training) if is_launcher_first else (training, launcher):
        index.take(whole(producer))
        index.reopen()
    assert index.sql(REFUSALS) == []
    assert index.sql("SELECT primary_label, state, exit_code FROM runs") == [("main", "finished", 0)]
    assert index.sql(CONFIG) == [("lr", "1", "main")]
    if is_launcher_first:
        assert index.sql("SELECT name, tags FROM runs") == [("by option", ["l", "s"])]


def test_a_launcher_whose_training_does_not_use_chiplog_has_the_state_of_the_run(index: Index) -> None:
    launcher = Rank(1, "launcher-a", rank=None, primary=True, fallback=True, launch="process:1")
    index.take(whole(launcher))
    assert index.sql("SELECT primary_label, state FROM runs") == [("launcher-a", "running")]
    launcher.say(EventKind.STATE, {"state": "failed", "exit_code": 3, "reason": "python ended with exit code 3"})
    index.take(whole(launcher))
    assert index.sql("SELECT primary_label, state, exit_code FROM runs") == [("launcher-a", "failed", 3)]


@pytest.mark.parametrize("other", [{"parent": "another"}, {"parent": None}, {"node": "node-b"}])
def test_a_rank_of_no_such_parent_takes_nothing_from_a_primary_that_lives(index: Index, other: dict) -> None:
    said = {name: value for name, value in other.items() if value is not None}
    stranger = rank0(**said)
    if other.get("parent", "") is None:
        stranger = Rank(1, "rank0", rank=0, launch="x", primary=True)
    index.take(whole(driver()), whole(writes(stranger, 2, lr=0.2)))
    assert index.sql("SELECT primary_label FROM runs") == [("vm-driver",)]
    assert ("primary_refused",) in index.sql(REFUSALS)
