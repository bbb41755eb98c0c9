"""The architecture, held: who imports whom, what is pure, what an import costs, which names are documented."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "chiplog": ROOT / "sdk" / "chiplog",
    "chiplog_agent": ROOT / "agent" / "chiplog_agent",
    "chiplog_collector": ROOT / "collector" / "chiplog_collector",
    "chiplog_schemas": ROOT / "schemas" / "chiplog_schemas",
}
MAY_IMPORT = {name: {name, "chiplog_schemas"} for name in PACKAGES}
PURE = [
    "schemas/chiplog_schemas/storage/record.py",
    *(f"schemas/chiplog_schemas/model/{name}.py" for name in ("events", "blocks", "codes", "intervals")),
    *(
        f"schemas/chiplog_schemas/protocol/{name}.py"
        for name in ("messages", "delivery", "file_messages", "file_delivery")
    ),
    "schemas/chiplog_schemas/security/permissions.py",
    "agent/chiplog_agent/pipeline/batcher.py",
    "collector/chiplog_collector/receiver/commit.py",
    *(
        f"collector/chiplog_collector/index/{name}.py"
        for name in ("applier", "authorization", "registry", "write_batch", "state", "definitions", "label_checks")
    ),
    "sdk/chiplog/identity/identity.py",
    "sdk/chiplog/identity/modes.py",
    "sdk/chiplog/values/config.py",
]
IMPURE = {"zmq", "duckdb", "threading", "asyncio", "time", "socket"}
ONLY_IN = {
    "msgpack": {"schemas/chiplog_schemas/codec.py"},
    "pynvml": {"agent/chiplog_agent/stats/gpu.py"},
}
NOT_AT_IMPORT = ("numpy", "duckdb", "click", "torch", "rich", "psutil", "arro3")

MODULES = {str(path.relative_to(ROOT)): path for package in PACKAGES.values() for path in sorted(package.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports_of(name: str) -> set[str]:
    """Return the top-level packages that a module imports, in functions too. Relative imports are its own package's."""
    own = next(package for package, path in PACKAGES.items() if MODULES[name].is_relative_to(path))
    found: set[str] = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(own if node.level else (node.module or "").split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            named = node.args[0] if node.args else None
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                found.add(named.value.split(".")[0])
    return found


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


@pytest.mark.parametrize("name", MODULES)
def test_a_package_knows_itself_and_schemas_only(name: str) -> None:
    own = next(package for package, path in PACKAGES.items() if MODULES[name].is_relative_to(path))
    assert imports_of(name) & set(PACKAGES) <= MAY_IMPORT[own]


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_imports_nothing_that_moves_bytes_or_time(name: str) -> None:
    assert imports_of(name) & IMPURE == set()


@pytest.mark.parametrize("package", ONLY_IN)
def test_one_module_alone_touches_it(package: str) -> None:
    assert {name for name in MODULES if package in imports_of(name)} == ONLY_IN[package]


def test_importing_chiplog_costs_no_heavy_package() -> None:
    code = f"import sys, chiplog; print([name for name in {NOT_AT_IMPORT!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    bare = [public for public, node in public_names(TREES[name]) if not ast.get_docstring(node)]  # type: ignore[arg-type]
    assert bare == []
