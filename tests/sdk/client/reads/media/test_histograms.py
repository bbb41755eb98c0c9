"""Histograms as a picture: rows of values, columns of steps, the largest count of each cell."""

import duckdb
import pytest

from chiplog_client.client import Client
from chiplog_client.reads.media import histograms
from chiplog_client.reads.media.histograms import HistogramsRequest, read_histograms, read_quantiles
from tests.support.media_run import SPIKE, fill_media_run
from tests.support.run_builder import RunBuilder
from tests.support.safeguard import proves


def fill(database: duckdb.DuckDBPyConnection) -> None:
    fill_media_run(database)
    edges = (
        "CASE step WHEN 0 THEN ['-inf'::DOUBLE, -1, 1, 'inf'::DOUBLE] WHEN 1 THEN [-1e308, 1e308] WHEN 2 THEN [3, 3] "
        "ELSE ['-inf'::DOUBLE, 'inf'::DOUBLE] END"
    )
    counts = "CASE step WHEN 0 THEN [1, 'nan'::DOUBLE, 2] ELSE [4] END"
    first = "run_id = 'plain' AND rank = 0"
    RunBuilder(database).histogram("weights", edges, counts, steps=4, at=0, where=first)


@proves(
    "histogram-cell-is-the-maximum",
    "values in a single step are in a picture of any size",
    part="max(n) AS n",
    new="avg(n) AS n",
)
def test_values_in_a_single_step_are_in_the_smallest_picture(client: Client) -> None:
    found = read_histograms(client, HistogramsRequest("media", "weights", rows=8, columns=10))
    assert (found["n"], found["n_labels"], found["width"], found["is_exact"]) == (1000, 2, 64, False)
    assert (found["edges"][0], found["edges"][-1]) == (-5.99, 10)
    n_columns = len(found["step"])
    cell = 7 * n_columns + SPIKE // 64
    assert (found["counts"][cell], found["at"][cell], found["largest"]) == (
        pytest.approx(5, abs=0.01),
        SPIKE,
        pytest.approx(16, 0.1),
    )
    assert found["n_steps"] == [64] * 7 + [52]
    cell = n_columns + 1  # −3.99 to −1.9925 in steps 64 to 127: the widest histogram is the last one
    assert (found["counts"][cell], found["at"][cell]) == (pytest.approx(1.956, abs=0.01), 127)


def test_what_comes_or_goes_between_the_queries_has_no_cell(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    request = HistogramsRequest("media", "grads")
    whole = read_histograms(client, request)
    monkeypatch.setattr(histograms, "_COLUMNS", histograms._COLUMNS + "LIMIT 2")  # the others are deleted
    found = read_histograms(client, request)
    assert (found["step"], found["counts"][:2]) == (whole["step"][:2], whole["counts"][:2])
    # One bin at first, and then more.
    monkeypatch.setattr(histograms, "_SPAN", f"SELECT * REPLACE (edges[:2] AS edges) FROM ({histograms._SPAN})")
    assert read_histograms(client, request)["counts"] == whole["counts"][:2]


def test_a_bin_counts_in_each_row_by_its_share(client: Client) -> None:
    request = HistogramsRequest("media", "weights", ("rank0",), first=100, last=100, low=-2.0, high=2.0, rows=10)
    found = read_histograms(client, request)
    assert (found["step"], found["at"], len(found["edges"])) == ([100], None, 11)
    assert found["counts"] == [1.6] * 10
    part = read_histograms(client, HistogramsRequest("media", "weights", ("rank0",), 100, 100, 1.0, 5.0, rows=4))
    assert part["counts"] == [4, 0, 0, 0], "values from 1 to 2 are four bins"


def test_equal_bins_are_the_rows(client: Client) -> None:
    found = read_histograms(client, HistogramsRequest("media", "grads", columns=600))
    assert (found["edges"], found["is_exact"], found["width"]) == ([0, 0.1, 1, 10], True, 1)
    assert found["step"][:3] == [0, 10, 20]
    assert found["counts"][:3] == [1000, 999, 998]
    assert [count for count in found["counts"][100:] if count] == [2]


def test_infinite_edges_end_where_the_finite_ones_do(client: Client) -> None:
    found = read_histograms(client, HistogramsRequest("plain", "weights", rows=4))
    assert (found["n"], found["edges"][0], found["edges"][-1]) == (4, -1e308, 1e308)
    columns = [[round(value, 3) for value in found["counts"][column::4]] for column in range(4)]
    assert columns == [[0.5, 0.5, 1, 1], [1] * 4, [0, 0, 4, 0], [1] * 4]


def test_quantiles_are_those_of_values_spread_evenly_in_a_bin(client: Client) -> None:
    found = read_quantiles(client, HistogramsRequest("media", "weights"), 100)
    assert found == {"step": 100, "n": 32, "min": -2, "max": 2} | {
        name: pytest.approx(value) for name, value in (("q05", -1.8), ("median", 0), ("q95", 1.8))
    }
    grads = read_quantiles(client, HistogramsRequest("media", "grads"), 100)
    assert grads is not None and (grads["n"], grads["min"], grads["max"]) == (1000, 0, 1)
    assert [grads[name] for name in ("q05", "median", "q95")] == [
        pytest.approx(0.1 * share * 1000 / 990) for share in (0.05, 0.5, 0.95)
    ]
    assert read_quantiles(client, HistogramsRequest("media", "grads"), 101) is None


def test_nothing_is_no_histogram(client: Client) -> None:
    assert read_histograms(client, HistogramsRequest("media", "nothing"))["n"] == 0
    assert read_histograms(client, HistogramsRequest("media", "weights", first=900))["n"] == 0
