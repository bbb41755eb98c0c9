"""The label of a launcher: which run and label it has, and what its command finds in the environment."""

import os

import pytest

from chiplog.identity.process_info import node_name
from chiplog.recording.api.command_run import LaunchedRun
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.process.inherited_run import LAUNCHER, PARENT_RUN, decode_inherited
from tests.support.launcher_environ import slurm

TOLD = {"mode": "offline", "capture_console": False}


def identity_of(offline) -> dict:
    [event] = offline(EventKind.IDENTITY)
    return event.fields["identity"]


def recorded(environ: dict[str, str], exit_code: int = 0, why: str = "", **told: object) -> LaunchedRun:
    launched = LaunchedRun(["python", "train.py"], os.environ | environ, TOLD | told)
    launched.open()
    launched.finish(exit_code, why)
    return launched


def test_a_launcher_is_a_fallback_primary_without_rank_and_gpus(offline) -> None:
    launched = recorded({}, name="baseline", tags=("a",), project="p")
    said = identity_of(offline)
    assert said["run_id"] == launched.id and said["label"] == f"launcher-{node_name()}"
    assert (said["primary"], said["fallback"], said["gpus"], said["gpu_claim"]) == (True, True, [], {"given": []})
    assert (said["name"], said["tags"], said["project"]) == ("baseline", ["a"], "p")
    assert "rank" not in said and "sets_run" not in said


@pytest.mark.parametrize(
    ("exit_code", "why", "state"),
    [
        (0, "", {"state": "finished", "exit_code": 0}),
        (3, "", {"state": "failed", "exit_code": 3, "reason": "python ended with exit code 3", "cause": "exit_status"}),
        (
            -9,
            "",
            {"state": "crashed", "exit_signal": 9, "reason": "python was killed by SIGKILL", "cause": "exit_status"},
        ),
        (127, "it is gone", {"state": "failed", "exit_code": 127, "reason": "it is gone", "cause": "exit_status"}),
    ],
)
def test_the_end_of_the_command_is_the_end_of_its_label(offline, exit_code: int, why: str, state: dict) -> None:
    recorded({}, exit_code, why)
    [event] = offline(EventKind.STATE)
    assert event.fields["state"] == state


def test_the_command_finds_the_run_in_one_variable_which_names_a_launcher(offline) -> None:
    launched = LaunchedRun(["python"], os.environ | {"MINE": "1"}, TOLD)
    left = decode_inherited(launched.environ[PARENT_RUN])
    assert (left.run_id, left.label, left.kind) == (launched.id, f"launcher-{node_name()}", LAUNCHER)
    assert left.settled == "", "launchers on two nodes have different IDs until the ranks agree"
    assert launched.environ["MINE"] == "1"
    assert decode_inherited(LaunchedRun(["x"], os.environ, TOLD | {"run_id": "mine"}).environ[PARENT_RUN]).settled


def test_the_launchers_of_srun_share_a_run_and_each_has_its_label() -> None:
    first, second = (LaunchedRun(["x"], os.environ | slurm(rank, rank), TOLD) for rank in (0, 1))
    assert first.id == second.id
    labels = [decode_inherited(each.environ[PARENT_RUN]).label for each in (first, second)]
    assert labels == ["launcher-rank0", "launcher-rank1"]
    assert decode_inherited(first.environ[PARENT_RUN]).rank == ""


def test_a_launcher_inside_of_a_training_joins_its_run_and_leaves_the_variable(offline) -> None:
    parents = {PARENT_RUN: "99:parents/rank0/0/settled"}
    launched = recorded(parents)
    assert (launched.id, launched.environ[PARENT_RUN]) == ("parents", parents[PARENT_RUN])
    assert identity_of(offline)["primary"] is False


def test_a_disabled_run_records_nothing_and_names_no_run(offline) -> None:
    launched = recorded({"CHIPLOG_MODE": "disabled"}, mode=None)
    assert not launched.is_recorded and PARENT_RUN not in launched.environ
    assert offline() == []


def test_the_command_line_is_recorded_without_its_secrets(offline, monkeypatch) -> None:
    monkeypatch.setenv("CHIPLOG_SURROUNDINGS", "1")
    launched = LaunchedRun(["python", "train.py", "--api-key", "hunter2"], os.environ, TOLD)
    launched.open()
    launched.finish(0)
    [facts] = [e.fields["body"] for e in offline(EventKind.NOTICE) if e.fields["notice"] == "environment"]
    assert facts["launched"][:3] == ["python", "train.py", "--api-key"] and "hunter2" not in str(facts)
    assert facts["directory"] == os.getcwd() and "python" not in facts and "command" not in facts
