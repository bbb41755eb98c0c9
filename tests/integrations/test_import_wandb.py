"""Runs of W&B's own library, offline: what `chiplog import` brings into SQL is what the file's reader gives."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integrations import importing, wandb_runs
from tests.integrations.matrix import PYTHON, ROW
from tests.integrations.training import END_S
from tests.support.failed_output import ended_with
from tests.support.loopback import processes_with
from tests.support.node import Node
from tests.support.waiting import wait_until

_EXIT_CODES = {"loop": 0, "nested": 0, "summaries": 0, "config": 0, "failing": 1, "exiting": 3, "media": 0}
_STEP_METRICS = {"summaries": {"val/": "epoch", "twice": "epoch"}}  # of define_metric, by the beginning of a name
_LEFT_OUT = {"nested": {"list", "tuple", "array", "none"}}  # neither numbers nor texts
_PRIVATE = ("run_id", "damage", "history", "state")
_DIES = """
import os, signal, sys, wandb
run = wandb.init(config={"lr": 0.1})
for step in range(5_000):
    run.log({"loss": step / 7, "note": f"step {step}"})
    if step == 3_000:
        print("half", flush=True)
"""

_RESUMES = """
import sys, wandb
with wandb.init(id="{id}", resume="allow") as run:
    run.name, run.tags = "renamed", (*run.tags, "later")
    for step in range(int(sys.argv[1]), int(sys.argv[1]) + 2):
        run.log({{"loss": step}}, step=step)
"""


def _environ(node: Node, project: str) -> dict[str, str]:
    return wandb_runs.real_wandb({**os.environ, "CHIPLOG_DIR": str(node.root), "WANDB_PROJECT": project})


def _import(path: Path, node: Node, project: str, *options: str) -> str:
    command = [os.environ[PYTHON], "-m", "chiplog_cli", "import", str(path), "--dir", str(node.root)]
    done = subprocess.run(
        [*command, "--project", project, *options],
        cwd=path.parent,
        env=_environ(node, project),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=END_S,
    )
    assert done.returncode == 0, ended_with(done.returncode, done.stderr)
    return done.stderr


def _compare(theirs: Mapping[str, Any], ours: Mapping[str, Any], script: str = "") -> None:
    """Compare a run of W&B's file with SQL."""
    for name in theirs.keys() - {*_PRIVATE, "config", "summary"}:
        assert ours[name] == theirs[name], name
    for name in ("config", "summary"):
        assert _sorted(ours[name].items()) == _sorted(_of_one_word(name, theirs[name], script)), name
    axes, left_out = _STEP_METRICS.get(script, {}), _LEFT_OUT.get(script, ())
    rows: dict[int, dict[str, Any]] = {}
    for step, key, value in theirs["history"]:
        rows.setdefault(step, {})[key] = value
    expected = []
    for step, row in rows.items():
        for key, value in row.items():
            axis = next((metric for begin, metric in axes.items() if key.startswith(begin)), "")
            if key not in left_out:
                expected.append(
                    (row[axis] if axis else step, key, float(value) if type(value) in (int, bool) else value)
                )
    assert _sorted(ours["history"]) == _sorted(expected)


def _of_one_word(name: str, values: Mapping[str, Any], script: str) -> list[tuple[str, Any]]:
    """Return a summary with the value of one word of `define_metric` in the place of its dict."""
    is_defined = name == "summary" and script == "summaries"
    words = {"min", "max", "mean", "first", "last"}
    return [
        (key, *value.values()) if is_defined and isinstance(value, dict) and value.keys() <= words and len(value) == 1
        else (key, value)
        for key, value in values.items()
    ]  # fmt: skip


def _sorted(rows: Any) -> list[str]:
    """Return rows as texts in order. NaN equals itself then; SQL has it and infinities as texts in JSON."""
    texts = (json.dumps(list(row), sort_keys=True) for row in rows)
    return sorted(json.dumps(json.loads(text, parse_int=float, parse_constant=str)) for text in texts)


@pytest.mark.parametrize("script", list(_EXIT_CODES))
def test_an_import_brings_what_wandb_recorded(
    script: str, shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environ = _environ(shared_node, tmp_path.name)
    command = [os.environ[PYTHON], str(wandb_runs.SCRIPTS / f"{script}.py")]
    ended = subprocess.run(command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, timeout=END_S)
    assert ended.returncode == _EXIT_CODES[script]
    version, recorded = wandb_runs.of_wandb(tmp_path)
    told = _import(tmp_path, shared_node, tmp_path.name)
    n_rows = sum(len(run["history"]) for run in recorded)
    row = {"library": "import of W&B's .wandb files", "version": version, "ranks": 1, "rows": n_rows}
    request.node.user_properties.append((ROW, row))
    stored = {run["run_id"]: run for run in wandb_runs.of_sql(shared_node, tmp_path.name)}
    assert stored.keys() == {run["run_id"] for run in recorded}
    for run in recorded:
        assert run["damage"] == []
        _compare(run, stored[run["run_id"]], script)
        assert stored[run["run_id"]]["state"] == ("failed" if _EXIT_CODES[script] else "finished")
    again = _import(tmp_path, shared_node, tmp_path.name)
    assert again.count("it had all of its events before") == len(recorded), told + again


def test_a_killed_run_and_a_file_that_is_cut_off_have_what_their_reader_gives(
    shared_node: Node, tmp_path: Path
) -> None:
    environ = {**_environ(shared_node, tmp_path.name), "WANDB_CONSOLE": "off"}
    training = subprocess.Popen(
        [os.environ[PYTHON], "-c", _DIES], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, start_new_session=True
    )
    assert training.stdout is not None
    assert training.stdout.readline() == b"half\n"
    wait_until(lambda: sum(path.stat().st_size for path in tmp_path.rglob("*.wandb")) > 50_000, "some of the file")
    os.killpg(training.pid, signal.SIGKILL)
    training.wait()
    training.stdout.close()
    project = environ["WANDB_PROJECT"]
    wait_until(lambda: not processes_with("WANDB_PROJECT", project), "the end of its core, in a session of its own")
    [path] = tmp_path.rglob("run-*.wandb")
    cut = tmp_path / "cut" / "wandb" / path.parent.name / path.name
    cut.parent.mkdir(parents=True)
    shutil.copyfile(path, cut)
    os.truncate(cut, path.stat().st_size * 2 // 3 - 11)
    for directory, project in ((tmp_path, tmp_path.name), (tmp_path / "cut", f"{tmp_path.name}-cut")):
        _, [recorded] = wandb_runs.of_wandb(directory)
        as_ = recorded["run_id"] if directory == tmp_path else f"{recorded['run_id']}-cut"
        told = _import(directory / "wandb", shared_node, project, "--as", as_)
        [stored] = wandb_runs.of_sql(shared_node, project)
        assert stored["run_id"] == as_
        assert len(recorded["history"]) > 100
        _compare(recorded, stored)
        if recorded["exit_code"] is None:
            assert stored["state"] == "crashed"
        assert ("damaged parts of the file" in told) == bool(recorded["damage"])


def test_the_folders_of_a_resumed_run_are_attempts_in_the_order_of_their_starts(
    shared_node: Node, tmp_path: Path
) -> None:
    for first in (0, 3):
        command = [os.environ[PYTHON], "-c", _RESUMES.format(id=f"{tmp_path.name}-resumed"), str(first)]
        environ = _environ(shared_node, tmp_path.name)
        subprocess.run(command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, check=True, timeout=END_S)
    assert _import(tmp_path / "wandb", shared_node, tmp_path.name).count("2 points") == 2
    query = "SELECT attempt, step, value FROM metrics WHERE run_id = $run ORDER BY attempt, step"
    rows = shared_node.sql(query, {"run": f"{tmp_path.name}-resumed"})
    [run] = shared_node.sql("FROM runs WHERE run_id = $run", {"run": f"{tmp_path.name}-resumed"})
    assert (run["name"], run["tags"], run["n_attempts"]) == ("renamed", ["later"], 2)
    assert [tuple(row.values()) for row in rows] == [(0, 0, 0.0), (0, 1, 1.0), (1, 3, 3.0), (1, 4, 4.0)]


def test_a_file_of_an_older_wandb_has_its_steps_and_nested_values(shared_node: Node, tmp_path: Path) -> None:
    path = importing.SCRIPTS / "write_old_wandb.py"
    command = [os.environ[PYTHON], str(path)]
    subprocess.run(command, cwd=tmp_path, env=_environ(shared_node, ""), check=True, timeout=END_S)
    _import(tmp_path / "run-old-wandb.wandb", shared_node, tmp_path.name)
    [run] = wandb_runs.of_sql(shared_node, tmp_path.name)
    assert sorted(map(str, run["history"])) == [
        "[1, 'epoch', 1.0]",
        "[1, 'eval/acc', 0.25]",
        "[3, 'a/b/c', 1.0]",
        "[3, 'loss', 0.5]",
        "[9, 'hist', {'edges': [0.0, 1.0, 2.0], 'counts': [1.0, 2.0]}]",
        "[9, 'note', 'x']",
    ]
    assert (run["state"], run["exit_code"], run["config"]) == ("failed", 1, {"model": {"dim": 4}})
    assert (run["summary"]["eval/acc"], run["summary"]["a"]) == (0.25, {"b": {"c": 1}})
