"""The variable that names a process's open run to its children: set while a run is open, then restored."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import chiplog
from chiplog.identity.identity import Identity
from chiplog.identity.inherited_env import export_run, restore_environ
from chiplog_schemas.process.inherited_run import PARENT_RUN, decode_inherited
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S


def test_a_run_is_named_to_child_processes_only_while_it_is_open(chiplog_dir) -> None:
    run = chiplog.init(mode="offline", capture_console=False)
    assert os.environ[PARENT_RUN].startswith(f"{os.getpid()}:{run.id}/{run.label}/")
    run.finish()
    assert PARENT_RUN not in os.environ


def test_each_init_of_a_child_joins_its_parents_run(chiplog_dir, monkeypatch) -> None:
    """As of a worker of a pool, which opens a run for each task."""
    parents = "99:parents/node-a-word//"
    monkeypatch.setenv(PARENT_RUN, parents)
    for _ in range(3):
        with chiplog.init(mode="offline", capture_console=False) as run:
            assert (run.id, run.is_primary) == ("parents", False)
            assert os.environ[PARENT_RUN].startswith(f"{os.getpid()}:")
        assert os.environ[PARENT_RUN] == parents


def test_the_end_of_an_inner_run_names_the_outer_one_again_and_the_last_end_what_was_there_before() -> None:
    environ = {PARENT_RUN: "99:ancestors/x//"}
    outer, inner = object(), object()
    export_run(environ, outer, "outer", Identity("outer", "a", "launch"))
    export_run(environ, inner, "inner", Identity("inner", "b", "launch"))
    assert decode_inherited(environ[PARENT_RUN])[:3] == (str(os.getpid()), "inner", "b")
    restore_environ(environ, inner)
    assert decode_inherited(environ[PARENT_RUN]).run_id == "outer"
    restore_environ(environ, outer)
    assert environ == {PARENT_RUN: "99:ancestors/x//"}


def test_the_end_of_a_run_leaves_a_value_that_somebody_else_set() -> None:
    environ: dict[str, str] = {}
    owner = object()
    export_run(environ, owner, "mine", Identity("mine", "a", "launch"))
    environ[PARENT_RUN] = "99:others/x//"
    restore_environ(environ, owner)
    assert environ == {PARENT_RUN: "99:others/x//"}


CHILD = """
import json, os, sys
os.chdir(sys.argv[1])
import chiplog
arguments = json.loads(sys.argv[2])
with chiplog.init(capture_console=False, **arguments) as run:
    run.log({"x": 1.0})
    print(json.dumps([str(run._settings.places.root), run.mode, run.project, run.id]), flush=True)
"""
PARENT = """
import json, multiprocessing, os, subprocess, sys
import chiplog

def child(elsewhere):
    os.chdir(elsewhere)
    with chiplog.init(capture_console=False) as run:
        print(json.dumps([str(run._settings.places.root), run.mode, run.project, run.id]), flush=True)

if __name__ == "__main__":
    script, elsewhere, way, arguments = sys.argv[1:5]
    run = chiplog.init("gpt", run_id="r", mode="offline", capture_console=False)
    os.chdir(elsewhere)
    if way in ("spawn", "forkserver", "fork"):
        process = multiprocessing.get_context(way).Process(target=child, args=(elsewhere,))
        process.start()
        process.join()
    elif way == "rank":
        rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}
        subprocess.run([sys.executable, script, elsewhere, arguments], env=os.environ | rank, check=True)
    else:
        changed = {"CHIPLOG_PROJECT": "other", "CHIPLOG_MODE": "disabled"} if way == "changed" else {}
        subprocess.run([sys.executable, script, elsewhere, arguments], env=os.environ | changed, check=True)
    run.finish()
    assert "CHIPLOG_PARENT_RUN" not in os.environ
"""


def run_parent(tmp_path: Path, way: str, **arguments: str) -> list[str]:
    """Start a run with a relative CHIPLOG_DIR, and a child of it; both change their directory. Return the child's."""
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "parent.py").write_text(PARENT)
    (tmp_path / "elsewhere").mkdir()
    command = ["parent.py", str(tmp_path / "child.py"), str(tmp_path / "elsewhere"), way, json.dumps(arguments)]
    environ = os.environ | {"CHIPLOG_DIR": "data"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


@proves(
    "places-travel-to-children",
    "a child records where its parent does, although both changed their directory",
    value="environ",
)
@pytest.mark.parametrize("way", ["spawn", "forkserver", "subprocess", "rank"])
def test_where_and_whether_a_process_records_travels_to_its_children(tmp_path: Path, way: str) -> None:
    assert run_parent(tmp_path, way) == [str(tmp_path / "data"), "offline", "gpt", "r"]


def test_a_childs_own_argument_or_changed_variable_wins(tmp_path: Path) -> None:
    assert run_parent(tmp_path, "changed") == [str(tmp_path / "data"), "disabled", "other", "r"]
    (tmp_path / "second").mkdir()
    own = run_parent(tmp_path / "second", "subprocess", project="own", dir="mine", mode="disabled")
    assert own == [str(tmp_path / "second" / "elsewhere" / "mine"), "disabled", "own", "r"]


READER = """
import json, os, subprocess, sys
os.chdir(sys.argv[1])
import chiplog
try:
    chiplog.connect()
except chiplog.NoDataError as error:
    said = str(error)
command = [sys.executable, "-m", "chiplog_cli", "runs"]
print(json.dumps([said, subprocess.run(command, stderr=subprocess.PIPE, text=True).stderr]))
"""


@proves("reader-follows-its-parent", "a child that only reads does so where its parent records", value="os.environ")
def test_a_child_that_only_reads_does_so_where_its_parent_records(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "CHILD", READER)
    for said in run_parent(tmp_path, "subprocess"):
        assert f"nothing has been recorded under {tmp_path / 'data'} yet" in said


def test_a_command_of_chiplog_run_records_where_the_launcher_does(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "elsewhere").mkdir()
    script = [sys.executable, "child.py", str(tmp_path / "elsewhere"), "{}"]
    done = subprocess.run(
        [sys.executable, "-m", "chiplog_cli", "run", "--no-console", "--", *script],
        cwd=tmp_path,
        env=os.environ | {"CHIPLOG_DIR": "data", "CHIPLOG_MODE": "offline"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert json.loads(done.stdout)[:2] == [str(tmp_path / "data"), "offline"]
