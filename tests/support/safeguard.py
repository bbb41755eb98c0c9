"""Safeguards: statements of the product that keep a promise, and how each is switched off.

The comment `# safeguard: NAME` (`-- safeguard: NAME` in SQL) marks the statement that begins on its line or, on a line
of its own, the statement below it. A comment may have several names, separated by commas. Each name is in one comment.
`@proves("NAME", "the promise")` above a test says that this test fails without the statement.
"""

import ast
import contextlib
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., object])

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("sdk", "agent", "collector", "schemas", "tests/support")
_COMMENT = re.compile(r"(?:#|--) safeguard: ([a-z0-9-]+(?:, [a-z0-9-]+)*)$")


class AnchorError(ValueError):
    """A safeguard cannot be switched off as declared."""


@dataclass(frozen=True)
class Safeguard:
    """A statement of the product that keeps a promise, how to switch it off, and the test that must notice.

    Only the anchor:     the statement is removed.
    condition=False:     the condition of its `if`, `elif` or `while` is replaced; True likewise.
    value="None":        what it returns, assigns, iterates over or catches is replaced.
    part="x", new="y":   a piece of its text is replaced, or removed if `new` is absent. The piece occurs once in the
                         statement, or in the header of a compound one, or in the line of an SQL file.
    new="code":          the statement is replaced, or only its header if the code ends with a colon. A line `...` in
                         the code is the statement.
    """

    promise: str
    anchor: str  # the name in the statement's comment
    test: str  # the name of the test function
    condition: bool | None = None
    value: str | None = None
    part: str | None = None
    new: str | None = None
    environment: dict[str, str] = field(default_factory=dict, hash=False)  # a seed that finds it, a larger count


_PROVEN: dict[str, dict[Safeguard, None]] = {}  # by module; one that is imported twice declares the same again


def proves(anchor: str, promise: str, **switch: Any) -> Callable[[Test], Test]:
    """Declare that the decorated test fails when a safeguard is switched off.

    Args:
        anchor: The name in the comment of the statement.
        promise: What the statement keeps.
        switch: How to switch it off, if not by removing it, and the environment of the test; see Safeguard.
    """

    def declare(test: Test) -> Test:
        _PROVEN.setdefault(test.__module__, {})[Safeguard(promise, anchor, test.__name__, **switch)] = None
        return test

    return declare


def proven_in(module: str) -> list[Safeguard]:
    """Return the safeguards that the tests of an imported module prove."""
    return list(_PROVEN.get(module, ()))


@cache
def anchors(root: Path = ROOT) -> dict[str, list[tuple[Path, int]]]:
    """Return the places of each name: the file, and the line on which the statement begins."""
    found: dict[str, list[tuple[Path, int]]] = {}
    for path in sorted(path for folder in _FOLDERS for path in (root / folder).rglob("*")):
        if path.suffix in (".py", ".sql"):
            for name, line in _names_in(path.read_text(encoding="utf-8")):
                found.setdefault(name, []).append((path.relative_to(root), line))
    return found


def changed_file(safeguard: Safeguard, root: Path = ROOT) -> tuple[Path, str]:
    """Return the file in which a safeguard is switched off, and its text. Raise AnchorError if that is impossible."""
    places = anchors(root).get(safeguard.anchor, [])
    if not places:
        raise AnchorError(f"no line has the comment `# safeguard: {safeguard.anchor}`")
    if len(places) > 1:
        where = ", ".join(f"{path}:{line}" for path, line in places)
        raise AnchorError(f"safeguard {safeguard.anchor} is at {where}; keep one of them")
    path, line = places[0]
    try:
        text = (root / path).read_text(encoding="utf-8")
        return path, _changed_sql(safeguard, line, text) if path.suffix == ".sql" else _changed(safeguard, line, text)
    except (AnchorError, SyntaxError) as error:
        raise AnchorError(f"safeguard {safeguard.anchor} at {path}:{line}: {error}") from None


def _names_in(text: str) -> Iterator[tuple[str, int]]:
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if match := _COMMENT.search(line):
            while number < len(lines) and lines[number - 1].lstrip().startswith(("#", "--")):
                number += 1
            yield from ((name, number) for name in match[1].split(", "))


def _changed_sql(safeguard: Safeguard, line: int, text: str) -> str:
    lines = text.split("\n")
    lines[line - 1] = _without_part(safeguard, lines[line - 1])
    return "\n".join(lines)


def _changed(safeguard: Safeguard, line: int, text: str) -> str:
    statement = _statements(text).get(line)
    if statement is None:
        raise AnchorError("no statement begins on this line")
    begin, end = _span(statement, text)
    header_end = _header_end(statement, text)
    if safeguard.condition is not None:
        begin, end = _span(_expression(statement, "test"), text)
        new = str(safeguard.condition)
    elif safeguard.value is not None:
        begin, end = _span(_expression(statement, "value", "iter", "type"), text)
        new = safeguard.value
    elif safeguard.part is not None:
        end = header_end
        new = _without_part(safeguard, text[begin:end])
    else:
        new = "pass" if safeguard.new is None else safeguard.new
        end = header_end if new.endswith(":") else end
        indent = "\n" + " " * statement.col_offset
        code = text[begin:end]
        new = indent.join(each.replace("...", code) if each.strip() == "..." else each for each in new.split("\n"))
    changed = text[:begin] + new + text[end:]
    _check_syntax(safeguard, line, text, changed)
    return changed


def _check_syntax(safeguard: Safeguard, line: int, text: str, changed: str) -> None:
    """Compile the changed function; another statement with its file, which takes ten times as long."""
    nodes = _tree(text).body
    members = [member for node in nodes if isinstance(node, ast.ClassDef) for member in node.body]
    for node in (*nodes, *members):
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            first, last = _span(node, text)
            indent = node.col_offset
            header = "\n" * (node.lineno - 2) + "class _:\n" + " " * indent if indent else "\n" * (node.lineno - 1)
            changed = header + changed[first : last + len(changed) - len(text)]
            break
    compile(changed, safeguard.anchor, "exec", dont_inherit=True)


@cache  # of each file: many have several safeguards
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _statements(text: str) -> dict[int, ast.stmt | ast.excepthandler]:
    """Return the outermost statement that begins on each line."""
    found: dict[int, ast.stmt | ast.excepthandler] = {}
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.stmt | ast.excepthandler):
            found.setdefault(node.lineno, node)
    return found


def _expression(statement: ast.AST, *names: str) -> ast.expr:
    for name in names:
        if isinstance(expression := getattr(statement, name, None), ast.expr) and not isinstance(statement, ast.Expr):
            return expression
    raise AnchorError(f"{type(statement).__name__} has no {'condition' if names == ('test',) else 'value'}")


def _without_part(safeguard: Safeguard, code: str) -> str:
    part = safeguard.part or ""
    if not part or code.count(part) != 1:
        raise AnchorError(f"it has {part!r} {code.count(part)} times, not once")
    return code.replace(part, safeguard.new or "")


def _span(node: ast.stmt | ast.excepthandler | ast.expr, text: str) -> tuple[int, int]:
    """Return where a node begins and ends in a text."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return _offset(text, node.lineno, node.col_offset), _offset(text, node.end_lineno, node.end_col_offset)


def _offset(text: str, line: int, n_bytes: int) -> int:
    lines = text.split("\n")
    return sum(len(each) + 1 for each in lines[: line - 1]) + len(lines[line - 1].encode()[:n_bytes].decode())


def _header_end(statement: ast.stmt | ast.excepthandler, text: str) -> int:
    """Return where the header of a compound statement ends, behind its colon; of another, the statement itself."""
    begin, end = _span(statement, text)
    body = getattr(statement, "body", None)
    if not body:
        return end
    code = text[begin : _span(body[0], text)[0]]
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    colon = 0
    with contextlib.suppress(tokenize.TokenError, IndentationError):
        for token in tokens:
            if token.type == tokenize.OP and token.string == ":":
                colon = _offset(code, token.end[0], 0) + token.end[1]
    return begin + colon
