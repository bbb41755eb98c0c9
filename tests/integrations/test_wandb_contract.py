"""What W&B documents of a run, in SQL: a script for each kind of promise, unchanged, by `chiplog run --as wandb`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.matrix import PYTHON, ROW
from tests.integrations.training import END_S
from tests.support.failed_output import ended_with
from tests.support.node import Node
from tests.support.waiting import WAIT_S, wait_until

CONSOLE = """
import os
import wandb

for run_id, console in (("captured", "auto"), ("off", "off")):
    with wandb.init(id=PROJECT + run_id, settings={"console": console}) as run:
        print("by print")
        os.write(2, b"by a library in C\\n")
        run.write_logs("by write_logs")
print("after the runs")
"""
SUMMARY = """
import wandb

with wandb.init(id=PROJECT) as run:
    run.define_metric("epoch", hidden=True)
    run.define_metric("val/*", step_metric="epoch", summary="min")
    run.define_metric("acc", summary="max,mean")
    run.define_metric("noise", summary="none")
    for epoch in range(3):
        run.log({"epoch": epoch, "acc": float(epoch), "noise": 1.0})
        run.log({"val": {"loss": 1.0 - epoch / 4}}, commit=False)
        run.log({"last": 10.0 * epoch})
    run.log({"wrong": 1.0})
    del run.summary["wrong"]
    run.summary["best"] = {"epoch": 2}
    seen = {key: run.summary[key] for key in ("acc", "last")} | {"min": run.summary["val/loss"]["min"]}
    assert seen == {"acc": {"max": 2.0, "mean": 1.0}, "last": 20.0, "min": 0.5}, seen
"""
ENDS = """
import wandb

wandb.init(id=PROJECT + "good").finish()
wandb.init(id=PROJECT + "code")
wandb.finish(exit_code=3)
try:
    with wandb.init(id=PROJECT + "with"):
        raise ValueError("in a block")
except ValueError:
    pass
wandb.init(id=PROJECT + "uncaught")
raise RuntimeError("of the script")
"""
FIRST = """
import wandb

with wandb.init(id=PROJECT, config={"lr": 0.1, "depth": 2}, tags=["old"], notes="first", name="n") as run:
    assert not run.resumed
    run.log({"loss": 10.0}, step=15)
"""
RESUMED = """
import wandb

with wandb.init(id=PROJECT, resume="allow", config={"lr": 0.2}) as run:
    assert run.resumed and run.starting_step == run.step == 16, run.step
    assert (run.config["depth"], run.config["lr"], run.notes, run.tags) == (2, 0.2, "first", ("old",))
    assert run.summary["loss"] == 10.0
    run.tags += ("new",)
    run.log({"loss": 15.0})
"""
DISABLED = """
import os
import wandb

with wandb.init(mode="disabled", config={"lr": 0.1}, id=PROJECT) as run:
    run.log({"loss": 1.0})
    run.log({"loss": 0.5})
    run.summary["best"] = 0.5
    run.save("nothing.txt")
    assert (run.summary["loss"], run.summary["best"], run.config.lr, run.step) == (0.5, 0.5, 0.1, 2)
    assert wandb.run is run and run.disabled and run.url is None
assert os.listdir(".") == ["script.py"], os.listdir(".")
"""
# Every call here is one that W&B refuses. The errors are in a file, because the console is chiplog's business.
REFUSED = """
import json, pickle
import wandb

def attempt(call):
    try:
        call()
    except Exception as error:
        errors.append([type(error).__name__, isinstance(error, wandb.Error)])
    wandb.teardown()

def shared_step():
    return wandb.init(mode="shared", id=PROJECT + "shared").step

def same_process():
    return pickle.loads(pickle.dumps(wandb.init()))

errors = []
attempt(lambda: wandb.init(id=PROJECT + "unknown", resume="must"))
attempt(lambda: wandb.init(id=PROJECT + "known", resume="never"))
attempt(lambda: wandb.init(config={"a": 1, "b": 2}, config_include_keys=["a"], config_exclude_keys=["b"]))
attempt(shared_step)
attempt(same_process)
with open("errors.json", "w") as file:
    json.dump(errors, file)
"""
# Reads of what is stored may take as long as this machine needs.
PATIENT = """
from chiplog.integrations.wandb import start, wandb_run
start._STRICT_WAIT_S = wandb_run.FORMER_WAIT_S = {}
"""


class Script:
    """Runs scripts in a project of its own, and asks for the rows of that project."""

    def __init__(self, node: Node, directory: Path, row: dict[str, Any]) -> None:
        self.project = directory.name
        self.directory = directory
        self._node = node
        self._row = row

    def run(self, text: str, exit_code: int = 0, **environ: str) -> str:
        """Run a script to its end. In it PROJECT is a text that all IDs of runs begin with."""
        (self.directory / "script.py").write_text(f"PROJECT = {self.project!r}\n{text}")
        python = os.environ[PYTHON]
        named = {"CHIPLOG_DIR": str(self._node.root), "WANDB_PROJECT": self.project, **environ}
        done = subprocess.run(
            [python, "-m", "chiplog_cli", "run", "--as", "wandb", "--", python, "script.py"],
            env={**os.environ, **named},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=END_S,
        )
        assert done.returncode == exit_code, ended_with(done.returncode, done.stdout)
        return done.stdout

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, with OWN for `run_id` of this project, and that without the project."""
        query = query.replace("OWN", f"replace(run_id, '{self.project}', '')")
        found = self._node.try_sql(f"{query} WHERE starts_with(run_id, '{self.project}') ORDER BY ALL")
        return [tuple(row.values()) for row in found]

    def expect(self, query: str, expected: list[tuple[Any, ...]]) -> None:
        """Wait until a query has these rows."""
        seen: list[Any] = []

        def is_right() -> bool:
            seen[:] = self.rows(query)
            return seen == expected

        try:
            wait_until(is_right, "the rows")
        except AssertionError:
            raise AssertionError(f"{query}\nhas {seen}\nnot {expected}") from None
        self._row["rows"] = self._row.get("rows", 0) + len(expected)


@pytest.fixture
def script(shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest) -> Script:
    kind = request.node.name.removeprefix("test_").replace("_", " ")
    row = {"library": f"wandb: {kind}", "version": "0.31.0", "ranks": 1}
    request.node.user_properties.append((ROW, row))
    return Script(shared_node, tmp_path, row)


def test_console_has_what_a_run_prints_and_is_given(script: Script) -> None:
    assert "after the runs" in script.run(CONSOLE)
    lines = [("captured", line) for line in ("by a library in C", "by print", "by write_logs")]
    script.expect("SELECT OWN, line FROM console", [*lines, ("off", "by write_logs")])


def test_summary_follows_define_metric(script: Script) -> None:
    script.run(SUMMARY)
    words = [("acc", {"max": 2.0, "mean": 1.0}), ("best/epoch", 2), ("epoch", 2.0), ("last", 20.0), ("val/loss", 0.5)]
    script.expect("SELECT key, value FROM run_summary", [(key, json.dumps(value)) for key, value in words])


def test_exit_codes_are_states(script: Script) -> None:
    script.run(ENDS, exit_code=1)
    ends = [("code", "failed", 3), ("good", "finished", 0), ("uncaught", "failed", 1), ("with", "failed", 1)]
    script.expect("SELECT OWN, state, exit_code FROM runs", ends)
    reasons = ["finish(exit_code=3)", None, "RuntimeError: of the script", "ValueError: in a block"]
    script.expect("SELECT OWN, reason FROM labels", [(end[0], why) for end, why in zip(ends, reasons, strict=True)])


def test_resume_continues_config_tags_summary_and_steps(script: Script) -> None:
    script.run(FIRST)
    script.expect("SELECT OWN, state FROM runs", [("", "finished")])
    script.run(PATIENT.format(WAIT_S) + RESUMED)
    script.expect("SELECT step, value FROM metrics", [(15, 10.0), (16, 15.0)])
    script.expect("SELECT key, value FROM config", [("depth", "2"), ("lr", "0.2")])
    script.expect("SELECT name, notes, tags, state FROM runs", [("n", "first", ["old", "new"], "finished")])


def test_disabled_runs_leave_nothing(script: Script) -> None:
    script.run(DISABLED)
    script.run("import wandb\nwandb.init(id=PROJECT + 'marker').finish()")
    script.expect("SELECT OWN FROM runs", [("marker",)])


@pytest.mark.parametrize("strict", ["", "true"], ids=["default", "strict"])
def test_refused_calls_raise_in_strict_mode_only(script: Script, strict: str) -> None:
    script.run("import wandb\nwandb.init(id=PROJECT + 'known').finish()")
    script.expect("SELECT OWN, state FROM runs", [("known", "finished")])
    script.run(PATIENT.format(WAIT_S) + REFUSED, WANDB_STRICT=strict)
    found = json.loads((script.directory / "errors.json").read_text())
    errors = [*[["UsageError", True]] * 3, ["Error", True], ["RuntimeError", False]]
    assert found == (errors if strict else [])
