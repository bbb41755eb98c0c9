"""The shape of tests/: what test modules share is in tests/support, and none imports another."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent


def imported_by(path: Path) -> set[str]:
    """Return the modules and names of tests/ that a file imports, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("tests.")}


def test_no_module_imports_a_test_module_or_fixtures() -> None:
    def is_a_test_module(name: str) -> bool:
        return any(part.startswith("test_") or part == "conftest" for part in name.split("."))

    paths = sorted(TESTS.rglob("*.py"))
    found = {str(path.relative_to(TESTS)): sorted(filter(is_a_test_module, imported_by(path))) for path in paths}
    assert {name: imports for name, imports in found.items() if imports} == {}
