"""`log()`, its steps and its phases: nothing raises, nothing is dropped silently, and the journal has every value."""

import logging
import math
import resource
import struct
import threading
from collections import Counter

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import chiplog
from chiplog_schemas.codec import unpack
from chiplog_schemas.limits import KEY_BYTES_MAX, KEYS_MAX
from chiplog_schemas.model.events import EventKind
from tests.support.hostile import Hostile
from tests.support.safeguard import proves
from tests.support.sdk_events import counted, notices, numbers
from tests.support.waiting import WAIT_S


def test_numbers_texts_and_histograms_are_logged_with_their_steps(run, offline) -> None:
    run.log({"loss": 0.5, "n": 3})
    run.log({"loss": 0.25, "n": 4})
    run.log({"loss": np.float32(0.125), "n": True, "more": {"lr": torch.tensor(2.0)}}, step=10)
    run.log({"loss": 1.0}, step=-5)
    run.log({"loss": 2.0})
    run.log({"note": "a text", "h": chiplog.Histogram((0.0, 1.0, 2.0), (3.0, 4.0))}, step=11)
    run.finish()
    assert numbers(offline()) == [
        ("loss", 0, 0.5),
        ("n", 0, 3.0),
        ("loss", 1, 0.25),
        ("n", 1, 4.0),
        ("loss", 10, 0.125),
        ("n", 10, 1.0),
        ("more/lr", 10, 2.0),
        ("loss", -5, 1.0),
        ("loss", 11, 2.0),
    ]
    [text] = offline(EventKind.TEXT)
    assert (text.fields["key"], text.fields["value"], text.fields["step"]) == ("note", "a text", 11)
    [histogram] = offline(EventKind.HISTOGRAM)
    assert struct.unpack("<3d", histogram.fields["edges"]) == (0.0, 1.0, 2.0)
    assert struct.unpack("<2d", histogram.fields["counts"]) == (3.0, 4.0)


DEEP: dict = {"x": 1.0}
for _ in range(40):
    DEEP = {"d": DEEP}

# the logged data, its kind in the counts, and its key in the notice
BAD = [
    ({3: 1.0}, "key_not_string", "3"),
    ({"x": None}, "not_a_number", "x"),
    ({"x": "text", "y": [1]}, "not_a_number", "y"),
    ({"x": np.zeros(3)}, "array", "x"),
    ({"x": torch.zeros(2, 2)}, "array", "x"),
    ({"x": torch.empty((), device="meta")}, "unreadable", "x"),
    ({"k" * 10_000: 1.0}, "key_length", "k" * 60),
    ({"": 1.0}, "key_length", ""),
    ({"half \ud800": 1.0}, "key_not_text", "'half \\ud800'"),
    ({"x": 2**2000}, "number_too_large", "x"),
    ({"x": 1j}, "not_a_number", "x"),
    ({"x": Hostile()}, "not_a_number", "x"),
    (DEEP, "nested_too_deep", "/".join(["d"] * 17)),
    (None, "not_a_dict", "NoneType"),
    ([1], "not_a_dict", "list"),
    (Hostile(), "not_a_dict", "Hostile"),
    ({"x": "t" * 100_000}, "text_too_long", "x"),
    ({"x": chiplog.Histogram(tuple(range(200_001)), (0.0,) * 200_000)}, "event_too_large", "histogram"),
    ({"x": math.nan}, "not_finite", "x"),
    ({"x": -math.inf}, "not_finite", "x"),
]


@pytest.mark.parametrize(("data", "kind", "key"), BAD, ids=[f"{row[1]}-{index}" for index, row in enumerate(BAD)])
def test_bad_input_is_never_raised_but_counted_and_said_once_with_its_key(run, offline, caplog, data, kind, key):
    with caplog.at_level(logging.WARNING, "chiplog"):
        for _ in range(3):
            run.log(data)
        run.log({"good": 1.0})
    run.finish()
    events = offline()
    assert notices(events) == [(kind, key)]
    assert counted(events) == {kind: 3}
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("chiplog: ")
    assert key.strip("'") in caplog.records[0].getMessage() or len(key) > 40
    assert [entry for entry in numbers(events) if entry[0] == "good"] != []


@pytest.mark.parametrize(
    "step",
    [2**70, -(2**63) - 1, math.nan, math.inf, "x", [1], Hostile(), 2**20_000, 1j],
    ids=lambda step: type(step).__name__,
)
def test_a_step_that_is_no_int64_is_replaced_by_the_labels_own_count(run, offline, caplog, step) -> None:
    for _ in range(2):
        run.log({"x": 1.0, "fast": 1.0}, step=step)
    run.finish()
    events = offline()
    assert [step for key, step, _ in numbers(events) if key == "x"] == [0, 1]
    assert counted(events) == {"bad_step": 2}
    assert [kind for kind, _ in notices(events)] == ["bad_step"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("step", [1.5, np.float32(1.5), torch.tensor(1.5), "1"], ids=lambda step: type(step).__name__)
def test_a_step_that_had_to_be_made_an_integer_is_said(run, offline, step) -> None:
    for _ in range(2):
        run.log({"x": 1.0}, step=step)
    run.finish()
    events = offline()
    assert [step for _, step, _ in numbers(events)] == [1, 1]
    assert counted(events) == {"bad_step": 2}
    [said] = [e.fields["message"] for e in events if e.kind == EventKind.NOTICE and e.fields["notice"] == "bad_value"]
    assert said == f"step {step!r} is not an integer; 1 is used, so pass int() of it"


def test_two_values_of_one_name_in_one_call_are_said_and_the_later_one_is_kept(run, offline) -> None:
    run.log({"d": {"e": {"f": 1}}, "d/e/f": 2})
    run.finish()
    assert numbers(offline()) == [("d/e/f", 0, 2.0)]
    assert notices(offline()) == [("same_key", "d/e/f")]


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        ({"k" * 600: 1.0}, "has 600 bytes, the limit is 512; shorten it"),
        ({"y": [1, 2]}, "log each under a name of its own, their mean, or chiplog.Histogram.of(it)"),
        ({"y": None}, "leave it out, or log float('nan')"),
        ({"y": 1j}, "log its abs(), or its real and imag"),
        ({"y": object()}, "log float(value) or str(value)"),
        ({"y": Figure()}, "log chiplog.Figure(it)"),
        ({"y": Image.new("L", (1, 1))}, "log chiplog.Image(it)"),
        ({"y": torch.zeros((), device="meta")}, "log a number or short text"),
        ({"y": chiplog.Histogram(object())}, "give it numbers"),
    ],
)
def test_a_remedy_is_one_that_helps(run, caplog, data, remedy) -> None:
    run.log(data)
    assert caplog.text.strip().endswith(remedy)


def test_keywords_that_log_has_not_are_said_and_what_is_there_is_logged(run, offline, caplog) -> None:
    for _ in range(2):
        run.log(loss=1, lr=0.5)
        run.log({"x": 2.0}, commit=False)
        chiplog.log({"x": 3.0}, step=9, commit=True)
        chiplog.log(acc=0.5, step=9)
        run.log(acc=0.75, commit=True)
        run.log({"x": 4.0}, sync=Hostile())
        run.log({"x": 5.0}, loss=7)
        run.log()
        run.log(commit=False)
    run.finish()
    found = numbers(offline())
    assert [(key, value) for key, _, value in found[: len(found) // 2]] == [
        *(("loss", 1.0), ("lr", 0.5), ("x", 2.0), ("x", 3.0), ("acc", 0.5)),
        *(("acc", 0.75), ("x", 4.0), ("x", 5.0)),
    ]
    assert [step for key, step, _ in found if key == "acc"] == [9, 10, 9, 14]
    assert counted(offline()) == {"unknown_argument": 10, "not_a_dict": 4}
    said = [record.getMessage() for record in caplog.records]
    assert "chiplog: log() has no argument loss=, lr=, which is logged as if in a dict; log({'name': value})" in said
    assert (
        "chiplog: log() has no argument sync=, which is left out; pass the values of a step in one dict, or with the "
        "same step="
    ) in said
    assert "chiplog: log() was given nothing; log {'name': value}" in said


def test_nan_and_infinities_are_kept_also_on_the_fast_path(run, offline) -> None:
    for value in (1.0, math.nan, math.inf, -math.inf):
        run.log({"x": value, "y": 1.0})
    run.finish()
    xs = [value for key, _, value in numbers(offline()) if key == "x"]
    assert math.isnan(xs[1])
    assert [xs[0], *xs[2:]] == [1.0, math.inf, -math.inf]
    assert counted(offline()) == {"not_finite": 3}
    assert notices(offline()) == [("not_finite", "x")]


@pytest.mark.parametrize(
    "values",
    [[1e308, 1e308], [np.float32(3e38), np.float32(3e38)], [np.uint8(200), np.uint8(200)], [np.True_, np.True_]],
)
def test_finite_numbers_whose_sum_overflows_are_nothing_special(run, offline, values) -> None:
    for _ in range(3):
        run.log(dict(zip("ab", values, strict=True)))
    run.finish()
    assert [value for _, _, value in numbers(offline())] == [float(value) for value in values] * 3
    assert counted(offline()) == {}


@pytest.mark.full
def test_a_million_keys_are_bounded_and_the_first_ones_kept(run, offline, caplog) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for part in range(10):
        run.log({f"key{part}/{number}": 1.0 for number in range(100_000)})
    run.log({"key0/0": 2.0})
    assert len(run._keys) == KEYS_MAX
    assert len(caplog.records) <= 100
    run.finish()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB
    events = offline()
    found = numbers(events)
    assert [key for key, _, _ in found] == [f"key0/{number}" for number in range(KEYS_MAX)] + ["key0/0"]
    assert counted(events) == {"too_many_keys": 1_000_000 - KEYS_MAX}


def test_ever_new_combinations_of_keys_do_not_fill_the_memory(run) -> None:
    growing: dict[str, float] = {}
    for number in range(700):  # 245,000 keys in all
        growing[f"a rather long key of some metric {number}"] = 1.0
        run.log(growing)
    assert sum(map(len, run._key_sets)) <= 200_000


def test_one_call_larger_than_an_event_is_split(run, offline) -> None:
    data = {f"{number:05d}" + "k" * 300: float(number) for number in range(4000)}
    run.log(data, step=3)
    run.finish()
    found = numbers(offline())
    assert {key: value for key, _, value in found} == data
    assert len(found) == len(data)
    assert len(offline(EventKind.METRICS)) > 1


def test_a_phase_with_an_impossible_name_is_timed_for_nobody(run, offline, caplog) -> None:
    for name in ("", "p" * (KEY_BYTES_MAX + 1), "\ud800"):
        with run.phase(name):
            pass
    run.log({"loss": 1.0})
    run.finish()
    assert [unpack(event.fields["keys"]) for event in offline(EventKind.PHASES)] == [["\\ud800"]]
    assert counted(offline()) == {"phase_length": 2}


def test_a_histogram_of_what_is_no_numbers_is_counted_under_its_key(run, offline) -> None:
    run.log({"weights": chiplog.Histogram.of([None, "a"]), "loss": 1.0})
    run.log({"bins": chiplog.Histogram.of([1.0, 2.0], bins=0.5)})
    run.finish()
    assert notices(offline()) == [("not_a_histogram", "weights"), ("not_a_histogram", "bins")]
    assert [key for key, _, _ in numbers(offline())] == ["loss"]


def test_each_kind_of_fault_is_said_however_often_another_happens(run, offline, caplog) -> None:
    for number in range(500):
        run.log({f"bad{number}": None})
    run.log({"x" * 600: 1.0})
    run.finish()
    said = notices(offline())
    assert Counter(kind for kind, _ in said) == {"not_a_number": 10, "key_length": 1}
    assert len(caplog.records) == 11
    assert counted(offline()) == {"not_a_number": 500, "key_length": 1}


def test_what_is_logged_beside_a_finish_is_kept_or_said_to_be_refused(run, offline, caplog) -> None:
    """Every log() that returned is before the end, or counted."""
    n_logged = 0
    logged, go_on = threading.Event(), True

    def log() -> None:
        nonlocal n_logged
        while go_on:
            run.log({"x": 1.0})
            n_logged += 1
            if n_logged == 1000:
                logged.set()

    thread = threading.Thread(target=log)
    thread.start()
    logged.wait(WAIT_S)
    run.finish()
    go_on = False
    thread.join()
    run.log({"x": 1.0})
    events = offline()
    assert events[-1].kind == EventKind.STATE
    assert len(numbers(events)) + run._diagnostics.counts["after_finish"] == n_logged + 1
    assert [record.getMessage() for record in caplog.records] == [
        "chiplog: log() after finish() of r is not recorded; call init() again"
    ]


@proves("uncommitted-call-keeps-step", "log() after commit=False has the same step", part="is False", new="is Ellipsis")
def test_calls_with_commit_false_belong_to_the_step_of_the_next_call(run: chiplog.Run, offline, caplog) -> None:
    run.log({"a": 1.0})
    run.log({"b": 1.0}, commit=False)
    run.log({"c": 1.0}, None, False)
    run.log({"nested": {"d": "text"}, "e": 1.0}, commit=False)
    run.log({"f": 1.0}, commit=True)
    run.log({"g": 1.0})
    run.log({"h": 1.0}, step=2, commit=False)  # not the largest: the count continues
    run.log({"i": 1.0}, step=9, commit=False)
    run.log({"j": 1.0})
    run.log(commit=False)
    run.log({"k": 1.0})
    run.finish()
    steps = {key: step for key, step, _ in numbers(offline())}
    assert steps == {"a": 0, **dict.fromkeys("bcef", 1), "g": 2, "h": 2, "i": 9, "j": 9, "k": 10}
    assert len(caplog.records) == 1, "commit is no unknown argument; only the call without data is reported"
