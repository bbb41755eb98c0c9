"""`chiplog show`: what it finds out about a run, as a page and as json."""

import json
import re
from typing import Any

import pytest

from tests.support.command_line import COLOURS, ON_ONE_WORKER
from tests.support.marks import everyday
from tests.support.safeguard import proves
from tests.support.shown_runs import labels_of

pytestmark = ON_ONE_WORKER


def test_show_has_everything_about_a_run(chiplog):
    code, text, _ = chiplog("show", "gpt-20260102", "--format", "json")
    assert code == 0
    found = json.loads(text)
    assert found["run_id"] == "gpt-20260102-7f3a91"
    assert found["completeness"] == {"produced": 4000, "stored": 4000, "lost": 0, "pending": 0}
    assert found["config"] == {"lr": 3e-4, "model": "gpt2"}
    assert [label["label"] for label in found["labels"]] == ["rank0", "rank1", "rank2", "rank3"]
    assert found["keys"] == [
        {
            "key": "lr",
            "points": 100,
            "labels": 1,
            "last_step": 99,
            "lowest": 2.99,
            "highest": 2.99,
            "last_values": {"rank0": 2.99},
            "summary": 2.99,
            "is_hidden": False,
        },
        {
            "key": "train/loss",
            "points": 400,
            "labels": 4,
            "last_step": 99,
            "lowest": 1.99,
            "highest": 1.99,
            "last_values": {f"rank{rank}": 1.99 for rank in range(4)},
            "summary": 1.99,
            "is_hidden": False,
        },
    ]


def test_show_says_how_labels_ended(chiplog):
    code, text, _ = chiplog("show", "gpt-20260103-11aa22")
    assert code == 0
    for part in ("rank0 *", "SIGKILL out of memory", "7 pending, 3 lost", "killed by SIGKILL", "03:04:05 UTC"):
        assert part in text
    assert "4000 produced = 3960 stored + 12 lost + 28 pending" in text


@pytest.mark.full
def test_show_lists_files_and_whether_they_have_arrived(chiplog):
    files = json.loads(chiplog("show", "gpt-20260102", "--format", "json")[1])["files"]
    assert [(file["path"], file["bytes"], file["stored"]) for file in files] == [
        ("ckpt/last.pt", 1_234_567, True),
        ("notes.txt", 12, False),
    ]
    text = chiplog("show", "gpt-20260102")[1]
    assert re.search(r"ckpt/last.pt +1,234,567 +aaaaaaaaaaaaaaaa +yes", text)
    assert re.search(r"notes.txt +12 +bbbbbbbbbbbbbbbb +not yet", text)


def test_show_says_where_a_run_ran_and_whose_config_differs(chiplog):
    shown = " ".join(chiplog("show", "gpt-20260102")[1].split())
    assert "commit 0123456789abcdef on main" in shown
    assert "command train.py 'a b'" in shown
    assert "config drift rank2: lr" in shown


@pytest.mark.parametrize("run", everyday(1, [[], ["latest"]]))
def test_show_takes_the_latest_run_if_none_is_named(chiplog, run):
    assert json.loads(chiplog("show", *run, "--format", "json")[1])["run_id"] == "vit-20260104-0042"


@pytest.mark.parametrize("width", everyday(1, [80, 120]))
def test_show_fits_a_terminal(on_terminal, width):
    text = COLOURS.sub("", on_terminal(width, "show", "gpt-20260103"))
    assert max(map(len, text.splitlines())) <= width
    assert "train/loss" in text


@pytest.mark.full
def test_times_may_be_local(chiplog):
    assert "04:04:05 CET" in chiplog("show", "gpt-20260102", "--local")[1]
    found = json.loads(chiplog("show", "gpt-20260102", "--local", "--format", "json")[1])
    assert found["created_at"].endswith("+01:00")


@pytest.mark.full
def test_all_of_it_can_be_asked_for(show: Any) -> None:
    assert len(labels_of(show("large", "--all"))) == 200
    found = json.loads(show("large", "--format", "json"))
    assert len(found["labels"]) == 200
    behind = [(label["label"], label["last_step"]) for label in found["labels"] if label["steps_behind"]]
    assert behind == [("rank7", 95)]


@pytest.mark.full
def test_time_per_phase_says_how_much_of_the_step_it_is_and_who_is_slowest(show: Any) -> None:
    page = show("small")
    assert re.search(r"\nstep +2 +2s +100% +rank0 2s\ndata +2 +1s +50% +rank1 1.5s\n", page)
    assert re.search(r"\nforward +4 +1.5s +25% +rank0 1.5s\n", page), "only steps whose length is known"
    phases = json.loads(show("small", "--format", "json"))["phases"]
    assert [(phase["phase"], phase["seconds"], phase["mean_s"]) for phase in phases] == [
        ("forward", 6.0, 1.5),
        ("step", 4.0, 2.0),
        ("data", 2.0, 1.0),
    ]


@proves(
    "phase-mean-of-all-steps",
    "the mean of a phase counts every step of every label",
    part="sum(seconds) / sum(times)",
    new="median(seconds / times)",
)
def test_the_mean_of_a_phase_is_that_of_all_steps_and_the_straggler_is_named(show: Any) -> None:
    page = show("skewed")
    assert re.search(r"\nforward +8 +7.12ms +rank3 25.5ms\n", page), page
    [phase] = json.loads(show("skewed", "--format", "json"))["phases"]
    assert phase["mean_s"] == pytest.approx(phase["seconds"] / phase["times"]) == pytest.approx(0.007125)


@proves(
    "last-step-of-newest-attempt",
    "the last step is that of the newest attempt",
    part="arg_max(last_step, attempt)",
    new="max(last_step)",
)
def test_the_last_step_of_a_metric_is_that_of_the_newest_attempt(show: Any) -> None:
    [loss] = json.loads(show("again", "--format", "json"))["keys"]
    assert (loss["points"], loss["last_step"], loss["last_values"]) == (383, 19, {"rank1": 381.0})


def test_who_failed_first_is_of_the_newest_attempt_in_which_a_rank_failed_and_says_which_that_was(show: Any) -> None:
    """A restart of a process that is not a rank does not hide a failure of a rank."""
    first = "eval failed first in attempt 0, 210 s before rank1: ValueError: eval 0; of the ranks first rank1: "
    assert f"{first}ValueError: train" in " ".join(show("again").split())
    assert json.loads(show("again", "--format", "json"))["first_failure"]["attempt"] == 0
