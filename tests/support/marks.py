"""The marks of tests: `pure`, `process` and `full`, by what a test module imports and where it is.

A pure test opens no socket, starts no process or thread, waits for no clock and runs no database. What decides is the
text of the test module and of the helpers that it imports, so that a module need not be imported to be left out.

A full test runs in `make test-all` and not in `make test`: it costs much, and a cheaper test shows most of that.
FULL names modules and folders; `@pytest.mark.full` marks single tests, and everyday() cases of one.
"""

import ast
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
MIRRORS = ("agent", "collector", "schemas", "sdk")  # the folders whose modules mirror those of the packages
PROCESS_FOLDERS = ("deploy", "fault", "fuzz", "gpu", "launchers", "process")
# Modules and folders of which `make test` runs nothing. Each module of the product and each promise keeps a test there.
FULL = (
    "deploy/test_split_wheels.py",  # builds them
    "fault/test_backup.py",
    "fault/test_files.py",
    "fault/test_not_kept.py",
    "fault/test_slow_disk.py",  # seconds beyond the silence of a lost peer
    "launchers/test_elastic.py",
    "launchers/test_hosts.py",  # in namespaces
    "launchers/test_spark.py",
    "launchers/test_training_loops.py",
    "process/test_endings.py",
    "page/test_path_prefix.py",  # behind Jupyter's server
)
STARTS_PROCESSES = {"multiprocessing", "pty", "subprocess"}
MOVES_BYTES_OR_TIME = {"asyncio", "concurrent", "ctypes", "duckdb", "signal", "socket", "threading", "time", "zmq"}
MOVES_BYTES_OR_TIME_FOR_US = {
    "chiplog",  # alone, as users import it: init() opens journals and starts threads
    "chiplog_collector.index.database",  # DuckDB
}
MARKERS = {
    "pure": "moves bytes and time by hand; opens no socket, process, thread or database (`make check`)",
    "process": "starts processes",
    "full": "runs in `make test-all`, and not in `make test`",
    "promise(number)": "proves one of the promises in tests/support/promises.py",
}

Test = Callable[..., object]


def only_if(holds: bool) -> Callable[[Test], Test | None]:
    """Collect the test below only if this holds: it has another purpose otherwise, or runs in another way.

    Not for what a machine lacks. Such a test is skipped and says so, and CI then fails unless a GPU is missing.
    """
    return lambda test: test if holds else None


def everyday(n: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrized test, of which those after the first n are full."""
    return [case if i < n else _full(case) for i, case in enumerate(cases)]


def _full(case: Any) -> Any:
    """Return a case with the mark of the full lane: a value, a tuple of values, or a `pytest.param`."""
    if isinstance(case, type(pytest.param())):  # which is a tuple, too
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.full], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the modules and names that a file imports, in functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def with_helpers(path: Path) -> set[str]:
    """Return what a file and the helpers of tests/ import that it uses, at any remove."""
    found: set[str] = set()
    left = [path]
    seen = {TESTS / "support" / name for name in ("rounds.py", "tools.py")}  # they measure time, and look for commands
    while left:
        names = imports_of(left.pop())
        found |= names
        helpers = {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names if name.startswith("tests.")}
        new = {helper for helper in helpers - seen if helper.is_file()}
        left += new
        seen |= new
    return found


@cache
def marks_of(path: Path) -> frozenset[str]:
    """Return the names of the marks of all tests of a module."""
    names = with_helpers(path)
    roots = {name.split(".")[0] for name in names}
    is_impure = roots & MOVES_BYTES_OR_TIME or names & MOVES_BYTES_OR_TIME_FOR_US
    place = path.relative_to(TESTS)
    folder = place.parts[0]
    marks = set()
    if folder in PROCESS_FOLDERS or roots & STARTS_PROCESSES:
        marks.add("process")
    elif folder in MIRRORS and not is_impure:
        marks.add("pure")
    if is_full(path):
        marks.add("full")
    return frozenset(marks)


@cache
def is_full(path: Path) -> bool:
    """Return True if FULL names a module or its folder."""
    return any(path.relative_to(TESTS).is_relative_to(each) for each in FULL)


def marks_in(path: Path, lane: str) -> frozenset[str]:
    """Return the marks of a module's tests that `-m` may name: to find the others, all modules are parsed."""
    if lane in ("full", "not full"):
        return frozenset({"full"} if is_full(path) else ())
    return marks_of(path)


def shared_by(item: pytest.Item) -> str | None:
    """Return the package or module whose tests share a fixture with this one: one worker then makes it, not each."""
    definitions = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
    shared = {found[-1].scope: found[-1].baseid for found in definitions}
    return shared.get("package") or (item.location[0] if "module" in shared else None)


def has_none_of(path: Path, lane: str) -> bool:
    """Return True if no test of a module is in the lane that `-m` names, by the text of the module alone."""
    if lane == "pure":
        return "pure" not in marks_of(path)
    if lane == "not full":
        return is_full(path)
    text = path.read_text(encoding="utf-8")
    return lane == "full" and not is_full(path) and "mark.full" not in text and "everyday(" not in text
