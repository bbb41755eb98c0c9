"""Summaries as define_metric requests them, and configs that differ between ranks: views computed by hand."""

import math
import random
from typing import Any

import pytest

from chiplog_schemas.model.events import EventKind
from tests.support.collector_log import START_US, Rank, block_of, contents_of, whole
from tests.support.index import Index

NAN = float("nan")


def define(rank: Rank, name: str, **definition: str | bool) -> None:
    rank.say(EventKind.DEFINE, name, definition)


def hashes(rank: Rank, whole: bool = True, ts: int = START_US, **values: str) -> None:
    rank.say(EventKind.CONFIG_HASHES, int(whole), values, ts=ts)


def summary(index: Index) -> list[tuple[Any, ...]]:
    return index.sql("SELECT label, key, value FROM summary ORDER BY ALL")


def of_run(index: Index) -> list[tuple[Any, ...]]:
    return index.sql("SELECT key, value FROM run_summary ORDER BY ALL")


def drifts(index: Index) -> list[tuple[Any, ...]]:
    return index.sql("SELECT label, level, body->>'$.keys' FROM events WHERE kind = 'config_drift' ORDER BY ALL")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("min", "1.0"),
        ("max", "4.0"),
        ("mean", "2.3333333333333335"),
        ("last", '"nan"'),
        ("first", "4.0"),
    ],
)
def test_a_metric_is_summed_up_as_it_was_defined(index: Index, kind: str, expected: str) -> None:
    rank = Rank(0)
    define(rank, "loss", summary=kind)
    for step, value in enumerate((4.0, 1.0, 2.0, NAN)):
        rank.log(step, loss=value)
    index.take(whole(rank))
    assert summary(index) == [("rank0", "loss", expected)]
    assert of_run(index) == [("loss", expected)]


def test_a_metric_defined_as_none_has_no_summary_unless_one_was_set(index: Index) -> None:
    rank = Rank(0)
    define(rank, "debug/*", summary="none")
    rank.log(0, **{"debug/a": 1.0, "debug/b": 2.0, "loss": 3.0})
    rank.say(EventKind.SUMMARY, {"debug/b": "7"})
    index.take(whole(rank))
    assert summary(index) == [("rank0", "debug/b", "7"), ("rank0", "loss", "3.0")]
    assert of_run(index) == [("debug/b", "7"), ("loss", "3.0")]


def test_nan_alone_stays_nan_and_infinities_count(index: Index) -> None:
    rank = Rank(0)
    define(rank, "*", summary="min")
    rank.log(0, odd=NAN, low=-math.inf)
    rank.log(1, odd=NAN, low=5.0)
    index.take(whole(rank))
    assert summary(index) == [("rank0", "low", '"-inf"'), ("rank0", "odd", '"nan"')]


def test_a_name_wins_over_patterns_and_the_longer_pattern_over_the_shorter(index: Index) -> None:
    rank = Rank(0)
    define(rank, "val/loss", summary="min")
    define(rank, "val/*", summary="max")
    define(rank, "*", summary="first")
    define(rank, "val/l*", step_metric="epoch")
    for step, value in enumerate((2.0, 1.0, 3.0)):
        rank.log(step, **{"val/loss": value, "val/acc": value, "lr": value})
    index.take(whole(rank))
    assert summary(index) == [("rank0", "lr", "2.0"), ("rank0", "val/acc", "3.0"), ("rank0", "val/loss", "1.0")]


def test_the_last_word_of_a_label_counts_and_the_primarys_is_the_default_of_the_others(index: Index) -> None:
    """Any order of arrival gives the same."""
    zero, one, two = Rank(0), Rank(1), Rank(2)
    define(zero, "loss", summary="max")
    define(zero, "loss", summary="min")
    define(two, "loss", summary="first")
    for rank in (zero, one, two):
        for step, value in enumerate((2.0, 1.0, 3.0)):
            rank.log(step, loss=value + rank.uuid[0])
    for rank in random.Random(7).sample([zero, one, two], 3):
        index.take(whole(rank))
    offset = [rank.uuid[0] for rank in (zero, one, two)]
    assert summary(index) == [
        ("rank0", "loss", str(1.0 + offset[0])),
        ("rank1", "loss", str(1.0 + offset[1])),
        ("rank2", "loss", str(2.0 + offset[2])),
    ]


def test_the_runs_summary_is_of_all_labels_and_last_words_are_the_primarys(index: Index) -> None:
    zero, one, two = Rank(0), Rank(1), Rank(2)
    for name, kind in (("low", "min"), ("high", "max"), ("mean", "mean"), ("begin", "first")):
        define(zero, name, summary=kind)
    for rank, values in ((zero, (3.0, 5.0)), (one, (1.0, 9.0)), (two, (8.0,))):
        for step, value in enumerate(values):
            rank.log(step, low=value, high=value, mean=value, begin=value, end=value)
    two.log(5, only_here=2.0)
    one.log(5, only_here=1.0)
    one.say(EventKind.SUMMARY, {"best": "1", "end": "77"})
    zero.say(EventKind.SUMMARY, {"best": "0"})
    index.take(whole(two, one), whole(zero))
    assert dict(of_run(index)) == {
        "low": "1.0",
        "high": "9.0",
        "mean": str((3.0 + 5.0 + 1.0 + 9.0 + 8.0) / 5),
        "begin": "3.0",
        "end": "77",
        "only_here": "1.0",
        "best": "0",
    }


def test_attempts_of_a_label_are_one_summary(index: Index) -> None:
    first, second = Rank(10, "rank0", rank=0, primary=True), Rank(11, "rank0", rank=0, primary=True, restart=1)
    define(first, "a", summary="min")
    define(first, "b", summary="first")
    first.log(0, a=1.0, b=1.0, c=1.0)
    second.log(0, a=2.0, b=2.0, c=2.0)
    index.take(whole(second), whole(first))
    assert summary(index) == [("rank0", "a", "1.0"), ("rank0", "b", "1.0"), ("rank0", "c", "2.0")]


def test_definitions_can_be_read_with_their_step_metric(index: Index) -> None:
    rank = Rank(0)
    define(rank, "val/*", step_metric="epoch")
    define(rank, "loss", summary="min", step_metric="tokens", hidden=False)
    index.take(whole(rank))
    assert index.sql("SELECT * FROM metric_definitions ORDER BY name") == [
        ("r", "rank0", "loss", "min", "tokens", False),
        ("r", "rank0", "val/*", None, "epoch", None),
    ]


def test_a_metric_is_hidden_as_its_name_or_the_longest_pattern_says(index: Index) -> None:
    zero, one = Rank(0), Rank(1)
    define(zero, "*", hidden=True)
    define(zero, "val/*", summary="min")
    define(zero, "val/loss", hidden=False)
    define(zero, "lr", hidden=True)
    define(zero, "lr", hidden=True, summary="min")
    define(one, "lr", hidden=False)
    define(one, "only_here", hidden=False)
    define(one, "odd", hidden="yes")
    for rank in (zero, one):
        rank.log(0, **{"val/loss": 1.0, "val/acc": 1.0, "lr": 1.0, "only_here": 1.0, "odd": 1.0})
    other = Rank(2, run_id="other")
    other.log(0, lr=1.0)
    index.take(whole(one), whole(zero, other))
    hidden = index.sql("FROM base.hidden_metrics ORDER BY ALL")
    assert hidden == [("r", "lr"), ("r", "odd"), ("r", "val/acc")], "of one name the primary's counts"


def test_a_definition_that_no_sdk_of_ours_says_is_set_aside(index: Index) -> None:
    rank = Rank(0)
    define(rank, "loss", summary="median")
    rank.say(EventKind.DEFINE, 5, {})
    rank.say(EventKind.CONFIG_HASHES, 1, ["lr"])
    rank.log(0, loss=1.0)
    index.take(whole(rank))
    assert index.sql("SELECT count(*) FROM events WHERE kind = 'quarantined'") == [(3,)]
    assert summary(index) == [("rank0", "loss", "1.0")]


# -- drift --


def test_a_label_whose_config_differs_is_named_with_the_keys_whatever_came_first(index: Index) -> None:
    zero, one, two, three = (Rank(number) for number in range(4))
    hashes(zero, lr="aa", seed="00", **{"model/width": "cc"})
    hashes(one, lr="aa", seed="00", **{"model/width": "cc"})
    hashes(two, lr="bb", seed="00", extra="ee", **{"model/width": "cc"})
    hashes(three, lr="aa", **{"model/width": "dd"})
    index.take(whole(three), whole(two), whole(one))
    assert drifts(index) == [], "the primary has not spoken"
    index.take(whole(zero))
    assert drifts(index) == [
        ("rank2", "warning", '["extra","lr"]'),
        ("rank3", "warning", '["model/width","seed"]'),
    ]
    [(message,)] = index.sql("SELECT message FROM events WHERE kind = 'config_drift' AND label = 'rank2'")
    assert message == "rank2 has another config than rank0: extra, lr"


def test_the_last_word_of_the_newest_attempt_is_compared(index: Index) -> None:
    zero, one = Rank(0), Rank(10, "rank1", rank=1)
    again = Rank(11, "rank1", rank=1, restart=1)
    hashes(zero, lr="aa")
    hashes(one, lr="bb")
    index.take(whole(one, zero))
    assert [row[0] for row in drifts(index)] == ["rank1"]
    hashes(again, lr="aa")
    index.take(whole(again))
    assert drifts(index) == []
    hashes(again, lr="cc")
    seq = len(again.events) - 1
    index.take(block_of((again, seq, seq)))
    assert index.sql("SELECT attempt FROM events WHERE kind = 'config_drift'") == [(1,)]


def test_a_label_without_a_config_of_its_own_differs_only_in_what_it_set(index: Index) -> None:
    zero, one, two = (Rank(number) for number in range(3))
    hashes(zero, lr="aa", seed="00")
    hashes(one, whole=False, lr="aa")
    hashes(two, whole=False, lr="bb")
    index.take(whole(zero, one, two))
    assert drifts(index) == [("rank2", "warning", '["lr"]')]


def test_a_label_of_another_kind_of_job_may_have_another_config(index: Index) -> None:
    zero, evaluator = Rank(0, job_type="train"), Rank(5, "eval", job_type="eval")
    hashes(zero, lr="aa")
    hashes(evaluator, batch="01")
    index.take(whole(zero, evaluator))
    assert drifts(index) == []


def test_keys_may_be_of_any_characters_and_a_long_list_is_cut_in_the_message(index: Index) -> None:
    zero, one = Rank(0), Rank(1)
    hashes(zero)
    odd = {'a"b': "1", "$.x": "1", "\\": "1", "\udcff": "1", "": "1", "ü🙂": "1"}
    hashes(one, **odd, **{f"k{number:03}": "1" for number in range(100)})
    index.take(whole(zero, one))
    [(message, n_keys)] = index.sql(
        "SELECT message, json_array_length(body->'$.keys') FROM events WHERE kind = 'config_drift'"
    )
    assert n_keys == 106
    assert message.endswith("and 86 more")
    before = contents_of(index.sql, "events")
    index.reopen()
    assert contents_of(index.sql, "events") == before
