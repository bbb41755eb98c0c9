"""The shape of tests/: each module has its own test module, and no test module imports another."""

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from tests.support.marks import FULL, everyday, imports_of, marks_of
from tests.support.packages import PACKAGES, ROOT, mirror_of
from tests.support.promises import PROMISES, proofs

TESTS = Path(__file__).parent
MODULES_MAX = 16  # of a folder: what a reader takes in at a glance
CLASS_LINES_MAX = 400  # of code, with all bases: more is several ideas


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


def test_no_class_has_more_than_four_hundred_lines_of_code_with_its_bases() -> None:
    sizes = _class_sizes()
    larger = {f"{module}.{name}": size for (module, name), size in sizes.items() if size > CLASS_LINES_MAX}
    assert larger == {}, "a class of several ideas: make objects of them"


def test_code_is_counted_without_docstrings_comments_and_empty_lines() -> None:
    source = '''
class A:
    """One line."""

    # a comment
    def f(self) -> str:
        """Two
        lines."""
        return (
            "1"  # three lines
        )
'''
    [(name, lines, bases)] = _classes(source)
    assert (name, lines, bases) == ("A", 5, [])


def _class_sizes() -> dict[tuple[str, str], int]:
    """Return the lines of code of each class with its bases, by module and name."""
    own: dict[tuple[str, str], int] = {}
    bases: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for folder in PACKAGES.values():
        for path in sorted(folder.rglob("*.py")):
            module = ".".join((folder.name, *path.relative_to(folder).with_suffix("").parts))
            source = path.read_text()
            imported = {
                entry.asname or entry.name: (statement.module or "", entry.name)
                for statement in ast.walk(ast.parse(source))
                if isinstance(statement, ast.ImportFrom)
                for entry in statement.names
            }
            for name, lines, names in _classes(source):
                own[module, name] = lines
                bases[module, name] = [imported.get(base, (module, base)) for base in names]

    def all_of(key: tuple[str, str]) -> set[tuple[str, str]]:
        return {key}.union(*(all_of(base) for base in bases.get(key, []) if base != key))

    return {key: sum(own.get(part, 0) for part in all_of(key)) for key in own}


def _classes(source: str) -> list[tuple[str, int, list[str]]]:
    """Return the name, the lines of code and the names of the bases of each class."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            code.update(range(token.start[0], token.end[0] + 1))
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            code.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return [
        (
            node.name,
            sum(node.lineno <= line <= (node.end_lineno or 0) for line in code),
            [base.id for base in node.bases if isinstance(base, ast.Name)],
        )
        for node in nodes
        if isinstance(node, ast.ClassDef)
    ]
