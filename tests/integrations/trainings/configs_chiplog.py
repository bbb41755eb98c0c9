"""Objects of libraries for configs, given to `chiplog.init(config=…)` as they are."""

import argparse
import dataclasses
import enum
import pathlib

import attrs
import jsonargparse
import omegaconf
import pydantic
import pydantic.v1
from expected import Expected

import chiplog


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Optimizer:
    lr: float = 0.1
    betas: tuple[float, ...] = (0.5, 0.75)
    path: pathlib.Path = pathlib.Path("/data")


PLAIN = {"lr": 0.1, "betas": [0.5, 0.75], "path": "/data"}


class Model(pydantic.BaseModel):
    optimizer: Optimizer = Optimizer()
    colour: Colour = Colour.RED
    token: pydantic.SecretStr = pydantic.SecretStr("hidden")


class OldModel(pydantic.v1.BaseModel):
    lr: float = 0.1


class Sizes(pydantic.RootModel[list[int]]):
    """As of a file that is a list."""


@attrs.define
class Settings:
    optimizer: Optimizer = attrs.field(factory=Optimizer)


parser = jsonargparse.ArgumentParser()
parser.add_argument("--model.width", type=int, default=2)
parser.add_class_arguments(Optimizer, "optimizer")
parsed = parser.parse_args(["--model.width=3", "--optimizer.lr=0.1"])
wrong = omegaconf.OmegaConf.create({"width": 2, "twice": ["${width}", "${nowhere}"], "name": "???"})
objects = {
    "argparse": (argparse.Namespace(lr=0.1, inner=argparse.Namespace(n=1)), {"lr": 0.1, "inner": {"n": 1}}),
    "dataclass": (Optimizer(), PLAIN),
    "pydantic": (Model(), {"optimizer": PLAIN, "colour": "RED", "token": "**********"}),
    "pydantic.v1": (OldModel(), {"lr": 0.1}),
    "attrs": (Settings(), {"optimizer": PLAIN}),
    "jsonargparse": (parsed, {"model": {"width": 3}, "optimizer": PLAIN}),
    "omegaconf": (omegaconf.OmegaConf.structured(Optimizer), PLAIN),
    "omegaconf, wrong": (wrong, {"width": 2, "twice": [2, "${nowhere}"], "name": "???"}),
}
expected = Expected("jsonargparse")
for number, (given, _) in enumerate(objects.values()):
    run = chiplog.init(config=given, reinit="finish_previous")
    run.log({"number": number}, step=0)
    expected.add(0, {"number": number})
nested = {name: given for name, (given, _) in objects.items()} | {"root": Sizes([1, 2])}
chiplog.init(config={"nested": nested}, reinit="finish_previous")
wanted = {name: plain for name, (_, plain) in objects.items()} | {"root": [1, 2]}
expected.note(runs=len(objects) + 1, config={"nested": wanted, "width": 2, "colour": "RED", "lr": 0.1})
expected.write()
