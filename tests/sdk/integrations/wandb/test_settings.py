"""Settings: every field of wandb 0.31, from arguments and variables."""

import pytest

from chiplog.integrations.wandb.settings import FIELDS, Settings, settings_of, settings_of_environ


def test_fields_that_were_not_set_are_none_and_unknown_ones_are_named() -> None:
    settings = Settings(mode="offline", of_tomorrow=1)
    assert (settings.mode, settings.x_label, settings.of_tomorrow) == ("offline", None, 1)
    assert settings.unknown() == ["of_tomorrow"] and settings.sync_dir is None
    assert settings.given() == {"mode": "offline", "of_tomorrow": 1}
    assert repr(settings) == "Settings(mode='offline', of_tomorrow=1)"
    with pytest.raises(AttributeError, match="no field 'typo'"):
        _ = settings.typo


def test_all_fields_that_scripts_and_libraries_set_are_known() -> None:
    asked = "mode project entity run_id run_name run_group run_job_type run_tags run_notes resume reinit console silent"
    shared = "x_label x_primary x_update_finish_state x_stats_gpu_device_ids x_stats_sampling_interval x_disable_stats"
    assert set(f"{asked} {shared} strict save_code sync_tensorboard start_method".split()) <= FIELDS
    assert len(FIELDS) >= 156


def test_settings_come_from_a_dict_or_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    class Other:
        def __init__(self) -> None:
            self.mode = "shared"

    assert settings_of(None).given() == {}
    assert settings_of({"mode": "offline"}).mode == "offline"
    assert settings_of(Other()).mode == "shared"
    same = Settings()
    assert settings_of(same) is same
    assert settings_of(5).given() == {} and settings_of({5: 6}).given() == {"5": 6}
    assert "settings=5 is no wandb.Settings or dict; it is left out" in capsys.readouterr().err


def test_settings_are_copied_and_changed_as_those_of_pydantic() -> None:
    settings = Settings(mode="offline")
    other = settings.model_copy(update={"project": "p"})
    other.update_from_dict({"_label": "a"})
    assert other.given() == {"mode": "offline", "project": "p", "x_label": "a"}
    assert settings.given() == settings.copy().given() == {"mode": "offline"}
    assert settings.model_dump()["mode"] == "offline" and set(settings.dict()) >= FIELDS
    assert settings.is_local is None


def test_variables_have_the_names_of_fields_with_exceptions() -> None:
    environ = {
        "WANDB_MODE": "offline",
        "WANDB_NAME": "n",
        "WANDB_NOTES": "t",
        "WANDB_TAGS": "a, b,",
        "WANDB_JOB_TYPE": "eval",
        "WANDB_RUN_GROUP": "g",
        "WANDB_DIR": "/d",
        "WANDB_SAVE_CODE": "true",
        "WANDB_X_LABEL": "node-0",
        "WANDB__PRIMARY": "false",
        "WANDB_X_STATS_GPU_DEVICE_IDS": "[0,1]",
        "WANDB_X_STATS_SAMPLING_INTERVAL": "10",
        "WANDB_DISABLE_STATS": "true",
        "WANDB_UNKNOWN": "1",
        "WANDB_ENTITY": "",
        "PATH": "/bin",
    }
    assert settings_of_environ(environ).given() == {
        "mode": "offline",
        "run_name": "n",
        "run_notes": "t",
        "run_tags": ["a", "b"],
        "run_job_type": "eval",
        "run_group": "g",
        "root_dir": "/d",
        "save_code": True,
        "x_label": "node-0",
        "x_primary": False,
        "x_stats_gpu_device_ids": ["0", "1"],
        "x_stats_sampling_interval": "10",
        "x_disable_stats": True,
    }
    assert settings_of_environ({"WANDB__DISABLE_STATS": "1"}).given() == {"x_disable_stats": True}


def test_names_of_earlier_versions_are_those_of_today() -> None:
    assert Settings(_disable_stats=True, _stats_sampling_interval=5).given() == {
        "x_disable_stats": True,
        "x_stats_sampling_interval": 5,
    }
