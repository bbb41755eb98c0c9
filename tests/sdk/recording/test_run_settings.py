"""The settings of a run, from the arguments of `init` and the environment."""

import inspect
from typing import Any

import chiplog
from chiplog.recording import run_settings, start
from chiplog_schemas.paths import Paths
from chiplog_schemas.storage.journal_dir import list_journals

ARGUMENTS: dict[str, Any] = dict.fromkeys(inspect.signature(start.init).parameters) | {"tags": ()}


def test_an_argument_wins_over_its_variable_and_what_is_wrong_is_a_remark(tmp_path) -> None:
    environ = {"CHIPLOG_PROJECT": "vision", "CHIPLOG_LABEL": "left", "CHIPLOG_MODE": "offline"}
    given = ARGUMENTS | {"project": "gpt", "run_id": "r", "dir": str(tmp_path), "config": 3, "primary": "perhaps"}
    found = run_settings.resolve_settings(environ, given, [], set())
    assert (found.project, found.mode, found.identity.run_id, found.identity.label) == ("gpt", "offline", "r", "left")
    assert (found.config, found.run_given, found.label_given, found.primary_given) == ({}, True, True, False)
    assert [remark.key for remark in found.diagnostics] == ["primary", "config"]


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
