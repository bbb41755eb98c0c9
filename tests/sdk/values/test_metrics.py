"""What users log, turned into numbers, texts and histograms, or into a reason why not."""

import math
from argparse import Namespace
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
import torch

from chiplog.safety.diagnostics import Diagnostic
from chiplog.values.config import config_entries
from chiplog.values.metrics import Histogram, flatten
from chiplog_schemas.limits import KEY_BYTES_MAX, NESTING_MAX, TEXT_CHARS_MAX


def one(value):
    [item] = flatten({"key": value})
    return item if isinstance(item, Diagnostic) else item[1]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1.5, 1.5),
        (7, 7.0),
        (True, 1.0),
        (-(2**70), -float(2**70)),
        (np.float32(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.int64(-3), -3.0),
        (np.uint8(200), 200.0),
        (np.bool_(True), 1.0),
        (np.longdouble(0.25), 0.25),
        (np.array(2.0), 2.0),
        (np.array([[2.0]]), 2.0),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([3]), 3.0),
        (torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), 0.5),
        (torch.tensor(True), 1.0),
        (Decimal("1.25"), 1.25),
        (Fraction(1, 4), 0.25),
    ],
)
def test_every_kind_of_scalar_becomes_its_float64(value, number) -> None:
    assert one(value) == number
    assert type(one(value)) is float


@pytest.mark.parametrize("value", [math.inf, -math.inf, np.float32("inf"), torch.tensor(-math.inf)])
def test_infinities_are_kept(value) -> None:
    assert one(value) == float(value)


def test_nan_is_kept() -> None:
    assert math.isnan(one(math.nan))
    assert math.isnan(one(torch.tensor(math.nan)))


class Raises:
    def __float__(self):
        raise RuntimeError("not now")

    def __repr__(self):
        raise RuntimeError("nor this")


class RaisesAsArray:
    __array__ = None

    @property
    def shape(self):
        raise RuntimeError("no shape")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "not_a_number"),
        (1j, "not_a_number"),
        (np.complex64(1j), "not_a_number"),
        (np.datetime64("2026-01-01"), "not_a_number"),
        ([1.0], "not_a_number"),
        ({1, 2}, "not_a_number"),
        (b"bytes", "not_a_number"),
        (Raises(), "not_a_number"),
        (2**2000, "number_too_large"),
        (Decimal(10) ** 400, None),
        (np.zeros(3), "array"),
        (np.zeros(0), "array"),
        (torch.zeros(2, 3), "array"),
        (torch.empty((), device="meta"), "unreadable"),
        (RaisesAsArray(), "unreadable"),
        ("x" * (TEXT_CHARS_MAX + 1), "text_too_long"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else type(value).__name__,
)
def test_what_is_no_number_is_named_with_its_key_and_a_remedy(value, kind) -> None:
    bad = one(value)
    if kind is None:
        assert bad == math.inf
        return
    assert isinstance(bad, Diagnostic)
    assert (bad.kind, bad.key) == (kind, "key")
    assert "'key'" in bad.message


def test_nested_dicts_are_joined_with_slashes() -> None:
    data = {"a": {"b": {"c": 1}, "d": 2}, "e": MappingProxyType({"f": 3})}
    assert dict(flatten(data)) == {"a/b/c": 1.0, "a/d": 2.0, "e/f": 3.0}


def test_a_dict_that_holds_itself_ends_at_the_limit() -> None:
    cycle: dict = {"x": 1.0}
    cycle["again"] = cycle
    items = list(flatten(cycle))
    assert len(items) == NESTING_MAX + 2
    assert items[-1].kind == "nested_too_deep"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (3, "key_not_string"),
        (None, "key_not_string"),
        ((1, Raises()), "key_not_string"),
        ("", "key_length"),
        ("k" * 10_000, "key_length"),
        ("ü" * (KEY_BYTES_MAX // 2 + 1), "key_length"),
        ("half \ud800", "key_not_text"),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_a_bad_key_costs_itself_and_not_its_neighbours(key, kind) -> None:
    bad, good = flatten({key: 1.0, "loss": 2.0})
    assert bad.kind == kind
    assert len(bad.key) <= 60
    assert len(bad.message) < 300
    assert good == ("loss", 2.0)


def test_keys_up_to_the_limit_and_of_undecodable_bytes_are_taken() -> None:
    keys = ["k" * KEY_BYTES_MAX, "\udcff", "a b/c"]
    assert [key for key, _ in flatten(dict.fromkeys(keys, 1))] == keys


def test_half_characters_in_a_text_are_written_out() -> None:
    assert one("a\ud800b") == "a\\ud800b"
    assert one("\udcff") == "\udcff"


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0, math.nan, math.inf],
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True),
        np.full(10, 1e30),
        np.array([-1e308, 1e308]),
        [],
    ],
    ids=["list", "bfloat16", "too narrow", "too wide", "empty"],
)
def test_a_histogram_can_be_made_of_anything_finite(values) -> None:
    histogram = Histogram.of(values)
    n_finite = int(np.isfinite(torch.as_tensor(values).detach().double().numpy()).sum())
    assert sum(histogram.counts) == n_finite
    assert len(histogram.edges) == len(histogram.counts) + 1
    assert all(low < high for low, high in zip(histogram.edges, histogram.edges[1:], strict=False))


def test_a_histogram_that_cannot_be_used_names_its_problem_and_never_raises() -> None:
    assert Histogram((0.0, 1.0), (1.0, 2.0)).problem == "2 counts need 3 edges, not 2"
    assert "no histogram of NoneType" in Histogram().problem
    assert "no histogram of list" in Histogram(["a", object()]).problem
    assert "no histogram of list" in Histogram([1.0, 2.0], num_bins=0.5).problem


@pytest.mark.parametrize(
    "histogram",
    [
        Histogram([1, 2, 3]),
        Histogram(sequence=np.array([1, 2, 3])),
        Histogram(np_histogram=np.histogram([1, 2, 3], bins=64)),
        Histogram(None, np.histogram([1, 2, 3], bins=64)),
        Histogram.of(torch.tensor([1, 2, 3]), bins=64),
    ],
    ids=["values", "sequence", "np_histogram", "np_histogram at its place", "of"],
)
def test_a_histogram_takes_values_as_other_loggers_do(histogram) -> None:
    assert (len(histogram.counts), sum(histogram.counts), histogram.problem) == (64, 3.0, "")
    assert (histogram.edges[0], histogram.edges[-1]) == (1.0, 3.0)


@dataclass
class Plain:
    lr: float = 0.1


@dataclass(slots=True)
class Slotted:
    lr: float = 0.1


@pytest.mark.parametrize("value", [{"lr": 0.1}, Plain(), Slotted(), Namespace(lr=0.1), MappingProxyType({"lr": 0.1})])
def test_config_is_taken_from_whatever_scripts_keep_it_in(value) -> None:
    assert config_entries(value) == {"lr": 0.1}
