"""Which run a process opens: that of its launch only if a launcher started it."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "CHIPLOG_RUN_ID", "CHIPLOG_PARENT_RUN"):
        monkeypatch.delenv(name, raising=False)


def test_ranks_that_a_script_sets_itself_are_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    from chiplog.integrations.mlflow.launches import is_launched, launch_variables

    ranks = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "29500"}
    assert is_launched(ranks) is True
    found = launch_variables(ranks)
    assert "RANK" not in found and found["MASTER_PORT"] == "29500" and is_launched(found) is False


def test_variables_of_the_start_of_a_process_are_its_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    from chiplog.integrations.mlflow import launches

    monkeypatch.setattr(launches, "_initial_variables", lambda: {"RANK"})
    assert launches.is_launched(launches.launch_variables({**os.environ, "RANK": "1", "WORLD_SIZE": "2"})) is True


def test_a_run_that_is_merely_open_in_the_parent_is_not_joined_but_that_of_chiplog_run_is() -> None:
    from chiplog.integrations.mlflow.launches import is_launched, launch_variables

    parent = {**os.environ, "CHIPLOG_PARENT_RUN": "1:the-run/label/0/settled/w/s/9"}
    assert is_launched(launch_variables(parent)) is False
    launcher = {**os.environ, "CHIPLOG_PARENT_RUN": "1:the-run/label//settled/w/s/9///launcher"}
    assert is_launched(launch_variables(launcher)) is True
    assert is_launched({**os.environ, "CHIPLOG_RUN_ID": "given"}) is True
