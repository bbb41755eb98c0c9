"""One directory in front of the path: `import wandb` is chiplog's, in children too."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import indent

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
@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver", "subprocess"])
def test_children_get_it_too_beside_an_installed_wandb(tmp_path: Path, way: str) -> None:
    (tmp_path / "wandb").mkdir()  # of old runs, beside the script
    installed = tmp_path / "site"
    (installed / "wandb").mkdir(parents=True)
    (installed / "wandb/__init__.py").write_text("raise ImportError('the installed wandb is imported')")
    (installed / "wandb-0.20.0.dist-info").mkdir()
    (installed / "wandb-0.20.0.dist-info/METADATA").write_text("Name: wandb\nVersion: 0.20.0\n")
    (tmp_path / "child.py").write_text(
        f"def check():\n{indent(CODE, '    ')}\nif __name__ == '__main__':\n    check()\n"
    )
    (tmp_path / "script.py").write_text(
        "import multiprocessing, subprocess, sys, child\n"
        "if __name__ == '__main__':\n"
        "    child.check()\n"
        f"    way = {way!r}\n"
        "    if way == 'subprocess':\n"
        "        subprocess.run([sys.executable, 'child.py'], check=True)\n"
        "    else:\n"
        "        process = multiprocessing.get_context(way).Process(target=child.check)\n"
        "        process.start(); process.join(); assert process.exitcode == 0\n"
    )
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = as_wandb.variables({**os.environ, "PYTHONPATH": path})
    said = ran(
        "import runpy, sys; sys.path.insert(0, ''); runpy.run_path('script.py', run_name='__main__')",
        tmp_path,
        **environ,
    )
    assert said == ""


def test_a_foreign_wandb_that_was_imported_before_is_named(tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("")
    said = ran("import wandb, chiplog", tmp_path, CHIPLOG_AS_WANDB="1")
    assert f"but wandb was imported from {tmp_path}/wandb.py before; import chiplog first" in said
