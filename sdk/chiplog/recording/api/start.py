"""`init` and `setup`: open a run in this process, or prepare one for the processes that it starts."""

import copyreg
import logging
import os
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace
from inspect import signature
from typing import Any

from chiplog.identity import process_info
from chiplog.identity.identity import encode_setup, initial_run_id
from chiplog.identity.inherited_env import export_run
from chiplog.identity.modes import CREATE_NEW, RETURN_PREVIOUS, reinit_of
from chiplog.recording.api import process_hooks
from chiplog.recording.run import current_run
from chiplog.recording.run.current_run import open_runs
from chiplog.recording.run.pickling import RunPickle, find_local, from_pickle, to_pickle
from chiplog.recording.run.run import Run
from chiplog.recording.run.run_settings import disabled_settings, resolve_settings
from chiplog.safety.diagnostics import error_text
from chiplog.safety.lenient_calls import ignore_unknown_arguments
from chiplog.settings import RunSettings
from chiplog_schemas.interrupts import handlers_held
from chiplog_schemas.process.inherited_run import SETUP, encode_places
from chiplog_schemas.process.recording_dir import recording_dir

_log = logging.getLogger("chiplog")


@ignore_unknown_arguments
def init(
    project: str | None = None,
    *,
    run_id: str | None = None,
    id: str | None = None,
    name: str | None = None,
    group: str | None = None,
    job_type: str | None = None,
    tags: Iterable[str] = (),
    notes: str | None = None,
    config: Any = None,
    label: str | None = None,
    primary: bool | None = None,
    resume: str | bool | None = None,
    mode: str | None = None,
    gpu_device_ids: Iterable[str] | None = None,
    sample_interval_s: float | None = None,
    update_finish_state: bool | None = None,
    capture_console: bool = True,
    dir: str | os.PathLike[str] | None = None,
    agent: str | None = None,
    reinit: str | bool | None = None,
    one_run_per_process: bool | None = None,
) -> Run:
    """Open a run in this process and make it the current one. Never raises, and waits for no daemon.

    Every rank calls this, unchanged. Rank, label, primary and run ID come from the launcher's environment, or later
    from torch.distributed. An argument wins over its environment variable.

    Args:
        project: Name of the project (`CHIPLOG_PROJECT`).
        run_id: ID of the run (`CHIPLOG_RUN_ID`). By default all ranks of a launch agree on one.
        id: Another name of `run_id`.
        name: Display name of the run.
        group: Group of the run (`CHIPLOG_GROUP`): a word for several runs that belong together.
        job_type: Kind of the job in its group, such as train or eval.
        tags: Words to find the run by. A single text is one tag.
        notes: Free text.
        config: A dict, argparse namespace, dataclass, OmegaConf, attrs or pydantic object. The primary's is the run's.
        label: Name of this process in the run (`CHIPLOG_LABEL`). Default: `rank<n>`, else `<host>-<word>`.
        primary: True if this label writes what the run shares (`CHIPLOG_PRIMARY`). Default: rank 0, or a process
            without a launcher.
        resume: The ID of a run to continue, like `run_id`; or a rule for `run_id`: allow (continue the run if it
            exists), must (it must exist), never (it must not exist). The collector decides; a demand that is not met
            leaves a row of kind resume_refused in `events`, and the data goes to `<run_id>-2`. auto or True without
            `run_id`: the last unfinished run of this working directory and project on this node. A process without a
            launcher also takes the label of the process before it. Counted steps continue on the same node.
        mode: online (default), offline (journals stay on this node for `chiplog sync`), disabled, or
            rank0 (disabled on all ranks but 0); in any case (`CHIPLOG_MODE`). dryrun means offline, run and shared
            mean online, and any other word means offline.
        gpu_device_ids: UUIDs of GPUs, prefixes of UUIDs, MIG names, or nvidia-smi indices (`CHIPLOG_GPU_DEVICE_IDS`).
            Default: what CUDA_VISIBLE_DEVICES, the local rank and torch report, corrected by the driver's process
            list.
        sample_interval_s: Seconds between samples of this machine, 0.1 to 3600, or 0 for none
            (`CHIPLOG_SAMPLE_INTERVAL_S`). A node is sampled as often as the process there that asks for the most.
            Default: 1.
        update_finish_state: True if the state of the run follows this label's. Default: only the primary's does.
        capture_console: False leaves stdout and stderr alone.
        dir: Directory of journals, sockets and data (`CHIPLOG_DIR`). Default: ~/.chiplog.
        agent: ZeroMQ address of the agent (`CHIPLOG_AGENT`). Default: the node's own agent, started if none listens.
        reinit: What happens to open runs: finish_previous or True finishes them, return_previous or False returns the
            latest of them, create_new leaves them open beside this one. By default an open run is returned if this
            call means the same run, and else finished.
        one_run_per_process: True gives each process its own run in place of one run of all
            (`CHIPLOG_RUN_PER_PROCESS`). A run ID that is given counts more, and children stay in their parent's run.

    Returns:
        The run; one that records nothing if it is disabled or could not be opened.

    Examples:
        >>> run = chiplog.init(project="gpt", config={"lr": 3e-4})
    """
    given = dict(locals())  # the arguments by name
    with handlers_held(), current_run.opening():  # safeguard: interrupt-passes-init
        return _init(os.environ, given)


def open_beside(environ: Mapping[str, str], *, joins: bool = False, **arguments: Any) -> Run:
    """Open a run for an integration, next to the open ones, as `init` does. No child of this process inherits it.

    environ: the variables to use. joins: another process may have opened the run: this one describes it only if that
    one has ended. arguments: of `init`.
    """
    given = {name: known.default for name, known in signature(init).parameters.items()}
    given |= {"reinit": CREATE_NEW, **arguments}
    with handlers_held(), current_run.opening():
        settings = _resolve(environ, given)
        if joins:
            identity = settings.identity
            settings = replace(settings, identity=replace(identity, is_fallback_primary=identity.primary))
        return _enter(settings)


def _init(environ: MutableMapping[str, str], given: dict[str, Any]) -> Run:
    settings = _resolve(environ, given)
    previous = _previous(settings, reinit_of(given["reinit"])[0])
    if previous is not None:
        for note in settings.diagnostics:
            previous._report_fault(note)
        return previous
    run = _enter(settings)
    if run.mode != "disabled":
        export_run(environ, run, run.id, settings.identity, encode_places(environ, settings.places_for_children))
    return run


def _resolve(environ: Mapping[str, str], given: dict[str, Any]) -> RunSettings:
    try:
        return resolve_settings(environ, given, open_runs(), current_run.opened_ids)
    except Exception as error:
        _log.warning("chiplog: init() got invalid arguments (%s); nothing is logged", error_text(error))
        return disabled_settings(environ, given, open_runs(), current_run.opened_ids)


def _enter(settings: RunSettings) -> Run:
    """Open a run, and make it the current one."""
    run = _open(settings)
    for line in settings.announcements:
        _log.warning("chiplog: %s", line)
    for note in settings.diagnostics:
        run._report_fault(note)
    if run.mode != "disabled":
        current_run.opened_ids.add(initial_run_id(settings.identity))  # safeguard: second-run-is-another
    current_run.enter(run)
    process_hooks.forget_exit()
    process_hooks.install()
    process_hooks.finalize_with_multiprocessing()
    return run


def _previous(settings: RunSettings, reinit: str) -> Run | None:
    """Return the open run that `init` must return, if any. Finishes open runs that the new one replaces."""
    opened = open_runs()
    if not opened or reinit == CREATE_NEW:  # safeguard: parallel-runs-stay-open
        return None
    if reinit == RETURN_PREVIOUS:
        return opened[-1]
    same = next((run for run in reversed(opened) if run._is_same(settings)), None) if not reinit else None
    if same is not None:
        _log.warning("chiplog: init() was called twice for run %s; the open run is returned", same.id)
        return same
    for run in reversed(opened):
        run.finish()
    return None


def _open(settings: RunSettings) -> Run:
    try:
        return Run(settings)
    except Exception as error:
        _log.warning("chiplog: init() failed inside (%s %s); nothing is logged", type(error).__name__, error)
        return Run(replace(settings, mode="disabled"))


@ignore_unknown_arguments
def setup() -> None:
    """Prepare one run for this process and for all processes that it starts from now on.

    Call it in a parent that only starts workers: those that call `init` share one run, also when no launcher and no
    process group shows that they belong together. It is never required: a parent that calls `init` itself, a launcher,
    torch.multiprocessing.spawn() and torch.distributed have the same effect. Calling it again prepares another run. In
    a child, which may import the parent's script, it changes nothing.

    Examples:
        >>> chiplog.setup()
        >>> workers = [subprocess.Popen(["python", "worker.py"]) for _ in range(8)]
    """
    current_run.follow_fork()
    with handlers_held():
        process_hooks.install()
        try:
            facts = process_info.read_process_facts(current_run.opened_ids)
            places = encode_places(os.environ, {"CHIPLOG_DIR": str(recording_dir(None))})
            os.environ[SETUP] = encode_setup(os.environ, facts, places)
        except Exception as error:
            _log.warning("chiplog: setup() failed inside (%s); child processes open separate runs", error_text(error))


def rejoin(ticket: RunPickle) -> Run:
    """Return the run of a pickle. Unpickling calls this.

    In the process that pickled it, or a fork of that process, this is the same object. In another process it logs into
    the same run, through the same agent, under its own label, from its first `log()` on. It is the current run if there
    is no other, and ends with the process.
    """
    current_run.follow_fork()
    run = find_local(ticket)
    if run is not None:
        return run
    with handlers_held(), current_run.opening():
        return find_local(ticket) or _rejoin(ticket)


def _rejoin(ticket: RunPickle) -> Run:
    try:
        run = from_pickle(ticket, os.environ)
    except Exception as error:
        _log.warning("chiplog: a run cannot be unpickled here (%s); nothing is logged", error_text(error))
        return Run(replace(ticket.settings, mode="disabled"))
    current_run.enter_unpickled(run)
    process_hooks.install()
    # A child's arguments are unpickled before multiprocessing marks it as a child.
    process_hooks.register_child_finalizer()
    process_hooks.finalize_with_multiprocessing()
    return run


copyreg.pickle(Run, lambda run: (rejoin, (to_pickle(run),)))
