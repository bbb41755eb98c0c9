"""Curves of a plot: which points stay, which run, label and attempt they are of, and how they are smoothed."""

import math
from collections.abc import Iterator

import click
import pytest

from chiplog_cli.charts.curves import Panel, PlotRequest, read_panels, smoothed
from chiplog_client.client import Client
from tests.support.hand_written import filled
from tests.support.plotted_runs import SPIKE, SPIKE_STEP, STEPS, fill_plotted_runs
from tests.support.safeguard import proves


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with filled(tmp_path_factory.mktemp("plotted"), fill_plotted_runs) as client:
        yield client


def panels(client: Client, run: str, *keys: str, **more: object) -> list[Panel]:
    return read_panels(client, PlotRequest(**{"runs": [run], "keys": keys, "n_buckets": 100, **more}))[0]  # type: ignore


def test_each_label_has_a_curve_with_its_last_value(client: Client) -> None:
    [panel] = panels(client, "gpt-a", "loss")
    assert (panel.title, panel.x_title) == ("loss", "step")
    assert [curve.name for curve in panel.curves] == ["rank0", "rank1", "rank2", "rank3"]
    assert [curve.last for curve in panel.curves] == [pytest.approx((1 + rank) / STEPS) for rank in range(4)]
    assert panel.x_range() == (0, STEPS - 1)
    assert all(curve.x == sorted(curve.x) and len(curve.x) <= 200 for curve in panel.curves)


@proves("spikes-stay", "a spike of one step stays in a plot", part="max(y) AS high", new="avg(y) AS high")
def test_a_spike_of_one_step_stays_at_its_place(client: Client) -> None:
    [panel] = panels(client, "gpt-a", "grad_norm", n_buckets=10)
    curve = panel.curves[2]
    assert (SPIKE_STEP, SPIKE) in zip(curve.x, curve.y, strict=True)
    assert panel.y_range() == (1.0, SPIKE)
    [panel] = panels(client, "gpt-64", "grad_norm", n_buckets=10)
    assert max(panel.curves[0].high or ()) == SPIKE


def test_infinite_values_are_left_out_and_counted(client: Client) -> None:
    _, notes = read_panels(client, PlotRequest(["gpt-a"], ["grad_norm"], 100))
    assert notes == ["40 of 4000 values of key 'grad_norm' of run 'gpt-a' are NaN or infinite, and left out"]


def test_many_labels_are_a_band_of_their_values_at_each_step(client: Client) -> None:
    [panel] = panels(client, "gpt-64", "loss", n_buckets=STEPS)
    [band] = panel.curves
    assert band.name == "64 labels: min, median, max"
    assert band.low is not None and band.high is not None
    assert (band.low[-1], band.last, band.high[-1]) == pytest.approx((1 / STEPS, 32.5 / STEPS, 64 / STEPS))
    assert len(panels(client, "gpt-64", "loss", curves_max=64)[0].curves) == 64
    assert len(panels(client, "gpt-64", "loss", x="time")[0].curves) == 1


def test_keys_have_a_panel_each_or_share_one(client: Client) -> None:
    assert [panel.title for panel in panels(client, "gpt-a", "loss", "tokens")] == ["loss", "tokens"]
    [panel] = panels(client, "gpt-a", "loss", "tokens", labels=["rank0"], is_together=True)
    assert [curve.name for curve in panel.curves] == ["loss", "tokens"]


def test_runs_share_a_panel(client: Client) -> None:
    [panel] = panels(client, "gpt-a", "loss", runs=["gpt-a", "gpt-b"], labels=["rank1"])
    assert [curve.name for curve in panel.curves] == ["gpt-a", "gpt-b"]
    assert [curve.x[-1] for curve in panel.curves] == [STEPS - 1, STEPS // 2 - 1]


def test_x_is_the_time_since_the_start_or_a_key(client: Client) -> None:
    [panel] = panels(client, "gpt-b", "loss", x="time")
    assert (panel.x_title, panel.x_range()) == ("time", (0.0, STEPS - 2.0))
    [panel] = panels(client, "gpt-a", "loss", x="tokens")
    assert (panel.x_title, panel.x_range()) == ("tokens", (0.0, (STEPS - 1) * 1000.0))


def test_the_step_metric_of_a_definition_is_x_unless_the_step_is_asked_for(client: Client) -> None:
    assert panels(client, "gpt-a", "by_tokens")[0].x_title == "tokens"
    assert panels(client, "gpt-a", "by_tokens", x="step")[0].x_title == "step"
    with pytest.raises(click.UsageError, match="different x axes: step, tokens; give one by --x"):
        panels(client, "gpt-a", "by_tokens", "loss", is_together=True)


def test_of_a_step_that_was_done_twice_the_newest_attempt_counts_and_in_time_both(client: Client) -> None:
    [panel] = panels(client, "again", "loss")
    assert panel.curves[0].y == [0, 1, 2, 3, 4, 105, 106, 107, 108, 109]
    [panel] = panels(client, "again", "loss", x="time")
    assert len(panel.curves[0].y) == 15


def test_a_series_whose_steps_are_all_equal_is_drawn_over_time(client: Client) -> None:
    [panel] = panels(client, "still", "loss")
    assert (panel.x_title, panel.is_time, panel.x_range()) == ("time (all steps are 0)", True, (0.0, 199.0))
    assert panel.curves[0].last == pytest.approx(math.exp(-199 / 50))
    [panel] = panels(client, "gpt-a", "loss", runs=["gpt-b", "still"], labels=["rank0"])
    assert (panel.x_title, panel.x_range()) == ("time (all steps of still are 0)", (0.0, STEPS - 2.0))
    [panel] = panels(client, "still", "loss", x="step")
    assert (panel.x_title, panel.is_time, panel.x_range()) == ("step", False, (0.0, 0.0))
    assert panels(client, "gpt-b", "only_b")[0].x_title == "step", "one value is a point"


def test_a_logarithmic_axis_leaves_out_what_is_not_above_0(client: Client) -> None:
    request = PlotRequest(["gpt-a"], ["loss"], 100, is_log_x=True, is_log_y=True)
    [panel], notes = read_panels(client, request)
    assert panel.x_range()[0] == 1.0
    assert notes == [
        "4 of 4000 points of key 'loss' of run 'gpt-a' are not above 0 on a logarithmic axis, and left out"
    ]


@pytest.mark.parametrize(
    ("run", "keys", "more", "message"),
    [
        ("gpt-a", ["los"], {}, "key 'los' of run 'gpt-a' is unknown; did you mean 'loss'"),
        ("gpt-a", ["nan"], {}, "key 'nan' of run 'gpt-a' has no finite value: all 400 are NaN or infinite"),
        ("gpt-a", ["loss"], {"labels": ["rank9"]}, "label 'rank9' of run 'gpt-a' is unknown"),
        ("gpt-a", ["loss"], {"x": "token"}, "key 'token' of run 'gpt-a' is unknown; did you mean 'tokens'"),
        ("gpt-b", ["only_b"], {"labels": ["rank1"], "x": "nan"}, "key 'nan' of run 'gpt-b' is unknown"),
        ("gpt-a", ["nan"], {"x": "loss"}, "has no finite value"),
    ],
)
def test_what_cannot_be_plotted_is_named(client: Client, run: str, keys: list[str], more: dict, message: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        panels(client, run, *keys, **more)
    assert message in raised.value.message


def test_smoothing_is_the_moving_average_without_the_bias_of_its_start() -> None:
    values = [3.0, -1.0, 4.0, 1.0, -5.0]
    average, shown = 0.0, []
    for number, value in enumerate(values, 1):
        average = 0.6 * average + 0.4 * value
        shown.append(average / (1 - 0.6**number))
    assert smoothed(values, 0.6) == pytest.approx(shown)
    assert smoothed(values, 0.6)[0] == pytest.approx(3.0)
    assert smoothed([7.0] * 20, 0.99) == pytest.approx([7.0] * 20)
    assert smoothed(values, 0.0) == values


def test_a_mean_of_several_points_counts_as_that_many_points() -> None:
    assert smoothed([1.0, 2.0], 0.9, [1, 5])[-1] == pytest.approx(smoothed([1.0, *[2.0] * 5], 0.9)[-1])


def test_a_smoothed_curve_does_not_depend_on_the_width(client: Client) -> None:
    last = [panels(client, "gpt-a", "loss", smooth=0.9, n_buckets=n)[0].curves[0].last for n in (STEPS, STEPS // 4)]
    assert math.isclose(*last, rel_tol=0.01)
