"""A config of any type becomes plain values, and its hashes show differences between ranks."""

import enum
import functools
import json
import math
import subprocess
import sys
from argparse import Namespace
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from chiplog.safety.diagnostics import Diagnostic
from chiplog.values.config import HASHES_MAX, TEXT_CHARS_MAX, Fingerprints, config_entries, to_plain


def plain(value: Any) -> Any:
    """Return a value made plain, which must cost no complaint and be JSON."""
    diagnostics: list[Diagnostic] = []
    made = to_plain("config x", value, diagnostics.append)
    assert diagnostics == []
    json.dumps(made)
    return made


def plain_config(config: Any) -> dict[str, Any]:
    return {key: plain(value) for key, value in config_entries(config).items()}


class Colour(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    LARGE = 3


@dataclass
class Model:
    width: int = 64
    act: Any = torch.relu


@dataclass
class Job:
    model: Model = field(default_factory=Model)
    lr: float = 3e-4


class Dumped:
    """As pydantic's models are."""

    def model_dump(self) -> dict[str, Any]:
        return {"lr": 0.1, "path": Path("/data")}


class OldModel:
    """As models of pydantic 1 are."""

    __fields__ = ("lr",)

    def dict(self) -> dict[str, Any]:
        return {"lr": 0.1}


class Root:
    """As pydantic's models of one value are."""

    __pydantic_root_model__ = True
    root = (1, 2)

    def model_dump(self) -> Any:
        return list(self.root)


class Attributes:
    """As attrs' classes are."""

    def __init__(self) -> None:
        self.lr = 0.1

    __attrs_attrs__ = (Namespace(name="lr"), Namespace(name="never_set"))


class Opaque:
    pass


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Path("/data/x"), "/data/x"),
        (OldModel(), {"lr": 0.1}),
        (Root(), [1, 2]),
        (torch.bfloat16, "torch.bfloat16"),
        (torch.device("cuda", 1), "cuda:1"),
        (torch.relu, "relu"),
        (math.sqrt, "math.sqrt"),
        (Model, "Model"),
        (Colour.RED, "RED"),
        (Size.LARGE, "LARGE"),
        ((1, (2.0, None)), [1, [2.0, None]]),
        ({3, 1, 2}, [1, 2, 3]),
        ({"b", "a"}, ["a", "b"]),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.arange(3), [0, 1, 2]),
        (np.zeros((100, 100)), "<ndarray of shape (100, 100), float64>"),
        (torch.zeros(2, 3), "<Tensor of shape (2, 3), torch.float32>"),
        (functools.partial(math.pow, 2), {"partial": "math.pow", "args": [2], "kw": {}}),
        (Point(1, 2), {"x": 1, "y": 2}),
        (Dumped(), {"lr": 0.1, "path": "/data"}),
        (Attributes(), {"lr": 0.1, "never_set": None}),
        (b"\x00", "b'\\x00'"),
        (2**5000, "<int of 5001 bits>"),
        (True, True),
        ({1: {Colour.RED: None}}, {"1": {"RED": None}}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_lacks_becomes_readable_text(value: Any, expected: Any) -> None:
    made = plain(value)
    assert made == expected or (isinstance(expected, str) and made.endswith(f".{expected}")), made


def test_an_object_is_its_class_and_never_its_address() -> None:
    assert plain(Opaque()).endswith(".Opaque>")
    assert plain(lambda x: x).endswith("<lambda>")
    assert " at 0x" not in plain(torch.Generator()) + plain(iter([]))


@pytest.mark.parametrize(
    "config", [Job(), Namespace(model=Namespace(width=64, act=torch.relu), lr=3e-4)], ids=["dataclass", "namespace"]
)
def test_nested_configs_keep_their_shape(config: Any) -> None:
    made = plain_config(config)
    assert made["lr"] == 3e-4
    assert made["model"]["width"] == 64
    assert made["model"]["act"].endswith("relu")


def test_nan_and_infinities_are_kept() -> None:
    assert math.isnan(plain(math.nan))
    assert plain([-math.inf]) == [-math.inf]


def test_omegaconf_is_resolved_and_what_is_missing_or_leads_nowhere_stays_as_it_was_written() -> None:
    config = OmegaConf.create(
        {
            "width": 64,
            "model": {"width": "${width}", "twice": ["${width}", "${nowhere}"], "name": "???"},
            "broken": "${nothing.there}",
            "none": None,
        }
    )
    assert plain_config(config) == {
        "width": 64,
        "model": {"width": 64, "twice": [64, "${nowhere}"], "name": "???"},
        "broken": "${nothing.there}",
        "none": None,
    }


def test_omegaconf_of_a_dataclass_is_read_like_any_other() -> None:
    @dataclass
    class Schema:
        lr: float = 0.1
        colour: Colour = Colour.RED
        layers: list[int] = field(default_factory=lambda: [1, 2])

    assert plain_config(OmegaConf.structured(Schema)) == {"lr": 0.1, "colour": "RED", "layers": [1, 2]}


# -- hashes --


def hashes(**config: Any) -> dict[str, str]:
    made = Fingerprints()
    made.update(config)
    return made.as_event_fields()


def test_hashes_are_of_each_leaf_and_the_same_in_every_process() -> None:
    assert hashes(lr=0.1, model={"layers": 4, "act": {}}) == {
        "lr": hashes(lr=0.1)["lr"],
        "model/layers": "4b227777",
        "model/act": "44136fa3",
    }
    code = (
        "from chiplog.values.config import *; f = Fingerprints(); "
        "f.update({'s': to_plain('s', {'a', 'b', 'c', 'd'}, print), 'f': to_plain('f', f.update, print)}); "
        "print(f.as_event_fields())"
    )
    done = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(done) == 1


def test_keys_that_name_the_process_are_compared_without_their_numbers() -> None:
    assert hashes(rank=0, device="cuda:0", ddp={"Local_Rank": 0}) == hashes(
        rank=3, device="cuda:1", ddp={"Local_Rank": -1}
    )
    assert hashes(device="cuda:0") != hashes(device="cpu")
    assert hashes(ranks=0) != hashes(ranks=1)


def test_a_large_config_is_compared_by_fewer_hashes() -> None:
    wide = {f"k{number}": number for number in range(HASHES_MAX + 1)}
    assert list(hashes(**wide)) == ["*"]
    assert hashes(**wide) != hashes(**wide | {"k7": 8})
    assert set(hashes(table=wide, lr=1)) == {"table", "lr"}


def test_a_later_word_on_a_key_replaces_the_earlier() -> None:
    made = Fingerprints()
    made.update({"a": {"b": 1, "c": 2}, "d": 1})
    made.update({"a": 3})
    assert made.as_event_fields() == hashes(a=3, d=1)


def test_a_long_text_is_cut_with_a_word() -> None:
    diagnostics: list[Diagnostic] = []
    text = to_plain("config x", "t" * (TEXT_CHARS_MAX + 1), diagnostics.append)
    assert len(text) == TEXT_CHARS_MAX
    assert text.endswith(f"… ({TEXT_CHARS_MAX + 1} characters)")
    assert [bad.kind for bad in diagnostics] == ["not_json"]
