"""Modules without files: importable, the same objects under another name."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from chiplog.integrations.adapter.module_aliases import add_modules, alias_package


@pytest.fixture
def package() -> Iterator[ModuleType]:
    made = ModuleType("made_up")
    made.__path__ = []
    sys.modules["made_up"] = made
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] in ("made_up", "other_name")]:
        del sys.modules[name]


def test_modules_below_a_package_can_be_imported_and_are_attributes(package: ModuleType) -> None:
    add_modules("made_up", {"sdk.lib.deep": {"answer": 42}, "sdk": {"top": 1}})
    assert importlib.import_module("made_up.sdk.lib.deep").answer == 42
    assert package.sdk.lib.deep.answer == 42 and package.sdk.top == 1


def test_other_names_of_a_module_come_from_a_function_and_private_ones_are_missing(package: ModuleType) -> None:
    add_modules("made_up", {"sdk": {}}, lambda name: f"<{name}>")
    assert package.sdk.anything == "<sdk.anything>"
    assert not hasattr(package.sdk, "_private")


def test_both_names_of_a_package_have_the_same_modules(package: ModuleType) -> None:
    add_modules("made_up", {"sdk.lib": {}})
    alias_package("made_up", "other_name")
    for name in ("", ".sdk", ".sdk.lib"):
        assert importlib.import_module(f"other_name{name}") is importlib.import_module(f"made_up{name}")
