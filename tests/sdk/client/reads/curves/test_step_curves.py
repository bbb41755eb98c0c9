"""Curves in buckets, compared with the same buckets computed in Python from all values.

Invariant: whatever the steps, attempts, NaN and infinities, and whichever level the buckets are read from, each bucket
has the values of the newest attempt of each label in it. The seed is printed.
"""

import itertools
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest

from chiplog_client.client import Client
from chiplog_client.reads.curves.step_curves import CurvesRequest, bucket_width, end_pieces, read_curves
from tests.support.hand_written import filled
from tests.support.marks import everyday
from tests.support.run_builder import NOW, PRODUCERS, RunBuilder, Sql
from tests.support.safeguard import proves

SEED = random.randrange(1 << 32)
KEYS = ("short", "negative", "huge", "odd", "long", "epoch")
N_LABELS = 5
LONG_STEPS = 6_000  # with 10 points, buckets of 1,024 steps: read from the level of 256


class Value(NamedTuple):
    """A logged number."""

    key: str
    label: str
    attempt: int
    step: int
    number: float


def draw_values() -> list[Value]:
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    values = []
    for label, attempt in itertools.product(range(N_LABELS), range(2)):
        if attempt and label % 2:
            continue
        again = draw.randrange(20, 40) if attempt else 0  # a later attempt starts from a checkpoint
        steps = {
            "short": range(again, draw.randrange(50, 60)),
            "negative": range(-97 + again, 20),
            "huge": sorted({draw.randrange(-(1 << 63), 1 << 63) for _ in range(30)}) if not attempt else [0],
            "odd": range(label, 60, draw.randrange(1, 4)),
            "long": range(again * 100, LONG_STEPS - label),
            "epoch": range(again, 60),
        }
        for key, places in steps.items():
            for step in places:
                number = draw.gauss(0, 1) if key != "epoch" else step // 10
                if key == "odd":
                    number = draw.choice([math.nan, math.inf, -math.inf, number, number])
                elif key == "short" and draw.random() < 0.2:
                    number = math.nan
                values.append(Value(key, f"rank{label}", attempt, step, float(number)))
    return values


@pytest.fixture(scope="module")
def values() -> list[Value]:
    return draw_values()


@pytest.fixture(scope="module")
def client(values: list[Value], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root: Path = tmp_path_factory.mktemp("curves")
    with filled(root, lambda database: fill(database, values)) as client:
        yield client


EPOCH = "TIMESTAMP '1970-01-01'"


def fill(database: duckdb.DuckDBPyConnection, values: list[Value]) -> None:
    build = RunBuilder(database, NOW)
    build.run("r")
    for rank, attempt in itertools.product(range(N_LABELS), range(2)):
        renumbered = (rank + attempt) % N_LABELS  # a launcher may renumber
        build.label("r", f"rank{rank}", attempt=attempt, rank=renumbered, produced=1)
    defined = {"where": "label = 'rank0' AND attempt = 0"}
    build.define("*", step_metric="epoch", seq=1, **defined)
    build.define("n*", "min", "odd", seq=2, **defined)
    build.define("sh*", "max", seq=3, **defined)
    build.names(KEYS)
    known = f"SELECT label, attempt, producer FROM {PRODUCERS}"
    producers = {(label, attempt): producer for label, attempt, producer in database.execute(known).fetchall()}
    names = {key: build.name(key) for key in KEYS}
    begun = datetime(2026, 1, 1)
    rows = [
        (
            *(producers[value.label, value.attempt], names[value.key], value.step, seq),
            *(begun + timedelta(milliseconds=seq), value.number),
        )
        for seq, value in enumerate(values)
    ]
    # A third is in the recent rows, which no level has.
    build.rows("metrics", [row for row in rows if row[3] % 3 > 0])
    build.rows("metrics_recent", [row for row in rows if row[3] % 3 == 0])


Buckets = dict[int, dict[str, list[float]]]


def expected(values: list[Value], key: str, width: int, first: int, last: int) -> Buckets:
    """Return the numbers (without NaN) of each label in each bucket."""
    attempts: dict[tuple[int, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for value in values:
        bucket = value.step - value.step % width
        if value.key == key and first <= value.step <= last:
            numbers = attempts[bucket, value.label][value.attempt]
            if not math.isnan(value.number):
                numbers.append(value.number)
    found: Buckets = defaultdict(dict)
    for (bucket, label), by_attempt in attempts.items():
        found[bucket][label] = by_attempt[max(by_attempt)]
    return found


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def is_same(found: float | None, wanted: float) -> bool:
    if found is None or math.isnan(found):
        return math.isnan(wanted)
    return found == wanted or math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)


def check(curve: dict[str, Any], values: list[Value], first: int | None = None, last: int | None = None) -> None:
    width = curve["width"]
    bounds = (curve["first_step"] if first is None else first, curve["last_step"] if last is None else last)
    start, end = bounds[0] - bounds[0] % width, bounds[1] - bounds[1] % width + width - 1
    wanted = expected(values, curve["key"], width, start, end)
    assert curve["step"] == sorted(wanted)
    for at, step in enumerate(curve["step"]):
        of = wanted[step]
        if curve["kind"] == "band":
            numbers = [number for some in of.values() for number in some]
            assert curve["n_present"][at] == len(of)
            assert is_same(curve["min"][at], min(numbers, default=math.nan))
            assert is_same(curve["max"][at], max(numbers, default=math.nan))
            means = [mean(some) for some in of.values() if not math.isnan(mean(some))]
            if all(map(math.isfinite, means)):
                assert is_same(curve["median"][at], statistics.median(means) if means else math.nan)
            if numbers:
                assert max(numbers) in of[curve["max_label"][at]] and min(numbers) in of[curve["min_label"][at]]
            continue
        assert len({line["label"] for line in curve["lines"]}) == len(curve["lines"])
        for line in curve["lines"]:
            numbers = of.get(line["label"], [])
            value = line["mean"][at]
            assert is_same(value, mean(numbers)), (step, line["label"])
            for name, function in (("min", min), ("max", max)):
                bound = line["mean"][at] if line[name] is None else line[name][at]
                assert is_same(bound, function(numbers) if numbers else math.nan)
            is_gap = line["label"] in of and not math.isfinite(mean(numbers))
            assert (at in line["gaps"]) == is_gap


@proves(
    "newest-attempt-is-drawn",
    "a step that was repeated after a restart is drawn as its newest attempt",
    part="max(attempt)",
    new="min(attempt)",
)
@pytest.mark.parametrize("points", everyday(2, [10, 1_000, 50]))
@pytest.mark.parametrize("lines_max", everyday(1, [16, 0]))
def test_buckets_are_those_of_all_values(client: Client, values: list[Value], points: int, lines_max: int) -> None:
    request = CurvesRequest("r", (*KEYS, "none"), points, lines_max=lines_max, values_max=0)
    curves = read_curves(client, request)
    assert [curve["key"] for curve in curves] == [*KEYS, "none"]
    for curve in curves[:-1]:
        assert curve["kind"] == ("lines" if lines_max else "band")
        assert curve["n_labels"] == N_LABELS
        assert len(curve["step"]) <= points + 1  # the first and the last bucket may be parts
        check(curve, values)
    assert (curves[-1]["kind"], curves[-1]["step"]) == ("none", [])


@pytest.mark.parametrize("key", everyday(1, ["short", "negative", "long"]))
def test_a_part_has_finer_buckets_that_are_whole(client: Client, values: list[Value], key: str) -> None:
    draw = random.Random(SEED)
    for _ in range(4):
        first, last = sorted(draw.sample(range(-50, 50 if key != "long" else LONG_STEPS), 2))
        [curve] = read_curves(client, CurvesRequest("r", (key,), 20, first, last, values_max=0))
        assert curve["width"] == bucket_width(last - first + 1, 20)
        check(curve, values, first, last)


@proves(
    "last-value-is-exact",
    "the last value of a curve in buckets is the one that was logged last",
    part="arg_max(f.value",
    new="arg_min(f.value",
)
@pytest.mark.parametrize("lines_max", [0, 16])
@pytest.mark.parametrize("points", everyday(1, [10, 100]))
@pytest.mark.parametrize("last", everyday(1, [33, None]))
def test_the_last_value_is_the_one_that_was_logged(
    client: Client, values: list[Value], points: int, lines_max: int, last: int | None
) -> None:
    request = CurvesRequest("r", KEYS, points, last=last, lines_max=lines_max, values_max=0)
    for curve in read_curves(client, request):
        ends = expected_ends(values, curve["key"], curve["width"], curve["step"][-1] + curve["width"] - 1)
        if lines_max:
            assert {line["label"]: line["last"] for line in curve["lines"]} == {
                label: {"step": step, "value": number if math.isfinite(number) else str(number)}
                for label, (step, number) in ends.items()
            }
            continue
        step = max(step for step, _ in ends.values())
        numbers = [number for at, number in ends.values() if at == step and not math.isnan(number)]
        assert curve["last"]["step"] == step
        if all(map(math.isfinite, numbers)) and numbers:
            wanted = [min(numbers), statistics.median(numbers), max(numbers)]
            assert [curve["last"][name] for name in ("min", "median", "max")] == pytest.approx(wanted)


def expected_ends(values: list[Value], key: str, width: int, last: int) -> dict[str, tuple[int, float]]:
    """Return the last step of each label with its value, of the newest attempt in the label's last bucket."""
    ends = {}
    for label in {value.label for value in values if value.key == key and value.step <= last}:
        own = [value for value in values if (value.key, value.label) == (key, label) and value.step <= last]
        bucket = max(value.step - value.step % width for value in own)
        newest = [value for value in own if value.step >= bucket]
        attempt = max(value.attempt for value in newest)
        end = max((value for value in newest if value.attempt == attempt), key=lambda value: value.step)
        ends[label] = (end.step, end.number)
    return ends


def fill_sparse(database: duckdb.DuckDBPyConnection) -> None:
    """One label: `few` has 1,999 values in 400,000 steps, `many` 2,000, `twice` two at each of three steps."""
    build = RunBuilder(database, EPOCH)
    build.run("r")
    build.ranks("r", produced=1)
    for key, n in (("few", 1_999), ("many", 2_000)):
        for steps, recent in ((range(1500), False), (range(1500, n), True)):
            series = {"steps": steps, "step": "step * 200", "at": "step / 1e6", "recent": recent}
            build.metrics({key: "sin(step)"}, **series)
    build.metrics({"twice": "step"}, steps=6, step="step // 2", at="step / 1e6")


def test_a_curve_of_few_values_has_each_of_them_at_its_step(tmp_path: Path) -> None:
    with filled(tmp_path, fill_sparse) as client:
        few, many, twice = read_curves(client, CurvesRequest("r", ("few", "many", "twice")))
        assert few["width"] == 1 and few["step"] == [i * 200 for i in range(1_999)]
        assert few["lines"][0]["mean"] == [math.sin(i) for i in range(1_999)]
        assert many["width"] == 1_024 and len(many["step"]) < 400
        assert many["lines"][0]["last"] == {"step": 1_999 * 200, "value": math.sin(1_999)}
        assert twice["lines"][0]["mean"] == [1.0, 3.0, 5.0], "the last value of a step counts"
        # A part of the steps that has one value less.
        [part] = read_curves(client, CurvesRequest("r", ("many",), first=77, last=1_999 * 200))
        assert part["width"] == 1 and part["step"] == [i * 200 for i in range(1, 2_000)]
        [end] = read_curves(client, CurvesRequest("r", ("many",), first=1_990 * 200, width=many["width"]))
        assert end["width"] == many["width"], "a page that follows the curve gets its buckets"


def fill_still(database: duckdb.DuckDBPyConnection) -> None:
    """Values at one step: `few` has 3 of a label each second, `many` 5,000, `once` one; 20 labels have 4 of `band`."""
    build = RunBuilder(database, EPOCH)
    build.run("r")
    build.ranks("r", 20, produced=1)
    few = "CASE WHEN step = 3 THEN 'nan' ELSE step::DOUBLE END"
    many = "CASE WHEN step = 2500 THEN 99 ELSE step % 7 END"
    still: dict[str, Any] = {"step": 7, "seq": "step"}
    build.metrics({"few": few}, steps=5, at="step / 2", where="rank = step % 2", **still)
    build.metrics({"few": 5}, at=2.5, where="rank = 1", recent=True, **still)
    build.metrics({"many": many}, steps=5_000, at="step / 1000", where="rank = 0", **still)
    build.metrics({"once": "step"}, steps=2, at="step / 1e6", where="rank = step", **still)
    at = "step // 20 + step % 20 / 1e6"
    build.metrics({"band": "step % 20"}, steps=80, at=at, where="rank = step % 20", **still)
    build.metrics({"x": "step * 10"}, steps=3, where="rank = 0", **still)


def test_a_metric_whose_steps_are_all_equal_is_a_curve_over_time(tmp_path: Path) -> None:
    with filled(tmp_path, fill_still) as client:
        few, many, once, band = read_curves(client, CurvesRequest("r", ("few", "many", "once", "band"), x="x"))
        assert (few["is_one_step"], few["width"], few["step"]) == (True, 1, [7] * 6)
        assert few["ts"] == [0, 500, 1000, 1500, 2000, 2500]
        assert [line["mean"] for line in few["lines"]] == [[0, None, 2, None, 4, None], [None, 1, None, None, None, 5]]
        assert [line["gaps"] for line in few["lines"]] == [[], [3]]
        assert [line["last"] for line in few["lines"]] == [{"step": 7, "value": 4}, {"step": 7, "value": 5}]
        assert few["x"] == [0, None, 10, None, 20, None]
        assert (many["is_one_step"], many["width_s"], set(many["step"])) == (True, 0.016384, {7})
        assert len(many["ts"]) == 306 and many["ts"] == sorted(many["ts"])
        [line] = many["lines"]
        assert (max(line["max"]), line["last"]) == (99, {"step": 7, "value": 4_999 % 7}), "no spike is lost"
        assert (once["is_one_step"], once["step"]) == (False, [7]), "of each label there is one value"
        assert (band["kind"], set(band["step"]), band["n_present"]) == ("band", {7}, [20] * 3)
        assert (band["min"], band["max"]) == ([0] * 3, [19] * 3)
        assert band["last"] == {"step": 7, "min": 0, "median": 9.5, "max": 19}
        [part] = read_curves(client, CurvesRequest("r", ("few",), first=0, width=1))
        assert part["ts"] == few["ts"], "a page that follows the curve gets all of it"
        [none] = read_curves(client, CurvesRequest("r", ("few",), first=8))
        assert none["step"] == []


def test_an_answer_that_would_be_too_large_has_buckets(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    request = CurvesRequest("r", ("short", "odd", "epoch"), 10)
    curves = read_curves(client, request)
    assert [curve["width"] for curve in curves] == [1, 1, 1]
    monkeypatch.setattr(
        "chiplog_client.reads.curves.step_curves.ANSWER_MAX", N_LABELS * min(curve["most_values"] for curve in curves)
    )
    assert sorted(curve["width"] for curve in read_curves(client, request)) == [1, 8, 8]


@pytest.mark.parametrize("n", [1, 5, 200])
def test_the_pieces_of_ends_are_few_and_have_all_last_buckets(n: int) -> None:
    starts = sorted(random.Random(SEED).sample(range(0, 1 << 40, 16), n))
    pieces = end_pieces(starts, 16)
    assert len(pieces) <= 32
    assert all(any(first <= start and start + 15 <= last for first, last in pieces) for start in starts)


def test_the_end_of_a_curve_has_the_buckets_of_the_whole(client: Client) -> None:
    [whole] = read_curves(client, CurvesRequest("r", ("long",), 100))
    assert whole["width"] == 64
    start = whole["step"][-10]
    [end] = read_curves(client, CurvesRequest("r", ("long",), 100, first=start + 3, width=whole["width"]))
    assert (end["width"], end["step"]) == (whole["width"], whole["step"][-10:])
    assert end["lines"][2]["mean"] == whole["lines"][2]["mean"][-10:]


def test_labels_are_chosen_and_those_behind_are_named(client: Client) -> None:
    [curve] = read_curves(client, CurvesRequest("r", ("long",), 10))
    assert (curve["n_labels"], curve["n_behind"], curve["newest_step"]) == (5, 4, LONG_STEPS - 1)
    assert (curve["behind"], curve["least_step"]) == (["rank4", "rank3", "rank2", "rank1"], LONG_STEPS - 5)
    [curve] = read_curves(client, CurvesRequest("r", ("long",), 10, labels=("rank1", "rank3")))
    assert [line["label"] for line in curve["lines"]] == ["rank1", "rank3"]
    assert (curve["n_behind"], curve["behind"]) == (1, ["rank3"])


def test_a_label_that_never_logged_what_most_of_its_kind_log_is_missing(tmp_path: Path) -> None:
    def fill_partly(database: duckdb.DuckDBPyConnection) -> None:
        """Four ranks, of which rank3 logs nothing, rank0 an evaluation too; three actors and a launcher."""
        build = RunBuilder(database, EPOCH)
        build.run("r")
        state = Sql("CASE WHEN rank <> 1 THEN 'finished' END")
        build.ranks("r", 4, job_type="train", state=state, produced=1)
        for actor in range(3):
            build.label("r", f"actor{actor}", job_type="act", state="finished", produced=1)
        build.label("r", "launcher", job_type="train", produced=1)
        steps = {"steps": 10, "at": "step / 1e6"}
        build.metrics({"loss": "step"}, where="rank < 3 AND step < 9 - rank", **steps)
        build.metrics({"eval": "step"}, where="rank = 0", **steps)
        build.metrics({"reward": "step"}, where="label IN ('actor0', 'actor2')", **steps)

    with filled(tmp_path, fill_partly) as client:
        loss, evaluated, reward = read_curves(client, CurvesRequest("r", ("loss", "eval", "reward")))
    assert (loss["n_labels"], loss["n_expected"], loss["n_peers"], loss["n_silent"]) == (3, 4, 4, 1)
    assert (loss["n_behind"], loss["behind"]) == (3, ["rank3", "rank2", "rank1"])
    assert (loss["least_step"], loss["least_running_step"], loss["n_values_ended"]) == (6, 7, 16)
    assert (evaluated["n_labels"], evaluated["n_expected"], evaluated["n_peers"]) == (1, 1, 4)
    assert (evaluated["n_behind"], evaluated["behind"]) == (0, [])
    assert (reward["n_labels"], reward["n_expected"], reward["n_peers"]) == (2, 3, 3)
    assert reward["behind"] == ["actor1"]


def test_labels_without_a_rank_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    def fill_twelve(database: duckdb.DuckDBPyConnection) -> None:
        build = RunBuilder(database, EPOCH)
        build.run("r")
        for worker in range(12):
            build.label("r", f"worker{worker}", produced=1)
        build.metrics({"loss": "producer"})

    with filled(tmp_path, fill_twelve) as client:
        [curve] = read_curves(client, CurvesRequest("r", ("loss",)))
    assert [line["label"] for line in curve["lines"]] == [f"worker{n}" for n in range(12)]


def test_x_is_the_mean_of_another_metric_in_each_bucket(client: Client, values: list[Value]) -> None:
    [curve] = read_curves(client, CurvesRequest("r", ("short",), 20, x="epoch", values_max=0))
    wanted = expected(values, "epoch", curve["width"], 0, 1_000)
    for step, x in zip(curve["step"], curve["x"], strict=True):
        assert is_same(x, statistics.mean(mean(some) for some in wanted[step].values()))
    [curve] = read_curves(client, CurvesRequest("r", ("short",), 20, x="none"))
    assert set(curve["x"]) == {None}


def test_x_is_the_step_metric_of_each_key_as_it_was_defined(client: Client) -> None:
    curves = read_curves(client, CurvesRequest("r", ("short", "negative", "odd", "epoch"), 20, is_x_defined=True))
    assert [curve["step_metric"] for curve in curves] == ["epoch", "odd", "epoch", None]
    assert [curve.get("x_name") for curve in curves] == ["epoch", "odd", "epoch", None]
    [wanted] = read_curves(client, CurvesRequest("r", ("short",), 20, x="epoch"))
    assert curves[0]["x"] == wanted["x"]


def test_the_width_of_buckets_is_the_least_power_of_two_that_is_enough() -> None:
    assert [bucket_width(n, 10) for n in (1, 10, 11, 20, 21, 1 << 64)] == [1, 1, 2, 2, 4, 1 << 61]
