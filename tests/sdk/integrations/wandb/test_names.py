"""The names below `wandb` that scripts and libraries import."""

import importlib

import pytest

from chiplog.integrations import wandb
from chiplog.integrations.wandb.names import harmless

IMPORTED = [
    ("sdk.wandb_run", "Run"),  # optuna, ray
    ("wandb_run", "Run"),  # lightning
    ("sdk.lib", "RunDisabled"),  # lightning
    ("sdk.lib.disabled", "RunDisabled"),
    ("sdk.lib.config_util", "ConfigError"),
    ("sdk.lib.runid", "generate_id"),
    ("sdk.lib.telemetry", "context"),  # sb3
    ("sdk.wandb_settings", "Settings"),
    ("sdk.wandb_config", "Config"),
    ("sdk", "Settings"),
    ("util", "generate_id"),
    ("util", "json_dumps_safer"),
    ("env", "set_project"),
    ("errors", "CommError"),
    ("errors", "UsageError"),
    ("errors", "AuthenticationError"),
    ("errors.term", "termwarn"),
    ("apis.public", "Run"),
    ("plot", "line"),
]


@pytest.mark.parametrize(("module", "name"), IMPORTED)
def test_what_libraries_import_is_there(module: str, name: str) -> None:
    assert getattr(importlib.import_module(f"chiplog.integrations.wandb.{module}"), name) is not None


def test_classes_are_the_same_under_each_of_their_names() -> None:
    assert wandb.sdk.wandb_run.Run is wandb.Run
    assert wandb.sdk.wandb_settings.Settings is wandb.Settings
    assert wandb.errors.Error is wandb.Error


def test_any_other_name_does_nothing_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    wandb.sweep({"method": "grid"})
    wandb.sweep({"method": "grid"})
    wandb.sdk.data_types.made_up("x")
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[1] for line in said] == ["wandb.sweep", "wandb.sdk.data_types.made_up"]
    assert harmless("sweep") is wandb.sweep
    with pytest.raises(AttributeError, match="has no attribute 'made_up'"):
        _ = wandb.made_up


def test_small_functions_do_what_their_callers_expect() -> None:
    assert wandb.login() is True
    assert wandb.util.json_dumps_safer({"a": object}).startswith('{"a":')
    assert len(wandb.util.generate_id()) == 8
    with wandb.sdk.lib.telemetry.context(run=None) as telemetry:
        telemetry.feature.sb3 = True
    wandb.env.set_project("p")
    wandb.setup()
    wandb.require("service")
