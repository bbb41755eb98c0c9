"""Runs beside each other, over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.compared_runs import fill_compared_runs
from tests.support.hand_written import hand_written, kept_open
from tests.support.page_client import PageClient, serving
from tests.support.run_builder import RunBuilder


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    root = tmp_path_factory.mktemp("compared")
    with hand_written(root) as database:
        fill_compared_runs(database)
    with kept_open(root), serving(root) as client:
        yield client.sign_in()


def test_values_are_in_the_order_of_the_runs(client: PageClient) -> None:
    found = client.get("compare?run=run-2&run=run-1")
    assert [run["run_id"] for run in found["runs"]] == ["run-2", "run-1"]
    assert found["config"] == [
        {"key": "lr", "values": [0.2, 0.1], "is_same": False},
        {"key": "model", "values": ["gpt2", "gpt2"], "is_same": True},
    ]
    assert found["summary"] == [{"key": "loss", "values": [2, 3], "is_same": False}]
    steps = {row["key"]: row["values"] for row in found["phases"]}
    assert steps["data"] == pytest.approx([0.4, 0.1]) and steps["forward"] == pytest.approx([0.25, 0.25])
    medians = {row["key"]: row["values"] for row in found["phase_medians"]}
    assert medians["data"] == pytest.approx([0.4, 0.1]) and found["phase_shares"] == []


def test_attempts_of_a_label_are_added_and_true_is_not_1(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_compared_runs(database)
        build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
        build.label("run-1", "rank0", attempt=1, is_primary=True, rank=0, state="finished")
        build.delete("phases", "run_id = 'run-1'")
        # One step with 0.9 s of data, then an attempt of 99 steps with 0.1 s.
        for attempt, steps, data_s in ((0, [0], 0.9), (1, range(1, 100), 0.1)):
            where = f"run_id = 'run-1' AND rank = 0 AND attempt = {attempt}"
            build.phases({"data": data_s, "step": 1}, steps=steps, where=where)
        build.delete("config", "key = 'lr'")
        for run_id, value in (("run-1", True), ("run-2", 1)):
            build.config({"amp": value}, where=f"run_id = '{run_id}' AND is_primary AND attempt = 0")
    with serving(tmp_path) as client:
        found = client.sign_in().get("compare?run=run-1&run=run-2")
    assert found["config"][0] == {"key": "amp", "values": [True, 1], "is_same": False}
    for name in ("phase_shares", "phase_medians"):
        [row] = [row for row in found[name] if row["key"] == "data"]
        assert row["values"][0] == pytest.approx(0.108)


def test_two_to_ten_runs_that_are_there(client: PageClient) -> None:
    one = client.ask("/api/compare?run=run-1&run=run-1")
    assert (one.status, one.json["error"]["message"]) == (400, "1 values of run; give 2 to 10")
    gone = client.ask("/api/compare?run=run-1&run=gone")
    assert (gone.status, gone.json["error"]["message"]) == (404, "there is no run 'gone'")


def test_metrics_at_the_same_step_need_two_runs(client: PageClient) -> None:
    assert client.get("compare/metrics?run=run-1&run=run-2&step=3") == []
    wrong = client.ask("/api/compare/metrics?run=run-1")
    assert (wrong.status, wrong.json["error"]["message"]) == (400, "1 values of run; give 2 to 10")


def test_the_whole_of_runs_has_entries_without_metrics_and_machines(client: PageClient) -> None:
    assert client.get("compare/whole?run=run-1&run=run-2") == {"final": [], "best": [], "machines": []}
    wrong = client.ask("/api/compare/whole?run=run-1")
    assert (wrong.status, wrong.json["error"]["message"]) == (400, "1 values of run; give 2 to 10")
