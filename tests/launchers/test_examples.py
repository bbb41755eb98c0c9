"""The guides in docs/guides, run as printed: each command line, each query, and the rows that it shows.

A page is one test. A shell runs the lines that begin with `$`, in sdk/examples. The lines after a `chiplog sql` are its
result, one row per line, with columns separated by two spaces; `*` matches any value, `-` is NULL.
Blocks that name a language are for other machines and are not run.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.training import STARTUP
from tests.support.node import Node
from tests.support.tools import require
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.timeout(900)  # a few start torch six times, perhaps beside other tests

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "sdk" / "examples"
LINES_MAX = 40
LARGER = ("char_gpt.py", "demo.py")  # no guides: what `make demo` runs


@dataclass
class Line:
    """One command of a guide, and the output that the guide shows after it."""

    command: str
    shown: list[str] = field(default_factory=list)


def guides() -> dict[str, list[Line]]:
    """Return the commands of each page in docs/guides, pages without commands left out."""
    found: dict[str, list[Line]] = {}
    for page in sorted((ROOT / "docs" / "guides").glob("*.md")):
        lines: list[Line] = []
        for language, block in re.findall(
            r"^```(\S*).*?\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
        ):
            for line in block.splitlines() if not language else ():
                if line.startswith("$ "):
                    lines.append(Line(line.removeprefix("$ ")))
                elif lines[-1].command.endswith("\\"):
                    lines[-1].command = lines[-1].command.removesuffix("\\") + line.strip()
                else:
                    lines[-1].shown.append(line)
        if lines:
            found[page.stem] = lines
    return found


GUIDES = guides()
EVERYDAY = {"plain-script", "config-files", "console", "labels", "manage-runs", "pass-run"}  # the others are full


@pytest.fixture
def shell(shared_node: Node, tmp_path: Path) -> Iterator[Any]:
    """Return a function that runs a command line in sdk/examples and returns its output. Left processes are killed."""
    left: list[subprocess.Popen[str]] = []
    environ = os.environ | {
        "CHIPLOG_DIR": str(shared_node.root),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (STARTUP, os.environ.get("PYTHONPATH")))),
        "PYTHONWARNINGS": "ignore",  # torch's warnings, which would mix with the output
        "TMPDIR": str(tmp_path),
    }

    def run(command: str, expected: list[str]) -> str:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=EXAMPLES,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        left.append(process)
        output, _ = process.communicate(timeout=2 * WAIT_S)
        said = [line for line in output.splitlines() if line.startswith("chiplog: ") and line not in expected]
        assert not said, f"{command}\n{output}"
        return f"{output}\n[exit {process.returncode}]"

    yield run
    for process in left:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended, and all of its group
        process.wait()


def cell(value: Any) -> str:
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def rows_of(node: Node, query: str) -> list[list[str]]:
    rows = node.try_sql(query)
    return [list(rows[0]), *([cell(value) for value in row.values()] for row in rows)] if rows else []


def matches(shown: list[list[str]], found: list[list[str]]) -> bool:
    """Return True if the rows are those that the guide shows."""
    return len(shown) == len(found) and all(
        len(one) == len(other)
        and all(re.fullmatch(re.escape(a).replace(r"\*", ".*"), b) for a, b in zip(one, other, strict=True))
        for one, other in zip(shown, found, strict=True)
    )


@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=() if title in EVERYDAY else pytest.mark.full) for title in GUIDES]
)
def test_a_guide_does_what_it_shows(title: str, shell: Any, shared_node: Node) -> None:
    if any("spark" in line.command for line in GUIDES[title]):
        require("java")
    said = ""
    for line in GUIDES[title]:
        if line.command.startswith('chiplog sql "'):
            query = shlex.split(line.command)[2]
            shown = [re.split(r" {2,}", row.strip()) for row in line.shown]
            found: list[list[str]] = []

            def holds(query: str = query, shown: list[list[str]] = shown) -> bool:
                nonlocal found
                found = rows_of(shared_node, query)
                return matches(shown, found)

            try:
                wait_until(holds, query, WAIT_S / 3)
            except AssertionError:
                table = "\n".join("  ".join(row) for row in found)
                raise AssertionError(f"{query}\nthe guide shows\n{line.shown}\nSQL has\n{table}\n{said}") from None
        else:
            said += run_until_shown(shell, line)


def run_until_shown(shell: Any, line: Line) -> str:
    """Run a command that is not a query, and return its output. Repeat commands of chiplog until data has arrived."""
    output, missing = "", list(line.shown)

    def shows() -> bool:
        nonlocal output, missing
        output = shell(line.command, line.shown)
        printed = output.splitlines()
        missing = [row for row in line.shown if not any(as_pattern(row).fullmatch(text) for text in printed)]
        return not missing or not line.command.startswith("chiplog ")

    wait_until(shows, line.command, WAIT_S / 3)
    assert not missing, (missing, output)
    return f"$ {line.command}\n{output}"


def as_pattern(row: str) -> "re.Pattern[str]":
    """Return the pattern of a printed line in which `*` is any text."""
    return re.compile(re.escape(row).replace(r"\*", ".*"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_each_example_is_short_and_its_command_stands_in_a_guide(path: Path) -> None:
    if path.name in LARGER:
        return
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES_MAX
    command = re.search(r"^Run: `(.+?)`", text.split('"""')[1], re.MULTILINE)
    assert command is not None, "its docstring has the command that runs it"
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "guides").glob("*.md"))
    assert command[1] in pages, f"no guide has: {command[1]}"
    assert any(path.name in line.command for lines in GUIDES.values() for line in lines), "no guide runs it"
    assert f"`{path.name}`" in (EXAMPLES / "README.md").read_text(encoding="utf-8")
