"""One directory in front of the path: `import wandb` is chiplog's, in children too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog.integrations.adapter import as_wandb
from tests.support.waiting import WAIT_S

CODE = """
import importlib.metadata, importlib.util, sys
import wandb, wandb.sdk.wandb_run
from wandb.errors import UsageError
import chiplog.integrations.wandb as drop_in
assert wandb is drop_in and wandb.sdk is drop_in.sdk and wandb.errors.UsageError is UsageError is drop_in.UsageError
assert importlib.util.find_spec("wandb") is not None and importlib.metadata.version("wandb") == "0.31.0"
assert hasattr(wandb, "run") and wandb.__version__ == "0.31.0"
"""


def ran(code: str, directory: Path, **environ: str) -> str:
    env = {**os.environ, "CHIPLOG_DIR": str(directory / "chiplog"), **environ}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=directory, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_directory_comes_first_once_and_keeps_what_was_there() -> None:
    once = as_wandb.variables({"PYTHONPATH": os.pathsep.join(["/a", "/b"])})
    assert once == {"CHIPLOG_AS_WANDB": "1", "PYTHONPATH": os.pathsep.join([as_wandb.DIRECTORY, "/a", "/b"])}
    assert as_wandb.variables(once) == once
    assert as_wandb.variables({})["PYTHONPATH"] == as_wandb.DIRECTORY


@pytest.mark.parametrize("start", ["", "import chiplog\n"])
def test_import_wandb_is_the_drop_in_under_both_names(tmp_path: Path, start: str) -> None:
    (tmp_path / "wandb").mkdir()  # of old runs, beside the script
    said = ran(start + CODE, tmp_path, **as_wandb.variables(os.environ))
    assert said == ""


@pytest.mark.full
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_get_it_too(tmp_path: Path, method: str) -> None:
    (tmp_path / "script.py").write_text(
        "import multiprocessing, wandb\n"
        "def child(): import wandb; assert wandb.__name__ == 'chiplog.integrations.wandb'\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context({method!r}).Process(target=child)\n"
        "    process.start(); process.join(); assert process.exitcode == 0\n"
    )
    ran("import runpy; runpy.run_path('script.py', run_name='__main__')", tmp_path, **as_wandb.variables(os.environ))


def test_a_foreign_wandb_that_was_imported_before_is_named(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("")
    said = ran("import wandb, chiplog", tmp_path, CHIPLOG_AS_WANDB="1")
    assert f"but wandb was imported from {tmp_path}/wandb.py before; import chiplog first" in said
