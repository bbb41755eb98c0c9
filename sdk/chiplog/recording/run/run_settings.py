"""Resolve the arguments of `init` and the environment into the settings of a run."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from chiplog.identity import process_info
from chiplog.identity.identity import Identity, initial_run_id, resolve_identity
from chiplog.identity.launch_cache import with_cached_run_id
from chiplog.identity.modes import CREATE_NEW, RANK0, announces_split, beside, mode_of, reinit_of, with_own_run
from chiplog.recording.resume.resume import (
    announce_resumed,
    go_on,
    is_resumed,
    passed_over,
    requested_run,
    warn_unknown_run,
    working_directory,
)
from chiplog.recording.resume.unfinished_runs import key_of
from chiplog.recording.run.run import Run
from chiplog.recording.sharing.environment import RECORDS_ENVIRONMENT
from chiplog.safety.diagnostics import Diagnostic, error_text
from chiplog.safety.foreign_names import is_stand_in, left_out
from chiplog.settings import RunSettings, as_strings, clean_text, flag, safe_name, sample_interval
from chiplog.values.config import config_entries
from chiplog_schemas.limit_settings import read_limits
from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.paths import Paths, own_dir, paths_for_root
from chiplog_schemas.process.inherited_run import with_inherited_places

RUN_PER_PROCESS = "CHIPLOG_RUN_PER_PROCESS"
SPLIT = "each process of this launch has its own run; without {} they share one"
BY_GROUP = "group= or WANDB_RUN_GROUP"  # `one_run_per_process` as W&B's interface asks for it
_T = TypeVar("_T")


def resolve_settings(
    environ: Mapping[str, str],
    given: Mapping[str, Any],
    opened: Sequence[Run],
    opened_ids: AbstractSet[str],
    *,
    nothing_given: bool = False,
) -> RunSettings:
    """Return the settings of a run; what is wrong with its arguments and variables is in `diagnostics`.

    given: all arguments of `init`. opened: the open runs of this process, the latest last. opened_ids: the first IDs of
    all runs that it opened. nothing_given: the run is disabled, and the arguments were not usable.
    """
    notes_found: list[Diagnostic] = []
    given = _without_stand_ins(given, notes_found)
    reinit = _checked(reinit_of(given["reinit"]), notes_found)
    still_open = initial_run_id(opened[-1]._settings.identity) if opened and not reinit else ""
    facts = process_info.read_process_facts(opened_ids - {still_open})
    environ = with_inherited_places(environ, facts.pid, facts.stale_variables)
    asked = requested_run(given, environ, notes_found)
    run_id = _name("run ID", asked.run_id, notes_found)
    asked = asked._replace(run_id=run_id)
    label = _name("label", given["label"] or environ.get("CHIPLOG_LABEL"), notes_found)
    identity = resolve_identity(environ, facts, label, run_id)
    where = paths_for_root(own_dir(given["dir"], environ))
    group = _checked(clean_text("group", given["group"] or environ.get("CHIPLOG_GROUP")), notes_found)
    name = _checked(clean_text("name", given["name"]), notes_found)
    split_by = "" if run_id else split_asked_by(given, environ, notes_found)
    splits = bool(split_by)
    announcements = [SPLIT.format(split_by)] if splits and announces_split(identity) else []
    if splits:  # safeguard: split-is-asked-for
        identity, name = with_own_run(identity, group, name, facts)
    project = _checked(clean_text("project", given["project"] or environ.get("CHIPLOG_PROJECT")), notes_found)
    own = f"rank{identity.rank}" if splits and identity.rank is not None else ""
    key = key_of(working_directory(), project, group, own)
    before = identity.run_id
    identity, label = go_on(identity, asked, label, key, where, is_spawned=facts.spawned is not None)
    clean_id, clean_label = _name("run ID", identity.run_id, []), _name("label", identity.label, [])
    identity = replace(identity, run_id=clean_id or "", label=clean_label or "")
    primary = _checked(flag("primary", given["primary"]), notes_found)
    if primary is None:
        primary = _checked(flag("CHIPLOG_PRIMARY", environ.get("CHIPLOG_PRIMARY")), notes_found)
    asked_mode = "disabled" if nothing_given else given["mode"]
    mode = _checked(mode_of(asked_mode, environ.get("CHIPLOG_MODE", ""), identity), notes_found)
    if primary is not None:
        identity = replace(identity, primary=primary, is_fallback_primary=False)
    if reinit == CREATE_NEW:
        labels = [(run._membership.identity.run_id, run._membership.identity.label) for run in opened]
        identity = beside(identity, labels, primary_given=primary is not None)
    announcements += announce_resumed(identity, asked, before, project)
    if identity.primary and mode != "disabled":  # one of a thousand ranks reports it
        warn_unknown_run(where, identity, asked, notes_found)
    try:
        config = config_entries(given["config"])
    except Exception as error:
        why = f" ({error_text(error)})" if str(error) else ""
        what = f"config of type {type(given['config']).__name__} is not a mapping{why}"
        notes_found.append(Diagnostic("bad_argument", "config", f"{what} and is ignored; give a dict"))
        config = {}
    gpus = given["gpu_device_ids"]
    if gpus is None and environ.get("CHIPLOG_GPU_DEVICE_IDS"):
        gpus = environ["CHIPLOG_GPU_DEVICE_IDS"].split(",")
    asked_s = given["sample_interval_s"]
    if asked_s is None:
        asked_s = environ.get("CHIPLOG_SAMPLE_INTERVAL_S")
    return RunSettings(
        identity=with_cached_run_id(where, identity) if mode != "disabled" else identity,
        places=where,
        mode=mode,
        agent_address=given["agent"] or environ.get("CHIPLOG_AGENT") or None,
        project=project,
        name=name,
        group=group,
        job_type=_checked(clean_text("job_type", given["job_type"]), notes_found),
        tags=as_strings(given["tags"]),
        notes=_checked(clean_text("notes", given["notes"]), notes_found),
        config=config,
        run_given=bool(run_id),
        label_given=bool(label),
        primary_given=primary is not None or splits,
        gpu_device_ids=None if gpus is None else tuple(word.strip() for word in as_strings(gpus) if word.strip()),
        sample_interval_s=_checked(sample_interval(asked_s), notes_found),
        speaks_for_node=str(given["mode"] or environ.get("CHIPLOG_MODE")).strip().lower() == RANK0,
        update_finish_state=_checked(flag("update_finish_state", given["update_finish_state"]), notes_found),
        capture_console=_checked(flag("capture_console", given["capture_console"]), notes_found) is not False,
        records_environment=_checked(flag(RECORDS_ENVIRONMENT, environ.get(RECORDS_ENVIRONMENT)), notes_found)
        is not False,
        limits=read_limits(
            environ, lambda message: notes_found.append(Diagnostic("bad_argument", message[:60], message))
        ),
        resumed=mode != "disabled" and is_resumed(where, identity, asked),
        unfinished_key=key,
        passed_over=passed_over(identity, asked, key, where),
        announcements=tuple(announcements) if mode != "disabled" else (),
        diagnostics=tuple(notes_found),
    )


def disabled_settings(
    environ: Mapping[str, str], names: Iterable[str], opened: Sequence[Run], opened_ids: AbstractSet[str]
) -> RunSettings:
    """Return the settings of a disabled run, even with bad variables or without a working directory."""
    try:
        return resolve_settings(environ, dict.fromkeys(names), opened, opened_ids, nothing_given=True)
    except Exception:  # reported by init(): a relative CHIPLOG_DIR below a removed directory
        identity = Identity("disabled", "disabled", "")
        return RunSettings(identity, Paths(*(Path("/nonexistent"),) * 3), "disabled", None)


def split_asked_by(given: Mapping[str, Any], environ: Mapping[str, str], notes_found: list[Diagnostic]) -> str:
    """Return what asks for a run for each process: the argument, else the variable. Empty: nothing does."""
    argument = given["one_run_per_process"]
    if isinstance(argument, str) and argument == BY_GROUP:
        return BY_GROUP
    for name, value in (("one_run_per_process", argument), (RUN_PER_PROCESS, environ.get(RUN_PER_PROCESS))):
        if (asked := _checked(flag(name, value), notes_found)) is not None:
            return name if asked else ""
    return ""


def _without_stand_ins(given: Mapping[str, Any], notes_found: list[Diagnostic]) -> dict[str, Any]:
    """Return the arguments without those of foreign names, such as `name=wandb.util.generate_id()`."""
    found = [name for name, value in given.items() if is_stand_in(value)]
    notes_found += map(left_out, found)
    return {name: None if name in found else value for name, value in given.items()}


def _name(kind: str, value: Any, notes_found: list[Diagnostic]) -> str | None:
    """Return a cleaned run ID or label, and report a change; None if there is none."""
    if value is None or value == "":
        return None
    clean, change = safe_name(kind, str(value), NAME_CHARS_MAX)
    if change is not None:
        notes_found.append(Diagnostic("bad_name", change[:60], change))
    return clean or None


def _checked(found: tuple[_T, Diagnostic | None], notes_found: list[Diagnostic]) -> _T:
    """Return a setting; add what is wrong with it, if anything, to the remarks."""
    value, bad = found
    if bad is not None:
        notes_found.append(bad)
    return value
