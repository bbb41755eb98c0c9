"""The heat map: the excess over the median of each step, reduced by the maximum."""

import pytest

from chiplog_client.client import Client
from chiplog_client.reads import run_phases
from chiplog_client.reads.heat import HeatRequest, read_heat
from tests.support.safeguard import proves
from tests.support.slow_ranks import WIDE_RANKS, fill_rank_outside

fill = fill_rank_outside  # for the fixture `client`


@proves("heat-cell-is-the-maximum", "a slow rank is in a picture of any size", part="max(excess)", new="avg(excess)")
def test_one_slow_rank_of_1024_in_one_step_is_in_the_smallest_picture(client: Client) -> None:
    found = read_heat(client, HeatRequest("wide", "forward", rows=16, columns=10))
    assert (found["n_rows"], found["per_row"], found["width"]) == (16, WIDE_RANKS // 16, 4)
    [at] = [place for place, value in enumerate(found["excess"]) if value]
    row, column = divmod(at, found["n_columns"])
    assert found["excess"][at] * found["unit_s"] == pytest.approx(3.0)
    assert found["labels"][row * found["per_row"] + found["label"][at]] == "rank777"
    assert found["start"] + column * found["width"] + found["step"][at] == 17


def test_a_cell_is_the_difference_from_the_median_of_its_step(client: Client) -> None:
    found = read_heat(client, HeatRequest("slow", "data", first=398, last=401))
    assert (found["n_rows"], found["n_columns"], found["start"], found["width"]) == (8, 4, 398, 1)
    assert (found["label"], found["step"]) == (None, None), "cells have a single label and step"
    row = found["excess"][5 * 4 : 6 * 4]
    assert [value * found["unit_s"] for value in row] == pytest.approx([0, 0, 0.3, 0.3])
    assert found["typical_s"] == [0.1] * 4
    assert found["phases"] == ["step", "data", "forward", "backward", "outside"]


def test_the_time_outside_of_phases_is_compared_like_a_phase(client: Client) -> None:
    found = read_heat(client, HeatRequest("apart", "outside", first=59, last=61))
    assert (found["labels"], found["start"], found["width"]) == (["rank0", "rank1", "rank2", "rank3"], 59, 1)
    assert [value and round(value * found["unit_s"], 3) for value in found["excess"][:3]] == [0, 10, 0]
    assert found["excess"][3:] == [0] * 9
    assert found["typical_s"] == pytest.approx([0.1] * 3)


def test_chosen_labels_are_beside_the_median_of_all(client: Client) -> None:
    whole = read_heat(client, HeatRequest("slow", "data", first=398, last=401))
    found = read_heat(client, HeatRequest("slow", "data", first=398, last=401, labels=("rank5", "rank9")))
    assert (found["labels"], found["typical_s"]) == (["rank5"], whole["typical_s"])
    assert found["excess"] == whole["excess"][5 * 4 : 6 * 4]
    assert read_heat(client, HeatRequest("slow", "data", labels=("rank9",)))["n_columns"] == 0


def test_a_label_that_comes_after_the_names_were_read_has_no_row(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_heat(client, HeatRequest("slow", "data", first=398, last=401))
    monkeypatch.setattr(run_phases, "_LABELS", f"FROM ({run_phases._LABELS}) LIMIT 7")
    found = read_heat(client, HeatRequest("slow", "data", first=398, last=401))
    assert (found["n_rows"], found["excess"]) == (7, whole["excess"][: 7 * 4])


def test_new_columns_fit_those_of_the_whole(client: Client) -> None:
    whole = read_heat(client, HeatRequest("slow", "data", columns=100))
    end = read_heat(client, HeatRequest("slow", "data", columns=100, since=903))
    assert (whole["width"], end["width"], end["start"]) == (16, 16, 896)
    n = end["n_columns"]
    assert whole["typical_s"][-n:] == end["typical_s"]
    assert end["start"] == whole["start"] + (whole["n_columns"] - n) * whole["width"]


def test_a_run_without_phases_has_no_cells_and_an_unknown_phase_is_refused(client: Client) -> None:
    assert read_heat(client, HeatRequest("alone"))["n_columns"] == 0
    with pytest.raises(ValueError, match="has no phase 'nothing'; it has step, data"):
        read_heat(client, HeatRequest("slow", "nothing"))
