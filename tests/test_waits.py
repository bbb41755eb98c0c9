"""Every timeout of a test is a multiple of the unit in tests/support/waiting.py."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent
SHORT_S = 5.0  # below, it is the length of a fault or the pause of a loop
CLOCKS = {  # times of the product's own clock, not of a wait
    "agent/stats/test_sampler_lease.py",
    "agent/test_daemon.py",
    "collector/index/cleaning/test_log_cleaner.py",
    "sdk/journal/test_journal.py",
}
WAITS = ("acquire", "communicate", "get", "join", "settimeout", "wait")


def timeouts_of(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield what a module gives as a timeout or adds to the time of now."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (each.value for each in node.keywords if each.arg == "timeout")
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if (name in WAITS and len(node.args) == 1) or (name == "select" and len(node.args) == 4):
                yield node.args[-1]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and "monotonic()" in ast.unparse(node.left):
            yield node.right


def test_no_timeout_is_a_number_of_seconds() -> None:
    found = []
    for path in ROOT.rglob("*.py"):
        name = str(path.relative_to(ROOT))
        if name not in CLOCKS and not name.startswith("bench/"):
            for node in timeouts_of(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value >= SHORT_S:
                    found.append(f"{name}:{node.lineno}: {node.value} s; write a multiple of WAIT_S")
    assert found == []
