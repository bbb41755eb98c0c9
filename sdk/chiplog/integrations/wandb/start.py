"""`wandb.init()`: W&B's arguments, settings and variables as those of chiplog, and the choice of one run or many."""

import os
import secrets
import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chiplog.identity.identity import is_rank_of_launcher
from chiplog.integrations.adapter.reads import former_state
from chiplog.integrations.wandb import gym_videos
from chiplog.integrations.wandb.errors import Error, refuse, set_silent, warn
from chiplog.integrations.wandb.settings import Settings, settings_of, settings_of_environ
from chiplog.integrations.wandb.state.config_file import read_config
from chiplog.integrations.wandb.wandb_run import Run, run_of_attach_id
from chiplog.recording.api import process_hooks
from chiplog.recording.api.start import init as chiplog_init
from chiplog.recording.run import current_run
from chiplog.recording.run.run_settings import BY_GROUP
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import error_line
from chiplog.safety.text import short_repr
from chiplog.settings import flag
from chiplog.values.config import to_plain
from chiplog_schemas.clock import now_us
from chiplog_schemas.interrupts import handlers_held
from chiplog_schemas.paths import resolve_root

_RUN_ID_CHARS = 8
_PROJECT_CHARS_MAX = 128
_NOT_IN_PROJECTS = "/\\#?%:"
_STRICT_WAIT_S = 2.0  # for SQL, by resume="must" and "never"
# Variables that win over W&B's, by the field of Settings; chiplog.init() reads the later ones itself.
_OURS = {"mode": "CHIPLOG_MODE", "project": "CHIPLOG_PROJECT", "run_id": "CHIPLOG_RUN_ID"}
_OURS |= {"run_group": "CHIPLOG_GROUP", "x_label": "CHIPLOG_LABEL"}
_READ_LATER = {"x_primary": "CHIPLOG_PRIMARY", "x_stats_gpu_device_ids": "CHIPLOG_GPU_DEVICE_IDS"}
_OF_A_RUN = ("project", "name", "notes", "group", "job_type")  # arguments that an open run cannot take
_opened: list[Run] = []  # by init() of this process, the newest last
_global: list[Run] = []  # at most one: the run that `wandb.run` returns


def generate_id(length: int = _RUN_ID_CHARS) -> str:
    """Return a random word of letters and digits, as W&B's run IDs are."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(length))


def current(*, is_own: bool = False) -> Run | None:
    """Return the latest open run of this process, also one that `chiplog.init()` opened; None without one.

    is_own: leave out the runs of a process that this one was forked from.
    """
    known = _opened[-1] if _opened else None
    if known is not None and not is_own:
        inner = known._inner
        if inner is current_run.current() and not inner._finished:  # as in each call of wandb.log()
            return known
    opened = [inner for inner in current_run.open_runs() if not (is_own and inner._run_journal.is_inherited)]
    if not opened:
        return None
    return next((run for run in _opened if run._inner is opened[-1]), None) or _enter(Run(opened[-1], Settings()))


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: Any = None,
    id: str | None = None,
    name: str | None = None,
    notes: str | None = None,
    tags: Any = None,
    config: Any = None,
    config_exclude_keys: Any = None,
    config_include_keys: Any = None,
    allow_val_change: bool | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    force: bool | None = None,
    reinit: Any = None,
    resume: Any = None,
    resume_from: str | None = None,
    fork_from: str | None = None,
    save_code: bool | None = None,
    tensorboard: bool | None = None,
    sync_tensorboard: bool | None = None,
    monitor_gym: bool | None = None,
    settings: Any = None,
    anonymous: Any = None,
    **unknown: Any,
) -> Run:
    """Open a run with W&B's arguments. Never raises, and waits for nothing.

    An argument wins over `settings`, those over CHIPLOG_ variables, and these over WANDB_ variables.

    Under a launcher all ranks are labels of one run; `group=` or CHIPLOG_RUN_PER_PROCESS=1 gives each a run. Without a
    launcher each `init()` is a run, as in W&B. An `id` wins over both.

    Args:
        entity: Kept as `run.entity`.
        project: Name of the project.
        dir: Directory above `run.dir`. It does not move CHIPLOG_DIR.
        id: Run ID.
        name: Display name.
        notes: Free text.
        tags: Words to find the run by.
        config: A dict, a namespace, anything that `chiplog.init(config=)` takes, or the path of a YAML file.
        config_exclude_keys: Keys of the config that are left out.
        config_include_keys: The only keys of the config that are kept.
        allow_val_change: Accepted: config may always change.
        group: Group of the run.
        job_type: Kind of the job.
        mode: online, offline, disabled, or shared: the processes that name one `id` write one run, each under the label
            `x_label` of its settings.
        force: Accepted.
        reinit: return_previous (default; an open run is returned), finish_previous (default in notebooks), create_new.
        resume: allow, must, never, auto or True, about `id`.
        resume_from: Not available: a new run, with one line.
        fork_from: Not available: a new run, with one line.
        save_code: True saves the main script.
        tensorboard: As sync_tensorboard.
        sync_tensorboard: Log also what SummaryWriters of torch and tensorboardX are given, until `finish`.
        monitor_gym: Log also the videos that gymnasium and gym record, until `finish`.
        settings: `wandb.Settings` or a dict.
        anonymous: Accepted.
        **unknown: One line each.

    """
    given = dict(locals())
    with handlers_held(), current_run.opening():  # safeguard: interrupt-passes-wandb-init
        return _init_leniently(given)


def _init_leniently(given: dict[str, Any]) -> Run:
    """Open a run; one that records nothing if that fails."""
    try:
        return _init(given, os.environ)
    except Error:  # only in strict mode
        raise
    except Exception as error:
        warn(f"wandb.init() got arguments that it cannot use; nothing is recorded: {error_line(error)}")
        return _enter(Run(chiplog_init(mode="disabled"), Settings()))


def attach(attach_id: str | None = None, run_id: str | None = None, *, run: Run | None = None) -> Run:
    """Return the run of another process, by its `_attach_id` or its ID: the same run under another label."""
    word = attach_id or run_id or ""
    for opened in _opened:
        if word in (opened.id, opened._attach_id) and not opened._is_finished:
            return opened
    found = run_of_attach_id(word)
    return init(id=word, resume="allow") if found is None else _enter(found)


def _init(given: dict[str, Any], environ: Mapping[str, str]) -> Run:
    given["settings"] = settings_of(given["settings"])
    chosen = _merged(given, environ)
    set_silent(bool(chosen.get("silent")))
    previous = current(is_own=True)
    reinit = _reinit(chosen.get("reinit"))
    is_strict = bool(chosen.get("strict"))
    if previous is not None and reinit == "return_previous":
        if chosen.get("run_id") not in (None, previous.id):
            refuse(
                is_strict,
                f"wandb.init(id={chosen['run_id']!r}) returns the open run {previous.id}; finish it first",
                Error,
            )
        dropped = [
            f"{name}={given[name]!r:.80}"
            for name in _OF_A_RUN
            if given[name] not in (None, getattr(previous, name, None))
        ]
        if dropped:
            what = f"wandb.init() returns the open run {previous.id}, so {', '.join(dropped)} is not used"
            warn(f"{what}; finish it first, or pass reinit='create_new'")
        previous.config.update(_config(chosen))
        previous._take_from_libraries(chosen)
        return previous
    _check(chosen, reinit)
    for line in _not_available(given, chosen):
        warn(line)
    inner = chiplog_init(**_arguments(chosen, environ), reinit=None if reinit == "return_previous" else reinit)
    process_hooks.print_exceptions()
    directory = chosen.get("root_dir")
    if chosen.get("mode") == "shared":
        chosen["x_label"] = inner.label
    run = _enter(
        Run(inner, Settings(**chosen), None if directory is None else os.path.abspath(directory)),
        is_global=reinit != "create_new",
    )
    _warn_of_ignored_run(run)
    if directory is not None:
        _ = run.dir  # W&B makes it at once
    if chosen.get("save_code"):
        _save_main_script(run)
    run._take_from_libraries(chosen)
    return run


def _enter(run: Run, *, is_global: bool = True) -> Run:
    _opened[:] = [other for other in _opened if not other._is_finished]
    _opened.append(run)
    if is_global:
        _global[:] = [run]
    return run


def global_run() -> Run | None:
    """Return `wandb.run`: the open run that is not one of several of its own, by reinit="create_new"."""
    found = current()
    if found is None or found not in _opened:
        return found
    return next((run for run in _global if not run._is_finished), None)


def _check(chosen: Mapping[str, Any], reinit: str) -> None:
    """Refuse what W&B refuses: raise in strict mode, else write a line."""
    is_strict, project, run_id = bool(chosen.get("strict")), chosen.get("project"), chosen.get("run_id")
    name = str(project or "")
    is_bad_project = len(name) > _PROJECT_CHARS_MAX or not set(name).isdisjoint(_NOT_IN_PROJECTS)
    if is_strict and is_bad_project:  # chiplog itself takes any name
        refuse(is_strict, f'Invalid project name "{project}": it has one of {_NOT_IN_PROJECTS}, or is too long')
    if is_strict and chosen.get("config_include_keys") and chosen.get("config_exclude_keys"):
        refuse(is_strict, "Expected at most only one of exclude or include: config_include_keys or config_exclude_keys")
    if reinit == "create_new" and run_id and any(run.id == run_id for run in _opened if not run._is_finished):
        refuse(is_strict, f"run ID {run_id} is in use by an open run of this process", Error)
    if chosen.get("monitor_gym") and not gym_videos.is_installed():
        refuse(is_strict, gym_videos.MISSING, Error)
    resume = str(chosen.get("resume") or "").lower()
    if is_strict and resume in ("must", "never") and chosen.get("mode") in (None, "online", "shared"):
        place = resolve_root(None, os.environ)
        try:
            is_stored = bool(run_id) and former_state(place, str(run_id), now_us(), _STRICT_WAIT_S) is not None
        except TimeoutError:
            is_stored = False
        if is_stored != (resume == "must"):
            state = "is stored" if is_stored else "is not stored"
            refuse(is_strict, f"resume={resume!r}: the run {run_id} {state}; choose another id or resume='allow'")


def _merged(given: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return all that was said, by the names of Settings; config and its keys under those of the arguments."""
    names = {
        "dir": "root_dir",
        "id": "run_id",
        "name": "run_name",
        "notes": "run_notes",
        "tags": "run_tags",
        "group": "run_group",
        "job_type": "run_job_type",
        "tensorboard": "sync_tensorboard",
    }
    settings: Settings = given["settings"]
    ours: dict[str, Any] = {field: environ[variable] for field, variable in _OURS.items() if environ.get(variable)}
    ours |= dict.fromkeys((field for field, variable in _READ_LATER.items() if environ.get(variable)))
    arguments = {
        names.get(name, name): value
        for name, value in given.items()
        if value is not None and name not in ("settings", "unknown")
    }
    return {**settings_of_environ(environ).given(), **ours, **settings.given(), **arguments}


def _arguments(chosen: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `chiplog.init`."""
    is_shared = chosen.get("mode") == "shared"
    run_id = chosen.get("run_id")
    is_rank = is_rank_of_launcher(environ)
    goes_on = str(chosen.get("resume")).lower() in (
        "auto",
        "true",
    )  # with the last unfinished run, whose ID is not known
    if run_id is None and not is_rank and not goes_on:
        run_id = generate_id()
    arguments: dict[str, Any] = {
        "project": chosen.get("project"),
        "run_id": run_id,
        "name": chosen.get("run_name"),
        "notes": chosen.get("run_notes"),
        "tags": chosen.get("run_tags") or (),
        "group": chosen.get("run_group"),
        "job_type": chosen.get("run_job_type"),
        "mode": "disabled" if chosen.get("disabled") is True else "online" if is_shared else chosen.get("mode"),
        "resume": chosen.get("resume"),
        "label": chosen.get("x_label"),
        "config": _config(chosen),
    }
    if is_rank and run_id is None and chosen.get("run_group") and not is_shared:
        arguments["one_run_per_process"] = BY_GROUP
    arguments["primary"] = chosen.get("x_primary")
    arguments["update_finish_state"] = chosen.get("x_update_finish_state")
    if chosen.get("x_stats_gpu_device_ids") is not None:
        arguments["gpu_device_ids"] = [str(index) for index in chosen["x_stats_gpu_device_ids"]]
    arguments["sample_interval_s"] = (
        0 if flag("x_disable_stats", chosen.get("x_disable_stats"))[0] else chosen.get("x_stats_sampling_interval")
    )
    if chosen.get("console") == "off":
        arguments["capture_console"] = False
    return arguments


def _config(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config: of a namespace or a dict, without what is excluded."""
    config = chosen.get("config")
    if config is None:
        return {}
    if isinstance(config, str | os.PathLike):
        config = read_config(config, warn)
    plain = to_plain("config", config, lambda bad: warn(bad.message))
    if not isinstance(plain, Mapping):
        warn(f"config={short_repr(config)} is no dict; it is left out")
        return {}
    included, excluded = chosen.get("config_include_keys"), chosen.get("config_exclude_keys")
    if included and excluded:  # in strict mode this was raised
        warn("config_include_keys and config_exclude_keys exclude each other; config_include_keys counts")
        excluded = None
    return {
        key: value
        for key, value in plain.items()
        if (not included or key in included) and (not excluded or key not in excluded)
    }


def _reinit(word: Any) -> str:
    """Return one of chiplog's words for what happens to an open run."""
    known = {True: "finish_previous", False: "return_previous"}
    if word in (None, "default"):
        return "finish_previous" if _is_notebook() else "return_previous"
    return known.get(word, str(word))


def _is_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and "IPKernelApp" in getattr(getattr(shell, "get_ipython", lambda: None)(), "config", {})


def _not_available(given: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[str]:
    lines = [f"wandb.init() has no argument {name}=; it is ignored" for name in given["unknown"]]
    lines += [f"Settings({name}=) is not a field of wandb 0.31; it is ignored" for name in given["settings"].unknown()]
    for name in ("resume_from", "fork_from"):
        if chosen.get(name):
            lines.append(f"wandb.init({name}=) is not available in chiplog: the run is opened without it")
    return lines


@never_raises("resume")
def _warn_of_ignored_run(run: Run) -> None:
    """Warn, in W&B's words, if resume="auto" would have continued another run than the one that was named."""
    from chiplog.integrations import wandb  # it imports this module. Scripts replace its termwarn

    if ignored := run._inner._settings.passed_over:
        wandb.termwarn(f"Ignoring ID {ignored} loaded due to resume='auto' because the run ID is set to {run.id}.")


@never_raises("save_code")
def _save_main_script(run: Run) -> None:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path and Path(path).is_file() and run._inner.is_primary:  # all ranks of a run have the same script
        run._inner.save(path, f"code/{Path(path).name}")
