"""A run's state from the ends of its labels: the primary decides, else the labels that set it, else the worst."""

from typing import Any

from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import START_US, Rank, whole
from tests.support.index import Index

ENDS: dict[str, dict[str, Any]] = {
    "finished": {"state": "finished", "exit_code": 0},
    "failed": {"state": "failed", "exit_code": 1, "reason": "ValueError: boom"},
    "crashed": {"state": "crashed", "exit_signal": 9, "reason": "killed by SIGKILL"},
}
# Who sets the run's state; how the first label of a run ends, then the second one; the run's state. None: it runs on.
CASES = [
    ("primary", "finished", "finished", "finished"),
    ("primary", "finished", "failed", "finished"),
    ("primary", "finished", "crashed", "finished"),
    ("primary", "finished", None, "finished"),
    ("primary", "failed", "finished", "failed"),
    ("primary", "failed", "crashed", "failed"),
    ("primary", "crashed", "finished", "crashed"),
    ("primary", "crashed", "failed", "crashed"),
    ("primary", None, "failed", "running"),
    ("primary", None, "crashed", "running"),
    ("both", "finished", "failed", "failed"),
    ("both", "failed", "finished", "finished"),
    ("both", "crashed", "finished", "finished"),
    ("both", "finished", "crashed", "crashed"),
    ("both", "finished", None, "running"),
    ("no label", "finished", "finished", "finished"),
    ("no label", "finished", "failed", "failed"),
    ("no label", "failed", "crashed", "crashed"),
    ("no label", "crashed", None, "running"),
]
SETS = {"primary": {}, "both": {"sets_run": True}, "no label": {"sets_run": False, "primary": False}}


def test_a_runs_state_is_its_primarys_else_the_last_that_sets_it_else_the_worst(index: Index) -> None:
    agent = Rank(250, role="agent")
    ranks = []
    for number, (who, *ends, _) in enumerate(CASES):
        for place, end in enumerate(ends):
            run_id = f"{number:02}"
            rank = Rank(2 * number + place, f"rank{place}", run_id=run_id, rank=place, **SETS[who])
            rank.become(primary=place == 0 and who != "no label")
            ranks.append(rank)
            if end is not None:
                agent.say(EventKind.PEER, rank.uuid, ENDS[end], ts=START_US + (place + 1) * 1_000_000)
    index.take(whole(*ranks, agent))
    states = index.sql("SELECT state FROM runs ORDER BY run_id")
    assert [(*case[:3], state) for case, (state,) in zip(CASES, states, strict=True)] == CASES
