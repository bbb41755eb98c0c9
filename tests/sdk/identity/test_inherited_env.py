"""The variable that names a process's open run to its children: set while a run is open, then restored."""

import os

import chiplog
from chiplog.identity.identity import PARENT_RUN, Identity, decode_inherited
from chiplog.identity.inherited_env import export_run, restore_environ


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
