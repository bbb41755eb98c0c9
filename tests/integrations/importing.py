"""`chiplog import` of what a real library wrote, in a process, and the rows that SQL has then."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.integrations.matrix import PYTHON
from tests.integrations.training import END_S
from tests.support.failed_output import ended_with
from tests.support.node import Node

SCRIPTS = Path(__file__).with_name("trainings") / "imported"


def run_script(name: str, *arguments: object, directory: Path | None = None, **environ: str) -> str:
    """Run a script of trainings/imported where the libraries are, and return what it printed."""
    return _run([str(SCRIPTS / name), *map(str, arguments)], environ, directory=directory).stdout


def run_reader(name: str, *arguments: object, **environ: str) -> Any:
    """Return the JSON that such a script printed last."""
    return json.loads(run_script(name, *arguments, **environ).splitlines()[-1])


def import_into(node: Node, *arguments: object, exit_code: int = 0, **environ: str) -> list[str]:
    """Import into the collector of a node; return the lines on stderr."""
    command = ["-m", "chiplog_cli", "import", "--dir", str(node.root), *map(str, arguments)]
    return _run(command, environ, exit_code).stderr.splitlines()


def _run(
    arguments: list[str], environ: dict[str, str], exit_code: int = 0, directory: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    ended = subprocess.run(
        [os.environ[PYTHON], *arguments],
        env={**os.environ, **environ},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=END_S,
    )
    assert ended.returncode == exit_code, ended_with(ended.returncode, ended.stdout + ended.stderr)
    return ended
