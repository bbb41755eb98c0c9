"""The phases of one step: whose are shown, in which order, and the medians beside them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_client.client import Client
from chiplog_client.reads.step_phases import LABELS_MAX, read_step
from tests.support.hand_written import filled
from tests.support.slow_ranks import fill_rank_outside


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root: Path = tmp_path_factory.mktemp("slow")
    with filled(root, fill_rank_outside) as client:
        yield client


def test_the_marked_label_comes_first_and_then_who_worked_longest(client: Client) -> None:
    found = read_step(client, "wide", 17, mark="rank3")
    labels = list(dict.fromkeys(row["label"] for row in found["rows"]))
    assert (labels[:2], len(labels), found["n_labels"]) == (["rank3", "rank777"], LABELS_MAX, 1024)


def test_a_choice_of_labels_leaves_the_median_that_of_all(client: Client) -> None:
    chosen = read_step(client, "wide", 17, labels=["rank777"])
    [row] = [row for row in chosen["rows"] if row["phase"] == "forward"]
    assert (row["label"], chosen["n_labels"], row["may_wait"]) == ("rank777", 1, False)
    assert (row["seconds"], row["typical_s"]) == pytest.approx((3.4, 0.4))


def test_a_step_without_phases_has_no_rows(client: Client) -> None:
    assert read_step(client, "wide", 1 << 40) == {"n_labels": 0, "rows": []}
