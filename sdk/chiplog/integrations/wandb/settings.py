"""`wandb.Settings`: every field of wandb 0.31 is accepted, and those that chiplog knows are honoured."""

import os
from collections.abc import Mapping
from typing import Any

from chiplog.integrations.wandb.errors import warn
from chiplog.safety.text import short_repr

# The fields of `wandb.Settings` of wandb 0.31.0.
_FIELDS = """
    allow_media_symlink allow_offline_artifacts allow_val_change anonymous api_key app_url_override
    azure_account_url_to_access_key base_url capture_loggers code_dir config_paths console console_chunk_max_bytes
    console_chunk_max_seconds console_multipart credentials_file disable_code disable_git disable_git_fork_point
    disable_job_creation disabled docker email entity files_dir finish_timeout finish_timeout_raises force fork_from
    git_commit git_remote git_remote_url git_root heartbeat_seconds host http_proxy https_proxy identity_token_file
    ignore_globs init_timeout insecure_disable_ssl job_name job_source label_disable launch launch_config_path
    login_timeout max_end_of_run_history_metrics max_end_of_run_summary_metrics mode notebook_name organization program
    program_abspath program_relpath project quiet reinit relogin resume resume_from resumed root_dir run_group run_id
    run_job_type run_name run_notes run_tags sagemaker_disable save_code settings_system show_colors show_emoji
    show_errors show_info show_warnings silent start_method stop_fn stop_on_fatal_error strict summary_timeout
    summary_warnings sweep_id sweep_param_path symlink sync_tensorboard system_settings
    table_raise_on_max_row_limit_exceeded use_dot_wandb username x_cli_only_mode x_disable_machine_info x_disable_meta
    x_disable_service x_disable_setproctitle x_disable_stats x_disable_viewer x_executable x_extra_http_headers
    x_file_stream_max_bytes x_file_stream_max_line_bytes x_file_stream_no_gzip x_file_stream_retry_max
    x_file_stream_retry_wait_max_seconds x_file_stream_retry_wait_min_seconds x_file_stream_timeout_seconds
    x_file_stream_transmit_interval x_file_transfer_retry_max x_file_transfer_retry_wait_max_seconds
    x_file_transfer_retry_wait_min_seconds x_file_transfer_timeout_seconds x_files_dir x_flow_control_custom
    x_flow_control_disabled x_graphql_retry_max x_graphql_retry_wait_max_seconds x_graphql_retry_wait_min_seconds
    x_graphql_timeout_seconds x_history_value_encoding x_internal_check_process x_jupyter_name x_jupyter_path
    x_jupyter_root x_label x_live_policy_rate_limit x_live_policy_wait_time x_log_level x_network_buffer x_primary
    x_proxies x_runqueue_item_id x_save_requirements x_server_side_derived_summary x_service_transport x_service_wait
    x_skip_transaction_log x_start_time x_stats_buffer_size x_stats_coreweave_metadata_base_url
    x_stats_coreweave_metadata_endpoint x_stats_cpu_count x_stats_cpu_logical_count x_stats_dcgm_exporter
    x_stats_disk_paths x_stats_gpu_count x_stats_gpu_device_ids x_stats_gpu_type x_stats_neuron_monitor_config_path
    x_stats_no_cgroup x_stats_open_metrics_endpoints x_stats_open_metrics_filters x_stats_open_metrics_http_headers
    x_stats_pid x_stats_sampling_interval x_stats_self_usage x_stats_track_process_tree x_sync x_sync_dir_suffix
    x_transaction_log_flush_interval x_update_finish_state
"""
FIELDS = frozenset(_FIELDS.split())
# What W&B's has beside its fields. `run.settings` has those that chiplog knows; the others are None.
_DERIVED = """
    app_url colab_url deployment is_local log_dir log_internal log_symlink_internal log_symlink_user log_user
    project_url resume_fname run_mode run_url settings_workspace sweep_url sync_dir sync_file sync_symlink_latest
    timespec wandb_dir _jupyter _noop _notebook _offline _shared
"""
DERIVED = frozenset(_DERIVED.split())
# Variables whose names are not WANDB_ and the field in capitals.
_VARIABLES = {"WANDB_NAME": "run_name", "WANDB_NOTES": "run_notes", "WANDB_TAGS": "run_tags", "WANDB_DIR": "root_dir"}
_VARIABLES |= {"WANDB_JOB_TYPE": "run_job_type", "WANDB_DISABLE_STATS": "x_disable_stats"}
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_ARE_FLAGS = (
    *("save_code", "strict", "silent", "quiet", "disabled", "sync_tensorboard"),
    *("x_primary", "x_update_finish_state", "x_disable_stats"),
)


class Settings:
    """Settings of a run, as W&B has them. A field that was not set is None; an unknown one is kept and not used.

    Args:
        **fields: mode, project, entity, run_id, run_name, run_group, run_job_type, run_tags, run_notes, resume, reinit,
            console, silent, quiet, save_code, strict, sync_tensorboard, x_label, x_primary, x_update_finish_state,
            x_stats_gpu_device_ids, x_stats_sampling_interval and x_disable_stats are honoured. All others of wandb 0.31
            are accepted silently. Names that begin with _ are those with x_, as in earlier versions.
    """

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update({f"x{name}" if f"x{name}" in FIELDS else name: value for name, value in fields.items()})

    def __getattr__(self, name: str) -> Any:
        """Return None for a field that was not set."""
        if name in FIELDS or name in DERIVED:
            return None
        raise AttributeError(f"Settings has no field {name!r}")

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"

    def given(self) -> dict[str, Any]:
        """Return the fields that were set."""
        return {name: value for name, value in self.__dict__.items() if value is not None}

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return all fields, as pydantic does."""
        return {name: getattr(self, name) for name in sorted(FIELDS | set(self.__dict__))}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "Settings":
        """Return a copy with other values of some fields, as pydantic does."""
        return Settings(**{**self.__dict__, **(update or {})})

    dict, copy = model_dump, model_copy

    def update_from_dict(self, settings: Mapping[str, Any]) -> None:
        """Set some fields."""
        self.__init__(**settings)  # type: ignore[misc]  # it only adds

    def unknown(self) -> list[str]:
        """Return the names that wandb 0.31 has not."""
        return sorted(set(self.__dict__) - FIELDS - DERIVED)


def settings_of(given: Any) -> Settings:
    """Return what `init(settings=…)` was given as Settings: one of ours, a dict, or anything with fields."""
    if given is None:
        return Settings()
    if isinstance(given, Settings):
        return given
    fields = given if isinstance(given, Mapping) else getattr(given, "__dict__", None)
    if fields is None:
        warn(f"settings={short_repr(given)} is no wandb.Settings or dict; it is left out")
        return Settings()
    return Settings(**{str(name): value for name, value in fields.items()})


def settings_of_environ(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return what W&B's variables set: WANDB_MODE, WANDB_PROJECT, WANDB_X_LABEL or WANDB__LABEL, …"""
    found: dict[str, Any] = {}
    for variable, text in environ.items():
        name = _field_of(variable)
        if name in FIELDS and text:
            word = _FLAGS.get(text.strip().lower()) if name in _ARE_FLAGS else None
            found[name] = text if word is None else word
    for name in ("run_tags", "x_stats_gpu_device_ids"):
        if name in found:
            found[name] = [part.strip() for part in found[name].strip("[]").split(",") if part.strip()]
    return Settings(**found)


def _field_of(variable: str) -> str:
    if not variable.startswith("WANDB_"):
        return ""
    rest = variable.removeprefix("WANDB_").lower()
    return _VARIABLES.get(variable) or (f"x{rest}" if rest.startswith("_") else rest)
