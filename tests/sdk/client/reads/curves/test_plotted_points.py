"""The points of a picture: columns with both extremes, over steps, times and other metrics."""

from chiplog_client.client import Client
from chiplog_client.reads.curves.plotted_points import PointsRequest, read_plotted, read_plotted_band, read_survey
from tests.support.plotted_runs import SPIKE, SPIKE_STEP, STEPS, fill_plotted_runs

fill = fill_plotted_runs


def test_the_survey_counts_what_can_be_drawn(client: Client) -> None:
    [row] = read_survey(client, PointsRequest("gpt-a", "loss", labels=["rank1"], is_log_x=True))
    assert row == {"label": "rank1", "n": STEPS, "n_finite": STEPS, "n_drawn": STEPS - 1, "low": 1, "high": STEPS - 1}
    assert read_survey(client, PointsRequest("gpt-a", "none")) == []


def test_a_column_has_its_mean_and_both_extremes_at_their_own_x(client: Client) -> None:
    columns = read_plotted(client, PointsRequest("gpt-a", "grad_norm"), (0, STEPS - 1), 10)["rank2"]
    assert (SPIKE_STEP, SPIKE) in [(row["high_x"], row["high"]) for row in columns]
    assert [row["bucket"] for row in columns] == list(range(10))


def test_a_band_is_over_all_labels(client: Client) -> None:
    columns = read_plotted_band(client, PointsRequest("gpt-64", "grad_norm"), (0, STEPS - 1), 10)
    assert max(row["high"] for row in columns) == SPIKE and len(columns) == 10


def test_x_may_be_another_metric(client: Client) -> None:
    rows = read_survey(client, PointsRequest("gpt-a", "loss", "tokens"))
    assert {row["high"] for row in rows} == {(STEPS - 1) * 1000}


def test_one_x_is_one_column(client: Client) -> None:
    columns = read_plotted(client, PointsRequest("still", "loss"), (0, 0), 10)
    assert [len(rows) for rows in columns.values()] == [1]
