"""A lost agent's labels are crashed until it reconnects; a rebuild gives the same result."""

from pathlib import Path
from typing import Any

from chiplog_collector.index.apply.applier import Applier
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import Rank, apply, block_of, whole
from tests.support.index import Index
from tests.support.safeguard import proves

SENDER = b"S" * 16


def lost(silent_s: float = 12.0, sender: bytes = SENDER) -> tuple[int, bytes]:
    return Kind.PRESENCE, pack([sender, False, int(silent_s * 1e6), "node-a", "boot-1"])


def back(boot: str = "boot-1") -> tuple[int, bytes]:
    return Kind.PRESENCE, pack([SENDER, True, 0, "node-a", boot])


def states(applier: Applier) -> dict[str | None, tuple[Any, ...]]:
    return {p.label: (p.state, p.reason, p.is_presumed) for p in applier.state.producers.values() if p.role == "rank"}


def notices(applier: Applier) -> list[tuple[str, str]]:
    return [(row[3], row[5]) for row in applier.batch.rows.get("events", [])]


REASON = "node node-a is lost: its agent sent nothing for 12 s"


def test_the_running_labels_of_a_lost_agent_are_crashed_and_the_others_stay_as_they_are() -> None:
    done, running = Rank(0, boot="boot-1"), Rank(1, boot="boot-1")
    done.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    applier = apply(whole(done, running), lost(), lost())
    assert states(applier) == {"rank0": ("finished", None, False), "rank1": ("crashed", REASON, True)}
    assert notices(applier) == [("node_lost", f"{REASON}; rank1 may have ended")], "reported once"
    producer = applier.state.producers[running.uuid]
    assert producer.late_us == 2_000_000
    assert producer.ended_at is not None and producer.ended_at == applier.received_us - 2 - 10_000_000


def test_another_agents_silence_is_not_its_own() -> None:
    applier = apply(whole(Rank(0)), lost(sender=b"T" * 16))
    assert states(applier) == {"rank0": (None, None, False)}


def test_an_outage_only_delays() -> None:
    rank = Rank(0, boot="boot-1")
    applier = apply(whole(rank), lost(), back())
    assert states(applier) == {"rank0": (None, None, False)}
    assert [kind for kind, _ in notices(applier)] == ["node_lost", "node_back"]
    assert applier.state.producers[rank.uuid].ended_at is None


def test_no_process_outlives_its_machines_boot() -> None:
    applier = apply(whole(Rank(0, boot="boot-1"), Rank(1)), lost(), back("boot-2"))
    assert states(applier) == {"rank0": ("crashed", REASON, True), "rank1": (None, None, False)}, "one said no boot"
    assert notices(applier)[-1][1].endswith("its machine was rebooted, and its ranks are gone")


def test_what_is_said_of_an_end_itself_replaces_the_conclusion() -> None:
    rank, other, agent = Rank(0), Rank(1), Rank(9, role="agent")
    first = whole(rank, other, agent)
    rank.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    said = {"state": "crashed", "exit_signal": 9, "reason": "killed by SIGKILL", "produced": 1}
    agent.say(EventKind.PEER, other.uuid, said)
    applier = apply(first, lost(), whole(rank, agent), back())
    assert states(applier) == {"rank0": ("finished", None, False), "rank1": ("crashed", "killed by SIGKILL", False)}
    assert applier.state.producers[other.uuid].exit_signal == 9


def test_a_presence_that_cannot_be_read_costs_itself() -> None:
    for payload in (
        b"\xc1",
        pack([]),
        pack([SENDER, 1, 2, "", ""]),
        pack([SENDER, False, -1, "", ""]),
        pack(["x"] * 5),
    ):
        applier = apply(whole(Rank(0)), (Kind.PRESENCE, payload))
        assert [kind for kind, _ in notices(applier)] == ["quarantined"]
        assert states(applier) == {"rank0": (None, None, False)}


def test_the_database_knows_over_a_restart_who_is_presumed_to_have_ended(index: Index) -> None:
    rank = Rank(0, boot="boot-1", sets_run=True)
    index.take(whole(rank), lost())
    assert index.sql("SELECT state, reason FROM labels") == [("crashed", REASON)]
    assert index.sql("SELECT state FROM runs") == [("crashed",)]
    index.reopen()
    index.take(back())
    assert index.sql("SELECT state, ended_at FROM labels") == [("running", None)]
    assert index.sql("SELECT state, ended_at FROM runs") == [("running", None)]
    assert index.sql("SELECT kind, run_id FROM events ORDER BY ts") == [("node_lost", "r"), ("node_back", "r")]


def test_what_is_said_of_a_lost_node_is_the_same_after_a_restart_of_the_index(tmp_path: Path) -> None:
    """A label that was restarted is after the others in the database, and before them in the log."""
    said = []
    for restarts in (False, True):
        (tmp_path / str(restarts)).mkdir()
        index = Index(tmp_path / str(restarts))
        index.take(whole(Rank(1, restart=1)), whole(Rank(2, label="eval")))
        if restarts:
            index.reopen()
        index.take(lost())
        said.append(index.views())
        index.close()
    assert said[0] == said[1]
    assert any("rank1, eval may have ended" in row for row in said[0]["events"])


@proves("redelivered-label-runs-again", "a label whose events another agent delivers is running again", condition=False)
def test_a_label_whose_events_another_agent_brings_runs_on(index: Index) -> None:
    """Invariant: an agent with a new spool is another sender, and its node's ranks never stopped."""
    rank, still = Rank(0), Rank(1)
    index.take_from("A", whole(rank, still), restricted=False)
    index.take_from("A", lost(sender=b"A".ljust(16, b"-")), restricted=False)
    index.take_from("B", whole(rank), restricted=False)
    assert index.sql("SELECT DISTINCT state FROM labels") == [("crashed",)], "what was there before is no sign of life"
    at = rank.log(1, loss=1.0)
    index.take_from("B", block_of((rank, at, at)), restricted=False)
    assert index.sql("SELECT label, state, reason, ended_at FROM labels WHERE state = 'running'") == [
        ("rank0", "running", None, None)
    ]
    assert index.sql("SELECT kind, label FROM events ORDER BY ts") == [("node_lost", "rank0"), ("node_back", "rank0")]
    index.take_from("A", lost(sender=b"A".ljust(16, b"-")), restricted=False)
    assert index.sql("SELECT label, state FROM labels ORDER BY ALL") == [("rank0", "running"), ("rank1", "crashed")]


def test_what_a_lost_agent_itself_still_brings_is_no_sign_of_life() -> None:
    rank = Rank(0)
    first = whole(rank)
    rank.log(1, loss=1.0)
    assert states(apply(first, lost(), whole(rank))) == {"rank0": ("crashed", REASON, True)}
