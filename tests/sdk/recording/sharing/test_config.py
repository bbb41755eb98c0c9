"""Configs and values that no program should pass: one line each, nothing raised, the rest is kept."""

import json
import logging
import os
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import chiplog
from chiplog_schemas.model.events import EventKind
from tests.support.sdk_events import counted, notices, numbers


class Evil:
    """Raises on every access."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class EvilError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")


class EvilDict(dict):
    def items(self):
        raise EvilError


def cycle() -> dict[str, Any]:
    made: dict[str, Any] = {"inner": {"list": []}, "fine": 1}
    made["inner"]["list"].append(made)
    return made


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(100_000):
        made = [made]
    return made


def endless() -> Any:
    class Endless(dict):
        def items(self):
            yield "again", Endless()

    return Endless(x=1)


# bad values of a config, and what is recorded instead
BAD = {
    "evil": lambda: (Evil(), "<Evil>"),
    "evil dict": lambda: (EvilDict(a=1), "<EvilDict>"),
    "cycle": lambda: (cycle(), {"inner": {"list": ["<cycle>"]}, "fine": 1}),
    "deep": lambda: (deep(), None),
    "endless": lambda: (endless(), None),
    "100 MB of text": lambda: ("x" * 100_000_000, None),
    "ten million numbers": lambda: ([0] * 10_000_000, "<list of 10000000 values>"),
    "ten million rows": lambda: ({"rows": [[0] * 10] * 1_000_000}, {"rows": "<list of 1000000 values>"}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_config_that_cannot_be_written_costs_one_line_and_its_own_value(chiplog_dir, offline, caplog, name) -> None:
    value, expected = BAD[name]()
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "chiplog"):
        run = chiplog.init(mode="offline", config={"lr": 0.1, "bad": value, "seed": 7}, capture_console=False)
        run.log({"x": 1.0})
        run.finish()
    assert time.monotonic() - began < 60, "an end, not a time"
    said = {key: json.loads(text) for e in offline(EventKind.CONFIG) for key, text in e.fields["values"].items()}
    assert (said["lr"], said["seed"]) == (0.1, 7)
    if expected is not None:
        assert said["bad"] == expected
    [line] = [record.getMessage() for record in caplog.records]
    assert "'bad'" in line
    assert "plain values" in line
    assert "\n" not in line
    assert notices(offline()) == [("not_json", "config 'bad'")]
    assert numbers(offline()) == [("x", 0, 1.0)]


def test_what_is_no_config_is_left_out_in_a_line_that_helps(chiplog_dir, caplog) -> None:
    with open(os.devnull) as file:
        for config, kind in ((file, "TextIOWrapper"), ("lr: 3", "str"), ([1], "list")):
            run = chiplog.init(mode="offline", config=config, capture_console=False)
            run.finish()
            assert dict(run.config) == {}
            line = caplog.records[-1].getMessage()
            assert line == f"chiplog: config of type {kind} is not a mapping and is ignored; give a dict"


def test_a_summary_is_read_the_same_way(chiplog_dir, offline) -> None:
    run = chiplog.init(mode="offline", capture_console=False)
    run.summary.update({"best": np.float32(0.5), "bad": Evil(), "where": torch.device("cpu")})
    run.finish()
    [said] = offline(EventKind.SUMMARY)
    assert said.fields["values"] == {"best": "0.5", "bad": '"<Evil>"', "where": '"cpu"'}
    assert counted(offline()) == {"not_json": 1}


def test_the_summary_shows_what_was_logged_at_once_and_says_nothing(chiplog_dir, offline) -> None:
    run = chiplog.init(mode="offline", capture_console=False)
    run.define_metric("val/*", summary="max")
    run.define_metric("val/loss", summary="min")
    run.define_metric("hidden", summary="none")
    for step, loss in enumerate([3.0, 1.0, 2.0]):
        run.log({"loss": loss, "val": {"loss": loss, "acc": loss}, "hidden": 1, "note": "text"})
        assert run.summary["loss"] == run.summary.loss == loss, step
    run.log({"loss": float("nan"), "val": {"acc": float("nan")}})
    assert np.isnan(run.summary["loss"]) and run.summary.get("hidden") is None and run.summary.get("other", 5) == 5
    run.summary["loss"] = "set"
    shown = {"loss": "set", "val/loss": 1.0, "val/acc": 3.0}
    assert dict(run.summary) == {**run.summary} == shown
    assert (len(run.summary), repr(run.summary), "val/acc" in run.summary) == (3, repr(shown), True)
    del run.summary["val/loss"]
    assert list(run.summary) == ["loss", "val/acc"]
    run.log({"val/loss": 0.5})
    assert run.summary.pop("val/loss") == 0.5
    run.summary.clear()
    assert dict(run.summary) == {}
    run.finish()
    assert [event.fields["values"] for event in offline(EventKind.SUMMARY)] == [{"loss": '"set"'}]


def test_a_disabled_run_and_one_after_its_end_have_the_same_summary(chiplog_dir) -> None:
    run = chiplog.init(mode="disabled")
    run.define_metric("loss", summary="min")
    for loss in [3.0, 1.0, 2.0]:
        run.log({"loss": loss, "lr": loss})
    run.log({"lr": 7.0})
    run.finish()
    assert dict(run.summary) == {"loss": 1.0, "lr": 7.0}


def test_the_summary_is_that_of_the_view(node) -> None:
    run = chiplog.init("p", run_id="shown", dir=node.root, capture_console=False)
    for kind in ("min", "max", "mean", "first"):
        run.define_metric(f"*/{kind}", summary=kind)
    kinds = ("min", "max", "mean", "first", "last")
    for step in range(600):
        value = (step * 37 % 101) / 8
        run.log({f"loss/{kind}": value for kind in kinds} | {"odd/max": float("nan") if step % 7 else value})
    run.finish()
    rows = node.until(
        "SELECT key, value::DOUBLE AS value FROM summary WHERE run_id = 'shown' "
        "AND EXISTS (FROM labels WHERE run_id = 'shown' AND state = 'finished')"
    )
    assert {row["key"]: pytest.approx(row["value"]) for row in rows} == dict(run.summary)


@pytest.mark.full
def test_a_config_of_very_many_keys_is_kept_whole(chiplog_dir, offline) -> None:
    config = {f"k{number}": number for number in range(50_000)}
    chiplog.init(mode="offline", config=config, capture_console=False).finish()
    said = {key: json.loads(text) for e in offline(EventKind.CONFIG) for key, text in e.fields["values"].items()}
    assert said == config
    [hashes] = offline(EventKind.CONFIG_HASHES)
    assert list(hashes.fields["hashes"]) == ["*"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"name": 5}, ["5", "1 to 512"]),
        ({"name": ""}, ["''", "1 to 512"]),
        ({"name": "k" * 600}, ["kkk", "1 to 512"]),
        ({"name": "loss", "summary": "median"}, ["'loss'", "'median'", "min, max, mean, last, first, none"]),
        ({"name": "loss", "summary": ["min"]}, ["'loss'", "['min']", "min, max"]),
        ({"name": "loss", "step_metric": 3}, ["'loss'", "step_metric 3"]),
        ({"name": "loss", "summary": np.zeros(3)}, ["'loss'", "array"]),
        ({"name": "loss", "hidden": "maybe"}, ["'loss'", "hidden 'maybe'", "True or False"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_definition_is_one_line_with_thing_value_and_remedy(chiplog_dir, offline, caplog, call, words) -> None:
    run = chiplog.init(mode="offline", capture_console=False)
    with caplog.at_level(logging.WARNING, "chiplog"):
        for _ in range(3):
            run.define_metric(**call)
        run.define_metric("fine", summary="min")
    run.finish()
    [line] = [record.getMessage() for record in caplog.records]
    assert all(word in line for word in words), line
    assert [e.fields["name"] for e in offline(EventKind.DEFINE)] == ["fine"]
    assert counted(offline()) == {"bad_definition": 3}


def test_definitions_are_said_once_and_when_they_change(chiplog_dir, offline) -> None:
    run = chiplog.init(mode="offline", capture_console=False)
    for _ in range(3):
        run.define_metric("loss", summary="min")
        run.define_metric("*", step_metric="epoch")
    run.define_metric("loss", step_metric="tokens")
    run.define_metric("epoch", hidden=True)
    run.define_metric("epoch", hidden=False)
    run.finish()
    assert [tuple(e.fields.values()) for e in offline(EventKind.DEFINE)] == [
        ("loss", {"summary": "min"}),
        ("*", {"step_metric": "epoch"}),
        ("loss", {"summary": "min", "step_metric": "tokens"}),
        ("epoch", {"hidden": True}),
        ("epoch", {"hidden": False}),
    ]
    chiplog.init(mode="disabled").define_metric("loss", summary="min")


class Operations(TorchDispatchMode):
    """Remembers what torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.done.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.full
def test_a_tensor_of_a_million_elements_is_named_with_its_shape_and_never_copied(chiplog_dir, offline, caplog) -> None:
    run = chiplog.init(mode="offline", capture_console=False)
    weights, array = torch.zeros(1000, 1000, requires_grad=True), np.zeros((1000, 1000))
    with caplog.at_level(logging.WARNING, "chiplog"), Operations() as operations:
        for _ in range(100):
            run.log({"weights": weights, "good": 1.0})
    tracemalloc.start()
    with caplog.at_level(logging.WARNING, "chiplog"):
        for _ in range(100):
            run.log({"array": array})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    run.finish()
    assert set(operations.done) <= {"aten.detach.default"}, "nothing that reads elements"
    assert peak < 1_000_000, "numpy's copies would be 8,000,000"
    assert counted(offline()) == {"array": 200}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all("(1000, 1000)" in line and "its mean" in line and "chiplog.Histogram.of" in line for line in lines)
    assert len(numbers(offline())) == 100
