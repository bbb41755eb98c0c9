"""The description of a run: a change is recorded, and stays with a label that is not the primary."""

from dataclasses import replace
from typing import Any

from chiplog_schemas.model.events import EventKind


def test_a_change_is_part_of_the_settings_and_of_one_more_identity_event(run: Any, offline: Any) -> None:
    before = run._journal.next_seq
    run.tags = ["a", "b"]
    assert run.tags == ("a", "b") and run._journal.next_seq == before + 1
    run.finish()
    assert offline(EventKind.IDENTITY)[-1].fields["identity"]["tags"] == ["a", "b"]


def test_a_label_that_is_not_the_primary_reports_that_the_change_stays_with_it(run: Any) -> None:
    run._membership.identity = replace(run._membership.identity, primary=False)
    run.name = "renamed"
    assert run.name == "renamed" and run._diagnostics.counts["not_primary"] == 1


def test_a_finished_run_changes_nothing(run: Any) -> None:
    run.finish()
    run.name, run.notes = "late", "late"
    run._set_tag("stage", "late")
    assert run.name != "late" and run._diagnostics.counts["after_finish"] == 3


def test_a_tag_is_an_event_and_none_removes_it(run: Any, offline: Any) -> None:
    run._set_tag("stage", "draft")
    run._set_tag("stage", None)
    run.finish()
    assert [event.fields["value"] for event in offline(EventKind.TAG)] == ["draft", None]
