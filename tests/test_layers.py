"""The architecture: what an import costs, and which names are documented."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.packages import PACKAGES, ROOT
from tests.support.waiting import WAIT_S

NOT_AT_IMPORT = ("numpy", "duckdb", "click", "torch", "rich", "psutil", "arro3", "sqlalchemy")

MODULES = {str(path.relative_to(ROOT)): path for package in PACKAGES.values() for path in sorted(package.rglob("*.py"))}


def public_names(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield the module, its public functions and classes, and the public methods and properties of these."""
    yield "(module)", tree
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, definitions) and not node.name.startswith("_"):
            yield node.name, node
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, definitions) and not member.name.startswith("_") and not is_setter(member):
                    yield f"{node.name}.{member.name}", member


def is_setter(node: ast.AST) -> bool:
    return any(ast.unparse(decorator).endswith((".setter", ".deleter")) for decorator in node.decorator_list)  # type: ignore[attr-defined]


def test_importing_chiplog_costs_no_heavy_package() -> None:
    code = f"import sys, chiplog; print([name for name in {NOT_AT_IMPORT!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("chiplog_agent.daemon", ("numpy", "duckdb", "importlib.metadata")),
        ("chiplog_collector.receiver.daemon", ("numpy", "duckdb", "importlib.metadata")),
    ],
)
def test_a_daemon_loads_no_heavy_package(module: str, absent: tuple[str, ...]) -> None:
    """A small job pays for each import, and a crash in DuckDB must not end the receiver."""
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    bare = [public for public, node in public_names(tree) if not ast.get_docstring(node)]  # type: ignore[arg-type]
    assert bare == []
