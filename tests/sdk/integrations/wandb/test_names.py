"""The names below `wandb` that scripts and libraries import."""

import importlib
from pathlib import Path

import pytest
from tensorboardX import SummaryWriter

import chiplog
from chiplog.integrations import wandb
from chiplog.integrations.wandb.names import harmless
from tests.support.node import Node

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
    ("sdk", "Artifact"),  # lightning
    ("util", "generate_id"),
    ("util", "json_dumps_safer"),
    ("env", "set_project"),
    ("errors", "CommError"),
    ("errors", "UsageError"),
    ("errors", "AuthenticationError"),
    ("errors.term", "termwarn"),
    ("apis.public", "Api"),
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
    assert wandb.sdk.Artifact is wandb.Artifact is chiplog.Artifact


def test_an_artifact_is_logged_and_read_by_the_names_of_wandb(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIPLOG_DIR", str(node.root))
    with wandb.init(project="p", settings=wandb.Settings(console="off")) as run:
        artifact = wandb.Artifact("model", type="model", metadata={"epoch": 1})
        with artifact.new_file("weights") as file:
            file.write("w")
        run.log_artifact(artifact, aliases=["best"])
        assert artifact.wait().version == "v0"
        assert Path(wandb.use_artifact("model:best").download(tmp_path / "out"), "weights").read_text() == "w"


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


def test_patched_summary_writers_log_to_the_current_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_scalar = SummaryWriter.add_scalar
    assert wandb.integration.tensorboard.patch is wandb.tensorboard.patch
    wandb.tensorboard.patch(root_logdir=str(tmp_path))
    wandb.tensorboard.patch(root_logdir=str(tmp_path))
    with SummaryWriter(str(tmp_path / "train")) as writer:
        writer.add_scalar("loss", 0.5, 10)
        assert "call wandb.init() first" in capsys.readouterr().err
        for _ in range(2):
            with wandb.init(mode="offline", dir=tmp_path) as run:
                writer.add_scalar("loss", 0.25, 10)
                assert run.summary["train/loss"] == 0.25
    wandb.tensorboard.unpatch()
    assert SummaryWriter.add_scalar is add_scalar
