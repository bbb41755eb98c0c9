"""The settings of a run, from the arguments of `init` and the environment."""

import inspect
from typing import Any

import pytest

import chiplog
from chiplog.recording.api import start
from chiplog.recording.run import run_settings
from chiplog.settings import RunSettings
from chiplog_schemas.paths import Paths
from chiplog_schemas.storage.journal_dir import list_journals
from tests.support.launcher_environ import elastic
from tests.support.safeguard import proves

ARGUMENTS: dict[str, Any] = dict.fromkeys(inspect.signature(start.init).parameters) | {"tags": ()}


def test_an_argument_wins_over_its_variable_and_what_is_wrong_is_a_remark(tmp_path) -> None:
    environ = {"CHIPLOG_PROJECT": "vision", "CHIPLOG_LABEL": "left", "CHIPLOG_MODE": "offline"}
    given = ARGUMENTS | {"project": "gpt", "run_id": "r", "dir": str(tmp_path), "config": 3, "primary": "perhaps"}
    found = run_settings.resolve_settings(environ, given, [], set())
    assert (found.project, found.mode, found.identity.run_id, found.identity.label) == ("gpt", "offline", "r", "left")
    assert (found.config, found.run_given, found.label_given, found.primary_given) == ({}, True, True, False)
    assert [remark.key for remark in found.diagnostics] == ["primary", "config"]


def settings_of(rank: int, given: dict[str, Any], environ: dict[str, str]) -> RunSettings:
    return run_settings.resolve_settings(elastic(rank, rank, 2, 2) | environ, ARGUMENTS | given, [], set())


@proves("split-is-asked-for", "a group never splits a launch", condition=True)
def test_a_group_never_splits_a_launch(tmp_path) -> None:
    for given, environ in (({"group": "exp1"}, {}), ({}, {"CHIPLOG_GROUP": "exp1"})):
        found = [settings_of(rank, given | {"dir": str(tmp_path)}, environ) for rank in range(2)]
        assert len({one.identity.run_id for one in found}) == 1
        assert [(one.group, one.identity.primary, one.name) for one in found] == [
            ("exp1", True, None),
            ("exp1", False, None),
        ]
        assert [one.announcements for one in found] == [(), ()]


@pytest.mark.parametrize("group", ["exp1", None])
@pytest.mark.parametrize(
    ("given", "environ"), [({"one_run_per_process": True}, {}), ({}, {"CHIPLOG_RUN_PER_PROCESS": "yes"})]
)
def test_one_run_per_process_is_asked_for_by_name_and_reported_by_one_process(tmp_path, given, environ, group) -> None:
    given = given | {"dir": str(tmp_path), "group": group}
    found = [settings_of(rank, given, environ) for rank in range(2)]
    shared = settings_of(0, {"dir": str(tmp_path)}, {}).identity.run_id
    assert [one.identity.run_id for one in found] == [f"{shared}-rank0", f"{shared}-rank1"]
    assert [one.name for one in found] == ([f"{group}-rank0", f"{group}-rank1"] if group else [None, None])
    assert all(one.identity.primary and one.primary_given for one in found)
    asked = "one_run_per_process" if "one_run_per_process" in given else "CHIPLOG_RUN_PER_PROCESS"
    assert [one.announcements for one in found] == [(run_settings.SPLIT.format(asked),), ()]
    named = settings_of(1, given | {"run_id": "r"}, environ)
    assert (named.identity.run_id, named.identity.primary, named.announcements) == ("r", False, ())
    assert settings_of(1, given | {"one_run_per_process": False}, environ).identity.run_id == shared


def test_bad_variables_still_give_the_settings_of_a_disabled_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    found = run_settings.disabled_settings({"CHIPLOG_DIR": "below"}, ARGUMENTS, [], set())
    assert (found.mode, found.project) == ("disabled", None)


def test_offline_journals_lie_on_a_disk_of_this_node(tmp_path, monkeypatch) -> None:
    """On a network file system a mapped file can kill its process."""
    local = Paths(tmp_path / "nfs", tmp_path / "local", tmp_path / "run")
    monkeypatch.setattr(run_settings, "paths_for_root", lambda root: local)
    chiplog.init(mode="offline", capture_console=False).finish()
    assert len(list_journals(local.local / "offline")) == 1
    assert not local.root.exists()
