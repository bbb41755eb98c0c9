"""From what a client asks to records of the log: complete, bounded, and refused in one line where it is wrong."""

import re

import pytest

from chiplog_collector.index.apply.state import State
from chiplog_collector.index.changes.change_plan import RequestRefused, _part_id, plan_request
from chiplog_collector.query.change_request import Elsewhere
from chiplog_schemas.model.change_record import CHANGE_BYTES_MAX, Action, encode_change
from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import Rank, apply, whole
from tests.support.safeguard import proves

pytestmark = pytest.mark.pure
ID = b"8 bytes!"


def ended(number: int, **identity: object) -> Rank:
    rank = Rank(number, **identity)  # type: ignore[arg-type]
    rank.say(EventKind.STATE, {"state": "finished"})
    return rank


def state_of(*ranks: Rank) -> State:
    return apply(whole(*ranks)).state


def test_a_deletion_names_all_producers_of_its_runs_and_their_consoles() -> None:
    rank, again, other, console = ended(0), ended(1, label="rank0", rank=0), ended(2, run_id="s"), Rank(5)
    console.events.clear()
    console.say(EventKind.IDENTITY, {"role": "console", "of": rank.uuid.hex()})
    state = state_of(rank, again, other, console, ended(3, run_id="kept"))
    plan = plan_request(state, ID, "delete", {"runs": ["r", "s", "r"], "why": "old"})
    [change] = plan.changes
    assert (change.id, change.action) == (ID, Action.DELETE)
    assert sorted(change.body["producers"]) == sorted(rank.uuid for rank in (rank, again, other, console))
    assert change.body["runs"] == ["r", "s"]
    assert plan.info == {"runs": 2, "labels": 2, "producers": 4}


def test_a_large_deletion_is_several_records_of_bounded_size_the_last_with_the_requests_id() -> None:
    state = state_of(*(ended(0, run_id=f"run-{number}") for number in range(1)))
    [template] = state.producers.values()
    run = state.runs["run-0"]
    for number in range(2, 10_000):
        from dataclasses import replace

        state.add_producer(replace(template, producer=number, uuid=number.to_bytes(16, "big"), label=f"rank{number}"))
    plan = plan_request(state, ID, "delete", {"runs": [run.run_id]})
    assert len(plan.changes) > 1
    assert all(len(encode_change(change)) <= CHANGE_BYTES_MAX for change in plan.changes)
    assert plan.changes[-1].id == ID
    assert len({change.id for change in plan.changes}) == len(plan.changes)
    named = [uuid for change in plan.changes for uuid in change.body["producers"]]
    assert sorted(named) == sorted(state.producers)


@proves(
    "large-deletion-continues",
    "a large deletion continues after a restart, although its first runs are deleted",
    value="False",
)
def test_a_large_deletion_that_was_interrupted_goes_on_with_what_is_left() -> None:
    state = state_of(*(ended(number, run_id=f"run-{number}") for number in range(3)))
    names = {"runs": ["run-0", "run-1", "run-gone"]}
    with pytest.raises(RequestRefused, match="run 'run-gone' is unknown"):
        plan_request(state, ID, "delete", names)
    state.managed.add(_part_id(ID, 0))
    [change] = plan_request(state, ID, "delete", names).changes
    assert change.body["runs"] == ["run-0", "run-1"]
    assert plan_request(state, ID, "delete", {"runs": ["run-gone"]}).changes[-1].id == ID


@proves("running-run-kept", "a run with a label that is not over is not deleted unless it is forced", new="pass")
def test_a_run_with_a_label_that_is_not_over_is_refused_unless_forced() -> None:
    state = state_of(ended(0), Rank(1), Rank(2))
    with pytest.raises(RequestRefused, match=re.escape("run r is running: rank1 and 1 more are not over")):
        plan_request(state, ID, "delete", {"runs": ["r"]})
    assert plan_request(state, ID, "delete", {"runs": ["r"], "force": True}).changes


def test_a_run_of_other_collectors_is_deleted_by_a_request_that_names_no_producer() -> None:
    others = {"far": Elsewhere("far", ("node-b",)), "on": Elsewhere("on", ("node-b",), ("rank7",))}
    state = state_of(ended(0))
    plan = plan_request(state, ID, "delete", {"runs": ["r", "far"]}, others.get)
    [change] = plan.changes
    assert (change.body["runs"], len(change.body["producers"])) == (["r", "far"], 1)
    assert plan.info["runs"] == 2
    assert plan.info["asked"] == ["node-b"]
    with pytest.raises(RequestRefused, match="run on is running: rank7 is not over"):
        plan_request(state, ID, "delete", {"runs": ["on"]}, others.get)
    assert plan_request(state, ID, "delete", {"runs": ["on"], "force": True}, others.get).changes
    edited = plan_request(state, ID, "edit", {"run": "far", "fields": {"name": "n"}}, others.get)
    assert edited.changes[0].body == {"run": "far", "fields": {"name": "n"}}
    assert edited.info == {"run_id": "far", "asked": ["node-b"]}
    others["far"] = Elsewhere("far", ("node-b", "node-c"), can_ask=False)
    with pytest.raises(RequestRefused, match="only be read here; delete it at the collector on node-b or node-c"):
        plan_request(state, ID, "delete", {"runs": ["far"]}, others.get)
    with pytest.raises(RequestRefused, match="only be read here; edit it at the collector on node-b or node-c"):
        plan_request(state, ID, "edit", {"run": "far", "fields": {"name": "n"}}, others.get)


def test_an_earlier_attempt_that_never_reported_its_end_does_not_keep_a_run() -> None:
    state = state_of(Rank(1, launch="first"), ended(2, label="rank1", rank=1, launch="second"))
    assert plan_request(state, ID, "delete", {"runs": ["r"]}).changes


def test_another_name_of_a_run_means_that_run() -> None:
    rank = Rank(0, run_id="provisional")
    rank.become(run_id="agreed", formerly="provisional")
    rank.say(EventKind.STATE, {"state": "finished"})
    [change] = plan_request(state_of(rank), ID, "delete", {"runs": ["provisional"]}).changes
    assert change.body["runs"] == ["agreed"]
    [change] = plan_request(state_of(rank), ID, "edit", {"run": "provisional", "fields": {"name": "n"}}).changes
    assert change.body == {"run": "agreed", "fields": {"name": "n"}}


@proves("change-carried-out-once", "a request that was carried out is not planned again", condition=False)
def test_a_request_that_was_carried_out_leaves_nothing_to_do() -> None:
    state = state_of(ended(0))
    state.managed.add(ID)
    assert plan_request(state, ID, "delete", {"runs": ["gone"]}).changes == []


def test_only_deleted_producers_are_restored() -> None:
    state = state_of(ended(0))
    state.deleted = {bytes([9]) * 16}
    [change] = plan_request(state, ID, "restore", {"producers": [bytes([9]) * 16, bytes([7]) * 16]}).changes
    assert change.body == {"producers": [bytes([9]) * 16]}
    assert plan_request(state, ID, "restore", {"producers": []}).changes == []


@pytest.mark.parametrize(
    ("action", "arguments", "says"),
    [
        ("explode", {}, "action 'explode' is unknown"),
        ("delete", {}, "give at least one run ID"),
        ("delete", {"runs": []}, "give at least one run ID"),
        ("delete", {"runs": ["nope"]}, "run 'nope' is unknown; the view runs lists all"),
        ("delete", {"runs": ["r"], "why": 3}, "the reason of a deletion is a text"),
        ("restore", {"producers": ["text"]}, "each by its 16 bytes"),
        ("edit", {"run": "nope", "fields": {"name": "n"}}, "run 'nope' is unknown"),
        ("edit", {"run": "r", "fields": {}}, "at least one field"),
        ("edit", {"run": "r", "fields": {"state": "finished"}}, "field 'state' cannot be edited; give one of project"),
        ("edit", {"run": "r", "fields": {"tags": "a"}}, "tags='a' is not what this field holds"),
        ("edit", {"run": "r", "fields": {"name": "n" * 2_000}}, "name exceeds its limit"),
        ("edit", {"run": "r", "fields": {"tags": [1.5]}}, "tags must be texts"),
        ("save_view", {"name": "v", "view": "[" * 20_000}, "view 'v' is not JSON"),
        ("save_view", {"name": "", "view": "{}"}, "1 to 128 characters"),
        ("save_view", {"name": "v", "view": "{"}, "view 'v' is not JSON"),
        ("save_view", {"name": "v", "view": "1" * 40_000}, "at most 32768 characters"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(action: str, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(RequestRefused, match=re.escape(says)) as caught:
        plan_request(state_of(ended(0)), ID, action, arguments)
    assert "\n" not in str(caught.value)
