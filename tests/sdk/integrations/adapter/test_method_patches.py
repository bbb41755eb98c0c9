"""Methods of other classes, replaced as long as something takes what they are given."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chiplog.integrations.adapter.method_patches import Method, MethodPatches

SOURCE = """
class Writer:
    def write(self, value):
        return value + 1
"""
NAMES = ("chiplog_first_writers", "chiplog_second_writers")


@pytest.fixture
def patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MethodPatches[list[Any]]]:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)

    def replacement(cls: type, name: str, method: Method) -> Method:
        def call(self: Any, value: int) -> Any:
            if made.newest is not None:
                made.newest.append((cls.__module__, name, value))
            return method(self, value)

        return call

    made: MethodPatches[list[Any]] = MethodPatches(
        dict.fromkeys((*NAMES, "chiplog_no_such_module"), ("Writer", ("write", "no_such_method"))), replacement
    )
    yield made
    for name in NAMES:
        sys.modules.pop(name, None)


def test_classes_are_patched_now_or_when_they_are_imported_and_are_as_before_at_the_end(patches: Any) -> None:
    first = importlib.import_module(NAMES[0])
    before = first.Writer.write
    older: list[Any] = []
    newer: list[Any] = []
    patches.begin(older)
    second = importlib.import_module(NAMES[1])
    assert [module.Writer().write(1) for module in (first, second)] == [2, 2]
    patches.begin(newer)
    assert first.Writer().write(2) == 3
    patches.end(newer)
    patches.end(newer)
    assert first.Writer().write(3) == 4
    patches.end(older)
    assert older == [(NAMES[0], "write", 1), (NAMES[1], "write", 1), (NAMES[0], "write", 3)]
    assert newer == [(NAMES[0], "write", 2)]
    assert first.Writer.write is before and patches not in sys.meta_path and patches.newest is None


def test_a_class_that_is_imported_after_the_end_stays_as_it_is(patches: Any) -> None:
    taker: list[Any] = []
    patches.begin(taker)
    spec = patches.find_spec(NAMES[0])
    patches.end(taker)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAMES[0]] = module
    spec.loader.exec_module(module)
    assert module.Writer().write(1) == 2 and taker == []
