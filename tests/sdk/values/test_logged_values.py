"""What was logged, by key: any order of events gives what the view `summary` has. `log()` itself: tests/sdk/native."""

import math
import random
import struct
import threading
from collections import defaultdict

import pytest

from chiplog.values import logged_values
from chiplog.values.logged_values import LoggedValues, Tally
from tests.support.waiting import WAIT_S

SETS = [("a",), ("a", "b"), ("b", "a"), ("c", "d", "e")]
KINDS = {"a": "min", "b": "max", "c": "mean", "d": "first", "e": "last"}


def expected(kind: str, values: list[float]) -> float:
    plain = [value for value in values if not math.isnan(value)] or [math.nan]
    both = {"first": values[0], "last": values[-1], "min": min(plain), "max": max(plain)}
    return both.get(kind, sum(plain) / len(plain))


def add_in_c(memory: bytearray, number: int, values: tuple[float, ...]) -> None:
    """Add an event to a tally, as hot_path.c does it."""
    n = len(values)
    found = list(struct.unpack(f"{3 + 5 * n}d", memory))
    columns = [found[3 + n * column : 3 + n * (column + 1)] for column in range(5)]
    _, low, high, total, first = columns if found[0] else (values, values, values, [0.0] * n, values)
    counts = [found[0] + 1, found[1] if found[0] else number, number]
    added = [sum(pair) for pair in zip(total, values, strict=True)]
    rows = [values, map(min, low, values), map(max, high, values), added, first]
    struct.pack_into(f"{3 + 5 * n}d", memory, 0, *counts, *[value for row in rows for value in row])


@pytest.mark.parametrize("is_native", [True, False])
def test_every_order_of_events_gives_the_summary_of_all_values(
    monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    monkeypatch.setattr(logged_values, "hot_path", object() if is_native else None)
    for seed in range(40):
        draw = random.Random(seed)
        logged, truth = LoggedValues(), defaultdict(list)
        logged.define(lambda key: KINDS[key])
        for number in range(draw.choice([3, 50, 700])):
            keys = draw.choice(SETS)
            values = tuple(draw.choice([0.0, 1.0, -3.5, 1e300, draw.random()]) for _ in keys)
            put, memory = logged.begin_set(keys, is_numbered=True)
            if draw.random() < 0.05:
                logged.note((number, keys, (math.nan,) * len(keys)))
                values = (math.nan,) * len(keys)
            elif memory is not None and is_native and draw.random() < 0.8:
                add_in_c(memory, number, values)
            else:
                put((number, keys, values))
            for key, value in zip(keys, values, strict=True):
                truth[key].append(value)
            if draw.random() < 0.01:
                logged.forget_sets(logged.begin_set(draw.choice(SETS), is_numbered=True)[1])
        assert set(logged.list_keys()) == set(truth)
        for key, all_values in truth.items():
            assert logged.summarize(key) == pytest.approx(expected(KINDS[key], all_values), nan_ok=True), (seed, key)


def test_without_c_the_last_event_is_kept_until_a_summary_needs_all_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged_values, "hot_path", None)
    logged = LoggedValues()
    put, memory = logged.begin_set(("a", "b"), is_numbered=True)
    for number in range(1000):
        put((number, ("a", "b"), (float(number), -float(number))))
    assert memory is None and (logged.summarize("a"), logged.summarize("b")) == (999.0, -999.0)
    assert not logged.define(lambda key: "first")
    assert logged.define(lambda key: "max"), "the sets begin again"
    logged.forget_sets(None)
    put, memory = logged.begin_set(("a", "b"), is_numbered=True)
    put((1000, ("a", "b"), (5.0, 6.0)))
    put((1001, ("a", "b"), (4.0, 7.0)))
    assert (logged.summarize("a"), logged.summarize("b")) == (5.0, 7.0)


def test_without_c_all_values_are_kept_once_a_caller_asks_for_tallies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged_values, "hot_path", None)
    logged = LoggedValues()
    logged.begin_set(("a",), is_numbered=True)
    assert logged.keep_all(), "the sets begin again"
    logged.forget_sets(None)
    put, _ = logged.begin_set(("a",), is_numbered=True)
    for number, value in enumerate((3.0, 1.0, 2.0)):
        put((number, ("a",), (value,)))
    tally = logged.tally("a")
    assert tally is not None
    assert (tally.min, tally.max, tally.last) == (1.0, 3.0, 2.0)


def test_a_forked_child_begins_without_values_and_none_has_no_summary() -> None:
    logged = LoggedValues()
    logged.begin_set(("a",), is_numbered=True)
    logged.note((0, ("a",), (1.0,)))
    assert logged.summarize("a") == 1.0
    logged.reset()
    assert (logged.summarize("a"), logged.list_keys()) == (None, [])
    logged.note((0, ("a",), (2.0,)))
    logged.define(lambda key: "none")
    assert logged.summarize("a") is None


def test_a_reader_waits_for_values_that_another_thread_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(float):
        def __radd__(self, other: float) -> float:
            begun.set()
            assert released.wait(WAIT_S)
            return other + float(self)

    def read() -> None:
        found.append(logged.tally("a"))

    monkeypatch.setattr(logged_values, "_WAIT_S", WAIT_S)
    begun, released = threading.Event(), threading.Event()
    found: list[Tally | None] = []
    logged = LoggedValues()
    logged.note((1, ("a",), (Slow(2.0),)))
    first = threading.Thread(target=read)
    first.start()
    assert begun.wait(WAIT_S), "it has taken the event, and has not added it yet"
    second = threading.Thread(target=read)
    second.start()
    second.join(0.2)  # without the wait it has ended here
    released.set()
    for thread in (first, second):
        thread.join(WAIT_S)
    assert [tally and tally.last for tally in found] == [2.0, 2.0]
