"""Who was slow, over HTTP: the sentence, the heat map, the phases of a step."""

from collections.abc import Iterator

import pytest

from tests.support.hand_written import hand_written, kept_open
from tests.support.page_client import PageClient, serving
from tests.support.slow_ranks import fill_rank_outside


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    root = tmp_path_factory.mktemp("slow")
    with hand_written(root) as database:
        fill_rank_outside(database)
    with kept_open(root), serving(root) as client:
        yield client.sign_in()


def test_the_verdict_is_computed_from_the_views(slow: PageClient) -> None:
    found = slow.get("runs/slow/verdict")
    assert "".join(part["text"] for part in found["parts"]) == (
        "rank5 cost 60 s between steps 400 and 599: its data phase took 4 times as long as the median; "
        "7 other labels waited in backward."
    )
    found = slow.get("runs/mixed/verdict")
    assert "".join(part["text"] for part in found["parts"]) == (
        "rank2 cost 12 s between steps 400 and 499: its forward phase took 30 % longer than the median; "
        "3 other labels waited in backward."
    )
    found = slow.get("runs/even/verdict")
    assert (found["is_slow"], found["parts"]) == (False, [{"text": "No rank was slow."}])
    assert slow.get("runs/alone/verdict")["parts"] == []


def test_the_verdict_names_a_rank_that_was_outside_of_phases_and_those_who_waited(slow: PageClient) -> None:
    found = slow.get("runs/apart/verdict")
    assert "".join(part["text"] for part in found["parts"]) == (
        "rank0 cost 10 s between steps 59 and 60: it spent 10 s outside of all phases; "
        "3 other labels waited in backward."
    )
    assert [found["culprit"][name] for name in ("label", "phase", "first", "last")] == ["rank0", "outside", 60, 60]
    assert ["".join(part["text"] for part in other) for other in found["others"]] == [
        "rank0 cost about 4.0 s outside of phases in step 80"
    ]


def test_the_heat_map_has_bounds(slow: PageClient) -> None:
    found = slow.get("runs/wide/heat?phase=forward")
    assert (found["n_rows"], found["n_columns"]) == (256, 24)
    answer = slow.ask("/api/runs/wide/heat?columns=9999")
    assert (answer.status, answer.json["error"]["message"]) == (400, "columns=9999 is not within 10 and 600")
    assert slow.ask("/api/runs/wide/heat?phase=none").status == 400


def test_the_phases_of_a_step_begin_with_the_chosen_label(slow: PageClient) -> None:
    found = slow.get("runs/wide/step?step=17&mark=rank3")
    at = {name: place for place, name in enumerate(found["columns"])}
    labels = list(dict.fromkeys(row[at["label"]] for row in found["rows"]))
    assert (labels[:2], len(labels), found["n_labels"]) == (["rank3", "rank777"], 64, 1024)
    [row] = [row for row in found["rows"] if row[at["label"]] == "rank777" and row[at["phase"]] == "forward"]
    assert row[at["seconds"]] == pytest.approx(3.4) and row[at["typical_s"]] == pytest.approx(0.4)
    assert slow.ask("/api/runs/wide/step?step=x").status == 400
    found = slow.get("runs/wide/step?step=17&label=rank777&label=rank3")
    assert (found["rows"][0][at["label"]], found["n_labels"]) == ("rank777", 2)
    assert row in found["rows"], "the median is that of all labels"


def test_the_time_outside_of_phases_has_a_row_in_its_step_without_phases_of_one_label(slow: PageClient) -> None:
    def outside(step: int) -> list[tuple[str, float, float]]:
        found = slow.get(f"runs/apart/step?step={step}")
        rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
        return [
            (row["label"], round(row["seconds"], 3), round(row["typical_s"], 3))
            for row in rows
            if row["phase"] == "outside"
        ]

    assert outside(60) == [("rank0", 10.1, 0.1), ("rank1", 0.1, 0.1), ("rank2", 0.1, 0.1), ("rank3", 0.1, 0.1)]
    assert outside(80)[0] == ("rank0", 0.1, 0.1), "the rest is in `checkpoint`"


def test_the_timeline_has_bounds(slow: PageClient) -> None:
    found = slow.get("runs/slow/timeline?first=398&last=401&rows=2&skip=4&order=rank")
    assert (found["labels"], found["n_labels"], len(found["bars"])) == (["rank4", "rank5"], 8, 8)
    answer = slow.ask("/api/runs/slow/timeline?rows=65")
    assert (answer.status, answer.json["error"]["message"]) == (400, "rows=65 is not within 1 and 64")
    assert slow.ask("/api/runs/slow/timeline?order=best").status == 400
