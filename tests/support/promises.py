"""What chiplog promises, and the tests that prove it: those with the mark `promise(number)`.

Each promise has a test of the part that keeps it, in a folder that mirrors a package, and one of whole processes. Both
are in `make test`. The table in docs/reliability.md is made of this.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.marks import MIRRORS, TESTS, marks_of

PROMISES = {
    1: "A host value whose `log()` returned survives SIGKILL of its process, of the agent and of the "
    "collector, at any moment. It is stored once. If a bound or a dead disk made that impossible, the "
    "loss is declared.",
    2: "Acknowledged means synced to disk at that hop, also when the power fails.",
    3: "Telemetry never blocks training, raises into it or ends it: with a stopped agent, a full disk, no "
    "collector, or garbage values. `init()` waits for no daemon; `finish()` waits at most 1 s.",
    4: "Memory and disk are bounded. produced = stored + lost + pending, and pending ends as one of the "
    "other two. For a label lost with its node, produced and pending are NULL until it is back.",
    5: "A damaged record costs that record; the rest is read and the range is reported. A damaged database "
    "is rebuilt from the log.",
    6: "An outage of any length only delays, up to the quota.",
    7: "A second primary, or a stale one, changes nothing. The refusal is recorded.",
    8: "An unknown or unauthorised peer stores and reads nothing. Malformed bytes crash no daemon.",
    9: "A hanging GPU driver does not stop other statistics or the agent. A heavy query does not stop the receiver.",
    10: "Clocks may be wrong: order is by producer and `seq`.",
    11: "A store has each row of a collector's log once, whichever process is killed, and whatever is away, copied, "
    "restored or rebuilt in between. A store that is away costs room at the collector, and no acknowledgement.",
}


@dataclass(frozen=True)
class Proof:
    """A test of a promise."""

    number: int
    path: str  # below tests/
    name: str
    is_full: bool

    @property
    def is_of_a_part(self) -> bool:
        return self.path.split("/")[0] in MIRRORS


@cache
def proofs() -> tuple[Proof, ...]:
    """Return the tests with the mark, without importing them."""
    paths = [path for path in sorted(TESTS.rglob("test_*.py")) if "mark.promise(" in path.read_text(encoding="utf-8")]
    return tuple(proof for path in paths for proof in _proofs_in(path))


def _proofs_in(path: Path) -> Iterator[Proof]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef):
            continue
        marks = [ast.unparse(decorator) for decorator in node.decorator_list]
        is_full = "pytest.mark.full" in marks or "full" in marks_of(path)
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.promise":
                for number in decorator.args:
                    assert isinstance(number, ast.Constant) and isinstance(number.value, int), path
                    yield Proof(number.value, path.relative_to(TESTS).as_posix(), node.name, is_full)


def table() -> str:
    """Return a row for each promise: number, text, and its tests by level."""
    lines = ["| # | promise | tests of the part | tests of whole processes |", "|---|---|---|---|"]
    for number, text in PROMISES.items():
        cells = [
            "<br>".join(
                f"`{proof.path}::{proof.name}`{' (full)' if proof.is_full else ''}"
                for proof in proofs()
                if proof.number == number and proof.is_of_a_part == is_of_a_part
            )
            for is_of_a_part in (True, False)
        ]
        lines.append(f"| {number} | {text} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)
