"""The summary as W&B has it: nested, by the words of define_metric, with W&B's rules for NaN."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog
from chiplog.integrations.wandb.state.run_summary import Definitions, Summary, words_of


@pytest.fixture
def run(chiplog_dir: Path) -> Iterator[chiplog.Run]:
    with chiplog.init(mode="offline", label="rank0", capture_console=False) as run:
        yield run


@pytest.mark.parametrize(
    ("summary", "goal", "words"),
    [
        (None, None, []),
        ("copy", None, []),
        ("min,max", None, ["min", "max"]),
        ("none", None, ["none"]),
        ("best", "minimize", ["min"]),
        ("best", None, ["max"]),
    ],
)
def test_the_words_of_a_summary(summary: str | None, goal: str | None, words: list[str]) -> None:
    assert words_of(summary, goal) == words


def test_an_exact_name_counts_before_the_longest_pattern() -> None:
    definitions = Definitions()
    for name, word in (("*", "last"), ("val/*", "min"), ("val/loss", "max")):
        definitions.define(name, [word])
    assert [definitions.words(key) for key in ("val/loss", "val/acc", "x")] == [["max"], ["min"], ["last"]]


def test_logged_values_are_there_at_once_also_nested_and_assigned_ones_until_the_next(run: chiplog.Run) -> None:
    summary = Summary(run, Definitions())
    run.log({"loss": 2.0, "a": {"b": 1, "c": 2}})
    assert summary["loss"] == 2 and summary.a.b == 1 and dict(summary["a"]) == {"b": 1, "c": 2}
    summary["loss"] = 7
    summary["a"]["d"] = 3
    assert summary["loss"] == 7 and summary["a"]["d"] == 3
    run.log({"loss": 1.0})
    assert summary["loss"] == 1
    assert set(summary) == {"loss", "a/b", "a/c", "a/d"} and len(summary) == 4
    with pytest.raises(KeyError):
        _ = summary["typo"]
    with pytest.raises(AttributeError):
        _ = summary.typo


def test_a_key_that_had_a_dict_is_one_key_and_what_is_below_it_are_others(run: chiplog.Run) -> None:
    summary = Summary(run, Definitions())
    data = {"train": {"loss": 1.0, "deep": {"x": 2}}, "val/acc": 3, "train/other": 4}
    summary.note_logged(data)
    run.log(data)
    summary["set"] = {"by": {"hand": 5}}
    assert list(summary) == ["train", "val/acc", "set"]
    assert dict(summary)["train"]["deep"] == {"x": 2} and set(summary["train"]) == {"loss", "deep", "other"}
    assert repr(summary["set"]) == "{'by': {'hand': 5}}"


def test_what_the_run_had_is_there_until_it_is_logged_set_or_deleted(run: chiplog.Run) -> None:
    definitions = Definitions()
    definitions.define("low", ["min"])
    summary = Summary(run, definitions, lambda: {"loss": 1.0, "best": 9, "t/y": 4, "low": 0.5, "gone": 1})
    assert dict(summary) == {"loss": 1.0, "best": 9, "t/y": 4, "low": {"min": 0.5}, "gone": 1}
    assert summary["t"]["y"] == 4
    run.log({"loss": 2.0})
    summary["best"] = 10
    del summary["gone"]
    assert dict(summary) == {"loss": 2.0, "best": 10, "t/y": 4, "low": {"min": 0.5}}


def test_words_make_a_dict_and_one_nan_makes_minimum_and_mean_nan(run: chiplog.Run) -> None:
    definitions = Definitions()
    definitions.define("loss", ["min", "max", "last"])
    run._logged.keep_all()  # as define_metric() of the drop-in's run does for several words
    summary = Summary(run, definitions)
    for value in (3.0, 1.0, 2.0):
        run.log({"loss": value})
    assert summary["loss"] == {"min": 1, "max": 3, "last": 2}
    run.log({"loss": math.nan})
    assert math.isnan(summary["loss"]["min"])


def test_a_text_is_the_last_value_unless_a_number_follows(run: chiplog.Run) -> None:
    summary = Summary(run, Definitions())
    run.log({"note": "a"})
    summary.note_logged({"note": "a", "deep": {"note": "b"}})
    assert (summary["note"], summary["deep"]["note"]) == ("a", "b")
    run.log({"note": 1.0})
    assert summary["note"] == 1


def test_what_was_deleted_is_gone_also_from_sql(run: chiplog.Run) -> None:
    summary = Summary(run, Definitions())
    run.log({"a": {"b": 1}, "c": 2})
    del summary["a"]["b"]
    del summary["c"]
    assert dict(summary) == {}
