"""The identity of a run: before the group has agreed, after its answer, in a child, and for another init()."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from chiplog.identity.rendezvous import Agreement
from chiplog.recording.run import group_membership
from chiplog.recording.run.group_membership import GroupMembership
from chiplog.safety.diagnostics import Diagnostics


class _Rendezvous:
    """A group that answers as told."""

    def __init__(self, identity: Any) -> None:
        self.asked: list[str] = []
        self.waited: list[float] = []
        self.answer: Agreement | None = None

    def poll_group(self, candidate: str) -> None:
        self.asked.append(candidate)

    def take_answer(self, wait_s: float = 0.0) -> Agreement | None:
        self.waited.append(wait_s)
        answer, self.answer = self.answer, None
        return answer

    def with_group_rank(self, identity: Any, label_given: bool) -> Any:
        return replace(identity, rank=5)


@pytest.fixture
def make(run: Any, monkeypatch: Any) -> Any:
    """Build the membership of a process that no launcher has named, and the list of former identities."""
    monkeypatch.setattr(group_membership, "RunIdRendezvous", _Rendezvous)

    def build(is_finished: bool = False) -> tuple[GroupMembership, list[Any]]:
        identity = replace(run._settings.identity, run_id="own", rank=None, needs_agreement=True, run_id_is_final=False)
        identity = replace(identity, rank_from_launcher=False)
        settings = replace(run._settings, identity=identity, label_given=False)
        former: list[Any] = []
        diagnostics = Diagnostics(lambda *event: None)
        return GroupMembership(settings, diagnostics, former.append, lambda: is_finished), former

    return build


def test_the_answer_of_the_group_becomes_the_identity_and_is_announced_with_the_former_one(make: Any) -> None:
    membership, former = make()
    assert membership.current.rank == 5 and membership.identity.rank is None
    membership.rendezvous.answer = Agreement("agreed", 3, 8)
    membership.poll()
    assert (membership.identity.run_id, membership.identity.rank, membership.identity.world_size) == ("agreed", 3, 8)
    assert [identity.run_id for identity in former] == ["own"]


def test_finish_waits_for_the_answer_and_adopts_none_for_a_finished_run(make: Any) -> None:
    membership, former = make(is_finished=True)
    membership.rendezvous.answer = Agreement("agreed", 3, 8)
    membership.wait()
    assert membership.rendezvous.waited == [0.5] and membership.identity.run_id == "own" and former == []


def test_a_signal_handler_that_finishes_the_run_during_the_wait_does_not_wait_again(make: Any) -> None:
    membership, _ = make()
    waited: list[float] = []

    def interrupted(wait_s: float = 0.0) -> None:
        waited.append(wait_s)
        membership.wait()

    membership.rendezvous.take_answer = interrupted
    membership.wait()
    assert len(waited) == 1 and membership.awaits_group


def test_a_child_asks_no_group_and_has_its_own_label(make: Any) -> None:
    membership, _ = make()
    before = membership.identity.label
    membership.begin_in_child(None)
    membership.ask()
    membership.poll()
    assert membership.rendezvous.asked == [] and membership.identity.label != before


def test_another_init_means_this_run_by_its_first_or_current_id(make: Any) -> None:
    membership, _ = make()
    own = membership._settings
    membership.rendezvous.answer = Agreement("agreed", 3, 8)
    membership.poll()

    def asks_for(run_id: str, **given: Any) -> bool:
        identity = SimpleNamespace(run_id=run_id, label=membership.identity.label, needs_agreement=False)
        return membership.is_same(own, replace(own, identity=identity, **given))  # type: ignore[arg-type]

    assert asks_for("own") and asks_for("agreed") and not asks_for("other")


def test_a_demand_that_local_files_do_not_meet_is_reported(make: Any, caplog: Any) -> None:
    membership, _ = make()
    membership.identity = replace(membership.identity, demand="must", demand_launch="", primary=True)
    membership.watch_demand("resume='must', but run own does not exist", 0)
    assert "does not exist" in caplog.text
