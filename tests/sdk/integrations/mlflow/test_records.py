"""A run as MLflow shows it, of this process and of the database together."""

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def module() -> Any:
    from chiplog.integrations.mlflow import records

    return records


def _tags(module: Any, label: str = "a", ts: int = 1, **tags: str) -> dict[str, Any]:
    return {key: module.Tag(value, label, ts) for key, value in tags.items()}


@pytest.mark.parametrize(
    ("state", "tag", "label", "status"),
    [
        ("running", None, "a", "RUNNING"),
        ("crashed", None, "a", "FAILED"),
        ("crashed", "RUNNING", "a", "FAILED"),
        ("failed", "KILLED", "a", "KILLED"),
        ("running", "FINISHED", "a", "FINISHED"),  # opened again for a tag
        ("running", "FINISHED", "other", "RUNNING"),  # a rank that had joined it
        ("finished", "FAILED", "other", "FAILED"),
        ("unknown", None, "a", "RUNNING"),
    ],
)
def test_status_is_what_was_set_unless_the_primary_still_runs_or_has_died(
    module: Any, state: str, tag: str | None, label: str, status: str
) -> None:
    record = module.RunRecord("r", "0", state=state, primary_label="a", ended_ms=5)
    if tag is not None:
        record.tags[module.STATUS] = module.Tag(tag, label, 1)
    assert record.status == status
    assert (record.end_ms is None) == (status == "RUNNING")


def test_a_run_shows_tags_but_not_those_of_ours(module: Any) -> None:
    from chiplog.integrations.mlflow.addresses import Address

    record = module.RunRecord("r", "7", name="plain", created_ms=3)
    record.tags = _tags(module, **{"team": "x", module.USER: "me", module.START: "9", module.STAGE: "deleted"})
    record.tags["gone"] = module.Tag(None, "a", 1)
    run = module.to_run(Address(), record)
    assert run.data.tags == {"team": "x", "mlflow.runName": "plain"}
    info = run.info
    assert (info.user_id, info.start_time, info.lifecycle_stage, info.run_name) == ("me", 9, "deleted", "plain")
    assert info.artifact_uri == "chiplog:///r/artifacts"


def test_own_and_stored_parts_are_merged_by_time_and_by_the_first_param(module: Any) -> None:
    from mlflow.entities import Metric

    own = module.RunRecord("r", "0", tags=_tags(module, ts=5, stage="own", only="own"), params={"lr": "late", "x": "1"})
    own.metrics.add("loss", 1, 1, 0.5)
    stored = module.RunRecord("r", "8", state="finished", tags=_tags(module, ts=4, stage="old"), params={"lr": "first"})
    stored.tags |= _tags(module, ts=6, only="newer")
    stored.stored_metrics = [Metric("loss", 9.0, 1, 0), Metric("rank1/loss", 2.0, 1, 1)]
    found = module.merge(own, stored)
    assert {key: tag.value for key, tag in found.tags.items()} == {"stage": "own", "only": "newer"}
    assert (found.params, found.experiment_id) == ({"lr": "first", "x": "1"}, "8")
    assert {point.key: point.value for point in found.latest_metrics()} == {"loss": 0.5, "rank1/loss": 2.0}


@pytest.mark.parametrize(
    ("primary", "state", "status"),
    [
        (None, "finished", "RUNNING"),  # the database knows the end of this rank, and no rank 0 yet
        ("rank0", "running", "RUNNING"),
        ("rank0", "failed", "FAILED"),
    ],
)
def test_a_rank_that_has_ended_sees_the_status_of_the_primary(
    module: Any, primary: str | None, state: str, status: str
) -> None:
    own = module.RunRecord("r", "0", state="finished", inner=SimpleNamespace(label="rank1", is_primary=False))
    own.is_created = True
    own.tags = {key: module.Tag(value, "rank1", 1, False) for key, value in ((module.STATUS, "KILLED"), ("x", "y"))}
    found = module.merge(own, module.RunRecord("r", "0", state=state, primary_label=primary, ended_ms=5))
    assert (found.status, found.end_ms is None, found.tags) == (status, status == "RUNNING", {})
