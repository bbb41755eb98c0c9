"""W&B's own library, offline, beside the drop-in and beside `mirror()`: its `.wandb` file and SQL have the same runs.

The scripts of trainings/plain_wandb only import wandb.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integrations import wandb_runs
from tests.integrations.matrix import PYTHON, ROW
from tests.integrations.training import END_S
from tests.support.failed_output import ended_with
from tests.support.node import Node
from tests.support.waiting import wait_until

_EXIT_CODES = {
    "loop": 0,
    "nested": 0,
    "summaries": 0,
    "config": 0,
    "failing": 1,
    "exiting": 3,
    "finished": 0,
    "media": 0,
}
_NOTHING = object()
_SUMMARY_WORDS = {"min", "max", "mean", "first", "last"}
# What differs by design, as docs/switch/wandb.md lists it: what SQL has in the place of W&B's value.
_LISTS = {
    (place, *key): _NOTHING
    for name in ("list", "tuple", "array")
    for place, key in (("summary", [name]), ("history", [2, name]))
}
_BY_DESIGN: dict[str, dict[tuple[Any, ...], Any]] = {
    "nested": {
        **_LISTS,  # neither numbers nor texts
        ("history", 2, "none"): _NOTHING,
        ("history", 5, "int"): float(2**60),  # a number of 64 bits
        ("summary", "int"): float(2**60),
    },
    "summaries": {
        ("summary", "not_a_number"): "NaN",
        ("summary", "gone"): 1,  # deleted in the process; what was recorded stays
    },
}
_PAGES = {
    "html": b'<base target="_blank"><p>hi</p>',
    "page": b'<html><head><base target="_blank"></head><body>hi</body></html>',
}
_OF_DROP_IN: dict[str, dict[tuple[Any, ...], Any]] = {
    "config": {("config", "nan"): "NaN", ("config", "bytes"): "b'ab'"},
    # without W&B's style sheet, which is on another host
    "media": {
        ("history", 3, key): [{"caption": None, "content": wandb_runs.content_digest(page)}]
        for key, page in _PAGES.items()
    },
}


@pytest.mark.parametrize("script", list(_EXIT_CODES))
def test_the_drop_in_records_what_wandb_records(
    script: str, shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environ = _environ(shared_node, tmp_path.name)
    path = str(wandb_runs.SCRIPTS / f"{script}.py")
    _run([path], tmp_path / "real", wandb_runs.real_wandb(environ), _EXIT_CODES[script])
    as_wandb = ["-m", "chiplog_cli", "run", "--as", "wandb", "--", os.environ[PYTHON], path]
    _run(as_wandb, tmp_path / "drop-in", environ, _EXIT_CODES[script])
    by_design = {**_BY_DESIGN.get(script, {}), **_OF_DROP_IN.get(script, {})}
    _compare("W&B, offline beside the drop-in", tmp_path / "real", shared_node, tmp_path.name, by_design, request)


@pytest.mark.parametrize("script", list(_EXIT_CODES))
def test_mirror_records_what_wandb_records(
    script: str, shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    mirrored = [str(wandb_runs.SCRIPTS.parent / "mirrored.py"), str(wandb_runs.SCRIPTS / f"{script}.py")]
    environ = wandb_runs.real_wandb(_environ(shared_node, tmp_path.name))
    _run(mirrored, tmp_path, environ, _EXIT_CODES[script])
    by_design = _BY_DESIGN.get(script, {})
    found = _compare("W&B, offline with mirror()", tmp_path, shared_node, tmp_path.name, by_design, request)
    assert [run["run_id"] for run in found[0]] == [run["run_id"] for run in found[1]]


def _environ(node: Node, project: str) -> dict[str, str]:
    return {**os.environ, "CHIPLOG_DIR": str(node.root), "WANDB_PROJECT": project}


def _run(arguments: list[str], directory: Path, environ: dict[str, str], exit_code: int) -> None:
    directory.mkdir(exist_ok=True)
    ended = subprocess.run(
        [os.environ[PYTHON], *arguments],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=END_S,
    )
    assert ended.returncode == exit_code, ended_with(ended.returncode, ended.stdout)


def _compare(
    library: str,
    directory: Path,
    node: Node,
    project: str,
    by_design: dict[tuple[Any, ...], Any],
    request: pytest.FixtureRequest,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Compare the `.wandb` files below a directory with SQL; return both."""
    version, recorded = wandb_runs.of_wandb(directory)
    row = {"library": library, "version": version, "ranks": 1, "rows": sum(len(run["history"]) for run in recorded)}
    request.node.user_properties.append((ROW, row))
    assert recorded
    assert [run["damage"] for run in recorded] == [[]] * len(recorded)
    stored: list[dict[str, Any]] = []
    differences = ["nothing was asked yet"]

    def is_same() -> bool:
        stored[:] = wandb_runs.of_sql(node, project)
        differences[:] = [f"{len(recorded)} runs, in SQL {len(stored)}"] if len(stored) != len(recorded) else []
        for ours, theirs in zip(stored, recorded, strict=False):
            differences.extend(_differences(_places(theirs), _places(ours), by_design))
        return not differences

    try:
        wait_until(is_same, "the runs")
    except AssertionError:
        raise AssertionError("\n".join(differences)) from None
    return recorded, stored


def _differences(
    theirs: dict[tuple[Any, ...], Any], ours: dict[tuple[Any, ...], Any], by_design: dict[tuple[Any, ...], Any]
) -> list[str]:
    """Return a line for each difference, and for each that is by design and is not there."""
    found = [f"{place}: no difference" for place, value in by_design.items() if theirs.get(place, _NOTHING) == value]
    for place in sorted({*theirs, *ours}, key=str):
        wanted, stored = by_design.get(place, theirs.get(place, _NOTHING)), ours.get(place, _NOTHING)
        if wanted != stored:
            found.append(f"{place}: W&B {wanted!r:.200}, chiplog {stored!r:.200}")
    return found


def _places(run: dict[str, Any]) -> dict[tuple[Any, ...], Any]:
    """Return the values of a run by place: ("summary", key), ("history", step, key) …."""
    found: dict[tuple[Any, ...], Any] = {}
    for name in ("name", "notes", "tags", "group", "job_type", "exit_code"):
        found[name,] = run[name]
    found |= {("config", key): _text(value) for key, value in run["config"].items()}
    found |= {("summary", key): _text(value) for key, value in _flat("", run["summary"])}
    for step, key, value in run["history"]:
        assert ("history", step, key) not in found, f"{key} at step {step} is there twice"
        found["history", step, key] = _text(value)
    return found


def _flat(prefix: str, values: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return a summary without nesting. One word of `define_metric(summary=)` is the value itself in SQL."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) and len(value) == 1 and set(value) <= _SUMMARY_WORDS:
            found.append((prefix + key, *value.values()))
        elif isinstance(value, dict):
            found += _flat(f"{prefix}{key}/", value)
        else:
            found.append((prefix + key, value))
    return found


def _text(value: Any) -> Any:
    """Return NaN and infinities as texts, as SQL has them in JSON; they equal themselves then."""
    if isinstance(value, float | str):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), value)
    return json.loads(json.dumps(value), parse_constant=str)
