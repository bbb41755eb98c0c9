"""Draw which parts of a package import which others. A part is a sub-package or a top-level module."""

import ast
import os
import tomllib
from collections.abc import Iterator

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
with open(os.path.join(ROOT, "pyproject.toml"), "rb") as _file:
    PACKAGES = {os.path.basename(path): path for path in tomllib.load(_file)["tool"]["mypy"]["files"]}
LEFT_OUT = ("__init__", "__main__", "_version")  # entry points, which import whatever they start


def imports(package: str) -> set[tuple[str, str]]:
    """Return (importing part, imported part) of all imports inside of a package, also those in functions."""
    found: set[tuple[str, str]] = set()
    base = os.path.join(ROOT, PACKAGES[package])
    for directory, _, names in os.walk(base):
        for name in names:
            path = os.path.join(directory, name)
            part = os.path.relpath(path, base).split(os.sep)[0].removesuffix(".py")
            if name.endswith(".py") and part not in LEFT_OUT:
                with open(path, encoding="utf-8") as file:
                    tree = ast.parse(file.read())
                found |= {(part, other) for other in _imported(tree, package) if other not in (part, *LEFT_OUT)}
    return found


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the parts of the package that a module imports."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith(f"{package}."):
                yield name.split(".")[1]


def drawing(package: str) -> str:
    """Return the source of a Mermaid diagram. An arrow points from the importing part to the imported one.

    An arrow that a path over other parts implies is left out.
    """
    edges = imports(package)
    base = os.path.join(ROOT, PACKAGES[package])
    lines = ["flowchart TB"]
    for part in sorted({part for edge in edges for part in edge}):
        is_folder = os.path.isdir(os.path.join(base, part))
        lines.append(f'    {part}["{part}/"]' if is_folder else f"    {part}({part}.py)")
    for one, other in sorted(edges):
        if not _has_detour(one, other, edges):
            lines.append(f"    {one} --> {other}")
    return "\n".join(lines) + "\n"


def _has_detour(one: str, other: str, edges: set[tuple[str, str]]) -> bool:
    """Return True if a path of imports leads from `one` to `other` over a third part."""
    reached, waiting = {one}, [step for start, step in edges if start == one and step != other]
    while waiting:
        part = waiting.pop()
        if part == other:
            return True
        if part not in reached:
            reached.add(part)
            waiting += [step for start, step in edges if start == part]
    return False
