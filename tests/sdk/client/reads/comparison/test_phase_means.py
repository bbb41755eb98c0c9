"""Seconds per step of the phases of several runs, against sums in Python."""

from pathlib import Path
from statistics import median

import pytest

from chiplog_client.reads.comparison.phase_means import read_phase_means
from tests.support.hand_written import filled
from tests.support.plotted_runs import fill_plotted_runs


def test_means_and_shares_are_those_of_all_steps_and_labels(tmp_path: Path) -> None:
    with filled(tmp_path, fill_plotted_runs) as client:
        found = {(row["run_id"], row["phase"]): row for row in read_phase_means(client, ["gpt-a", "gpt-b"])}
        rows = client.sql("FROM phase_times WHERE run_id IN ('gpt-a', 'gpt-b')").rows()
    assert found.keys() == {(row["run_id"], row["phase"]) for row in rows}
    for (run, phase), row in found.items():
        of_labels = [one for one in rows if (one["run_id"], one["phase"]) == (run, phase)]
        seconds, n_steps = sum(one["seconds"] for one in of_labels), sum(one["n_steps"] for one in of_labels)
        assert row["mean_s"] == pytest.approx(seconds / n_steps)
        assert row["label_s"] == pytest.approx(seconds / len(of_labels))
        assert row["median_s"] == pytest.approx(median(one["seconds"] / one["n_steps"] for one in of_labels))
        assert phase != "step" or row["share"] is None
