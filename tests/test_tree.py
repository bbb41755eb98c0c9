"""The shape of tests/: each module has its own test module, and no test module imports another."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.marks import FULL, everyday, imports_of, marks_of
from tests.support.packages import PACKAGES, ROOT, mirror_of
from tests.support.promises import PROMISES, proofs

TESTS = Path(__file__).parent
MODULES_MAX = 16  # of a folder: what a reader takes in at a glance


def own_tests_of(package: str, module: Path) -> Path:
    """Return where the tests of agent/chiplog_agent/pipeline/batcher.py are: tests/agent/pipeline/test_batcher.py."""
    inside = module.relative_to(PACKAGES[package])
    return mirror_of(package) / inside.with_name(f"test_{inside.name}")


def test_every_module_has_its_own_test_module() -> None:
    missing = [
        path.relative_to(ROOT).as_posix()
        for package, folder in PACKAGES.items()
        for path in sorted(folder.rglob("*.py"))
        if not path.stem.startswith("_") and not own_tests_of(package, path).is_file()
    ]
    assert missing == [], "add tests/…/test_NAME.py"


def test_the_marks_of_a_test_module_follow_from_what_it_imports() -> None:
    assert marks_of(TESTS / "agent/pipeline/test_batcher.py") == {"pure"}
    assert marks_of(TESTS / "schemas/process/test_daemon.py") == {"process"}
    assert marks_of(TESTS / "launchers/test_spark.py") == {"process", "full"}
    assert marks_of(TESTS / "collector/views/test_views.py") == set()  # DuckDB, by a helper


def test_each_name_in_the_list_of_full_tests_is_a_module_or_folder() -> None:
    assert [name for name in FULL if not (TESTS / name).exists()] == []


def test_cases_after_the_first_are_full_and_keep_their_values_marks_and_names() -> None:
    given = [pytest.param(i, "x", marks=pytest.mark.soak, id=f"case {i}") for i in range(2)]
    first, second = everyday(1, given)
    assert first is given[0]
    assert (second.values, second.id, {mark.name for mark in second.marks}) == ((1, "x"), "case 1", {"soak", "full"})
    assert [case.values for case in everyday(0, [(1, 2), 3])] == [(1, 2), (3,)]


@pytest.mark.parametrize("number", PROMISES)
def test_a_promise_has_a_test_of_the_part_and_one_of_whole_processes_in_make_test(number: int) -> None:
    levels = {proof.is_of_a_part for proof in proofs() if proof.number == number and not proof.is_full}
    assert levels == {True, False}


def test_each_test_of_a_promise_is_of_one_that_is_listed() -> None:
    assert {proof.number for proof in proofs()} == set(PROMISES)


def test_no_module_imports_a_test_module_or_fixtures() -> None:
    def is_a_test_module(name: str) -> bool:
        parts = name.split(".")
        return parts[0] == "tests" and any(part.startswith("test_") or part == "conftest" for part in parts)

    paths = sorted(TESTS.rglob("*.py"))
    found = {str(path.relative_to(TESTS)): sorted(filter(is_a_test_module, imports_of(path))) for path in paths}
    assert {name: imports for name, imports in found.items() if imports} == {}


def test_no_test_sets_the_clock_of_the_whole_process() -> None:
    """An event loop in another thread would sleep until its clock is right: for as long as the machine has run.

    A test replaces the `time` of the module that it tests.
    """
    sets_a_clock = re.compile(r'setattr\(\s*([\w.]*\btime|"([\w.]+\.)?time\.\w+"),')
    assert sets_a_clock.search('setattr("time.monotonic", f)') and sets_a_clock.search("setattr(module.time, name, f)")
    others = [path for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__)]
    assert [path.name for path in others if sets_a_clock.search(path.read_text())] == []


def test_one_module_knows_the_columns_of_the_tables() -> None:
    """Others write sample runs with RunBuilder. The statements in query_client.py are there to be refused."""
    writers = {path.name for path in sorted(TESTS.rglob("*.py")) if re.search(r"INSERT INTO base\b", path.read_text())}
    assert writers - {Path(__file__).name} == {"run_builder.py", "query_client.py"}


def test_no_folder_of_the_product_holds_more_than_sixteen_modules() -> None:
    folders = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for package in PACKAGES.values()
        for path in package.rglob("*")
        if path.suffix in (".py", ".js") and "vendor" not in path.parts
    )
    assert {folder: n for folder, n in folders.items() if n > MODULES_MAX} == {}, "part the folder by purpose"
