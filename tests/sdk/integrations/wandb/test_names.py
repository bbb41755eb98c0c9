"""The names below `wandb` that scripts and libraries import."""

import importlib
import pickle
import sys
from pathlib import Path

import pytest
from tensorboardX import SummaryWriter

import chiplog
from chiplog.integrations import wandb
from chiplog.integrations.wandb.errors import harmless
from chiplog.safety import foreign_names
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
    ("sdk.data_types.base_types.wb_value", "WBValue"),  # ray
    ("sdk.data_types.image", "Image"),  # ray
    ("sdk.data_types.video", "Video"),  # ray
    ("sdk.data_types.object_3d", "Object3D"),
    ("data_types", "Table"),
    ("data_types", "Histogram"),
    ("env", "set_project"),
    ("errors", "CommError"),
    ("errors", "UsageError"),
    ("errors", "AuthenticationError"),
    ("errors.term", "termwarn"),
    ("apis.public", "Api"),
    ("apis.public", "Run"),
    ("plot", "line"),
    ("plot", "CustomChart"),
    ("plot", "visualize"),
    ("plot.custom_chart", "plot_table"),
    ("plots", "roc_curve"),
    ("data_types", "Image"),
    ("data_types", "WBValue"),
    ("sdk.data_types.table", "Table"),
    ("sdk.data_types.helper_types.classes", "Classes"),
    ("sdk.artifacts.artifact", "Artifact"),
    ("sdk.wandb_init", "init"),
    ("sdk.wandb_summary", "Summary"),
    ("sdk.wandb_alerts", "AlertLevel"),
    ("errors", "WandbCoreNotAvailableError"),
    ("errors.errors", "UnsupportedError"),
    ("sklearn", "plot_confusion_matrix"),
    ("integration.openai", "autolog"),
]
# The public names of wandb 0.31.0 and of its runs.
PUBLIC = """
    AlertLevel Api Artifact ArtifactTTL Audio Classes CommError Config Error EvalTable Graph Histogram Html Image
    JoinedTable Molecule Object3D Plotly Run Settings Table UsageError Video agent agents alert analytics api apis
    attach box3d catboost config controller data_types define_metric ensure_configured env errors finish gym helper init
    integration join jupyter keras lightgbm link_model log log_artifact log_model login mark_preempting patched
    pin_config_keys plot plot_table profiler proto require restore run sacred sagemaker_auth save sdk setup sklearn
    summary sweep teardown tensorboard tensorflow termerror termlog termsetup termwarn trigger unwatch use_artifact
    use_model util visualize wandb_agent wandb_lib wandb_sdk wandb_torch watch xgboost
"""
OF_RUNS = """
    alert config config_static define_metric dir disabled display entity finish finish_artifact group id job_type
    link_artifact link_model log log_artifact log_code log_model mark_preempting name notes offline path pin_config_keys
    project project_url restore resumed save settings start_time starting_step status step summary sweep_id sweep_url
    sync_dir tags to_html unwatch upsert_artifact url use_artifact use_model watch write_logs
"""


@pytest.mark.parametrize(("module", "name"), IMPORTED)
def test_what_libraries_import_is_there(module: str, name: str) -> None:
    assert getattr(importlib.import_module(f"chiplog.integrations.wandb.{module}"), name) is not None


def test_the_package_and_the_class_of_runs_have_every_public_name() -> None:
    assert [name for name in PUBLIC.split() if not hasattr(wandb, name)] == []
    assert [name for name in OF_RUNS.split() if not hasattr(wandb.Run, name)] == []


def test_classes_are_the_same_under_each_of_their_names() -> None:
    assert wandb.sdk.wandb_run.Run is wandb.Run
    assert wandb.sdk.wandb_settings.Settings is wandb.Settings
    assert wandb.errors.Error is wandb.Error
    assert wandb.sdk.Artifact is wandb.Artifact is chiplog.Artifact
    assert wandb.sdk.data_types.image.Image is wandb.data_types.Image is wandb.Image
    assert issubclass(wandb.Table, wandb.sdk.data_types.base_types.media.Media)
    assert wandb.wandb_sdk is wandb.sdk and wandb.wandb_lib is wandb.sdk.lib


def test_the_module_is_pickled_by_its_name_and_its_user_is_logged_in() -> None:
    assert pickle.loads(pickle.dumps(wandb)) is wandb, "Ray pickles functions with their globals"
    wandb.ensure_configured()
    assert wandb.api.api_key, "Ray refuses to log without one"


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


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("integration.keras", "WandbMetricsLogger"),
        ("keras", "WandbCallback"),
        ("integration.sb3", "WandbCallback"),
        ("integration.xgboost", "WandbCallback"),
        ("xgboost", "wandb_callback"),
        ("integration.lightgbm", "wandb_callback"),
        ("lightgbm", "log_summary"),
    ],
)
def test_a_callback_without_its_library_does_nothing_and_says_why_once(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for library in ("keras", "stable_baselines3", "tensorflow", "xgboost", "lightgbm"):
        monkeypatch.setitem(sys.modules, library, None)
    for _ in range(2):
        assert foreign_names.is_stand_in(
            getattr(importlib.import_module(f"chiplog.integrations.wandb.{module}"), name)()
        )
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"chiplog: wandb.{module}.{name} does nothing: its library cannot be imported: ")


def test_a_search_names_the_library_that_searches(capsys: pytest.CaptureFixture[str]) -> None:
    wandb.agent("id", function=print)
    assert "wandb.agent is not available" in (said := capsys.readouterr().err) and "Optuna" in said


def test_small_functions_do_what_their_callers_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wandb.login() is wandb.sdk.wandb_login.login() is True
    assert wandb.util.get_module("json").dumps([]) == "[]" and wandb.util.get_module("no_such_module") is None
    with pytest.raises(wandb.Error, match="install it"):
        wandb.util.get_module("no_such_module", required="install it")
    assert wandb.util.make_artifact_name_safe("a/b:c") == "a_b_c"
    assert len(wandb.util.make_artifact_name_safe("x" * 999)) == 128
    monkeypatch.setenv("WANDB_PROJECT", "before")
    monkeypatch.setenv("WANDB_ENTITY", "before")
    wandb.env.set_project("p")
    wandb.env.set_entity("e")
    assert (wandb.env.get_project(), wandb.env.get_entity(env={}), wandb.env.PROJECT) == ("p", None, "WANDB_PROJECT")
    assert wandb.env.DISABLE_SSL == "WANDB_INSECURE_DISABLE_SSL"
    assert wandb.util.json_dumps_safer({"a": object}).startswith('{"a":')
    assert len(wandb.util.generate_id()) == 8
    with wandb.sdk.lib.telemetry.context(run=None) as telemetry:
        telemetry.feature.sb3 = True
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
