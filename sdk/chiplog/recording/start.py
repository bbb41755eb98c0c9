"""`init`, the process's current run, and the hooks for fork, uncaught exceptions and exit."""

import atexit
import copyreg
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeVar

from chiplog.identity import process_info
from chiplog.identity.identity import SETUP, Identity, encode_setup, initial_run_id, resolve_identity
from chiplog.identity.inherited_env import export_run
from chiplog.identity.launch_cache import with_cached_run_id
from chiplog.identity.modes import CREATE_NEW, RANK0, RETURN_PREVIOUS, beside, mode_of, reinit_of, with_own_run
from chiplog.recording.environment import RECORDS_ENVIRONMENT
from chiplog.recording.failures import attach_context, exit_status_of
from chiplog.recording.main_frame import main_frame_returned, remember_main_frame
from chiplog.recording.pickling import RunPickle, find_local, from_pickle, to_pickle
from chiplog.recording.resume import go_on, requested_run, warn_unknown_run, working_directory
from chiplog.recording.run import Run
from chiplog.recording.unfinished_runs import key_of
from chiplog.safety.diagnostics import Diagnostic, error_text
from chiplog.safety.dynamo import dynamo_disable
from chiplog.safety.interrupts import handlers_held
from chiplog.safety.lenient_calls import NO_DATA, hide_unknown_arguments, ignore_unknown_arguments
from chiplog.settings import RunSettings, as_strings, clean_text, flag, safe_name
from chiplog.values.config import config_entries
from chiplog_schemas.bounds import read_bounds
from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.paths import Paths, own_dir, paths_for_root
from chiplog_schemas.process.owners import note_good_end

_T = TypeVar("_T")
_log = logging.getLogger("chiplog")
_lock = threading.Lock()
_current: Run | None = None
_earlier: list[Run] = []  # opened by init() before the current one, and still open
_secondary_runs: list[Run] = []  # unpickled while another run was the current one
_hooks_installed = False
_opened: set[str] = set()  # first IDs of runs that this process opened, before any agreement
_pending_exit: SystemExit | None = None  # the last uncaught sys.exit() since init()


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
    update_finish_state: bool | None = None,
    capture_console: bool = True,
    dir: str | os.PathLike[str] | None = None,
    agent: str | None = None,
    reinit: str | bool | None = None,
) -> Run:
    """Open a run in this process and make it the current one. Never raises, and waits for no daemon.

    Every rank calls this, unchanged. Rank, label, primary and run ID come from the launcher's environment, or later
    from torch.distributed. An argument wins over its environment variable.

    Args:
        project: Name of the project (`CHIPLOG_PROJECT`).
        run_id: ID of the run (`CHIPLOG_RUN_ID`). By default all ranks of a launch agree on one.
        id: Another name of `run_id`.
        name: Display name of the run.
        group: Group of the run (`CHIPLOG_GROUP`). Without a run ID each process has its own run in this group; with
            one, it is the group of the shared run.
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
        mode: online (default), offline (journals stay under CHIPLOG_DIR/offline for `chiplog sync`), disabled, or
            rank0 (disabled on all ranks but 0); in any case (`CHIPLOG_MODE`). dryrun means offline, run and shared
            mean online, and any other word means offline.
        gpu_device_ids: UUIDs of GPUs, prefixes of UUIDs, MIG names, or nvidia-smi indices (`CHIPLOG_GPU_DEVICE_IDS`).
            Default: what CUDA_VISIBLE_DEVICES, the local rank and torch report, corrected by the driver's process
            list.
        update_finish_state: True if the state of the run follows this label's. Default: only the primary's does.
        capture_console: False leaves stdout and stderr alone.
        dir: Directory of journals, sockets and data (`CHIPLOG_DIR`). Default: ~/.chiplog.
        agent: ZeroMQ address of the agent (`CHIPLOG_AGENT`). Default: the node's own agent, started if none listens.
        reinit: What happens to open runs: finish_previous or True finishes them, return_previous or False returns the
            latest of them, create_new leaves them open beside this one. By default an open run is returned if this
            call means the same run, and else finished.

    Returns:
        The run; one that records nothing if it is disabled or could not be opened.

    Examples:
        >>> run = chiplog.init(project="gpt", config={"lr": 3e-4})
    """
    environ = os.environ
    given: dict[str, Any] = {
        "project": project,
        "run_id": run_id,
        "id": id,
        "resume": resume,
        "name": name,
        "group": group,
        "job_type": job_type,
        "tags": tags,
        "notes": notes,
        "config": config,
        "label": label,
        "primary": primary,
        "mode": mode,
        "gpu_device_ids": gpu_device_ids,
        "update_finish_state": update_finish_state,
        "capture_console": capture_console,
        "dir": dir,
        "agent": agent,
        "reinit": reinit,
    }
    with handlers_held():  # safeguard: interrupt-passes-init
        return _init(environ, given)


def _init(environ: MutableMapping[str, str], given: dict[str, Any]) -> Run:
    try:
        settings = _resolve_settings(environ, **given)
    except Exception as error:
        _log.warning("chiplog: init() got invalid arguments (%s); nothing is logged", error_text(error))
        settings = disabled_settings(environ, dict.fromkeys(given))
    global _current, _pending_exit
    previous = _previous(settings, reinit_of(given["reinit"])[0])
    if previous is not None:
        for remark in settings.diagnostics:
            previous._complain(remark)
        return previous
    run = _open(settings)
    for remark in settings.diagnostics:
        run._complain(remark)
    if run.mode != "disabled":
        _opened.add(initial_run_id(settings.identity))  # safeguard: second-run-is-another
    with _lock:
        _earlier[:] = _open_runs()
        _current = run
        _pending_exit = None
        _install_hooks()
        _finalize_with_multiprocessing()
    if run.mode != "disabled":
        export_run(environ, run, run.id, settings.identity)
    return run


def _previous(settings: RunSettings, reinit: str) -> Run | None:
    """Return the open run that `init` must return, if any. Finishes open runs that the new one replaces."""
    opened = _open_runs()
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


def _open_runs() -> list[Run]:
    """Return the open runs of `init`, the latest last."""
    return [run for run in (*_earlier, _current) if run is not None and not run._finished]


def rejoin(ticket: RunPickle) -> Run:
    """Return the run of a pickle. Unpickling calls this.

    In the process that pickled it, or a fork of that process, this is the same object. In another process it logs into
    the same run, through the same agent, under its own label, from its first `log()` on. It is the current run if there
    is no other, and ends with the process.
    """
    run = find_local(ticket)
    if run is not None:
        return run
    with handlers_held():
        return _rejoin(ticket)


def _rejoin(ticket: RunPickle) -> Run:
    global _current
    try:
        run = from_pickle(ticket, os.environ)
    except Exception as error:
        _log.warning("chiplog: a run cannot be unpickled here (%s); nothing is logged", error_text(error))
        return Run(replace(ticket.settings, mode="disabled"))
    with _lock:
        if _current is None or _current._finished:
            _current = run
        else:
            _secondary_runs[:] = [guest for guest in _secondary_runs if not guest._finished]
            _secondary_runs.append(run)
        _install_hooks()
        _register_child_finalizer()  # a child's arguments are unpickled before multiprocessing marks it as a child
        _finalize_with_multiprocessing()
    return run


copyreg.pickle(Run, lambda run: (rejoin, (to_pickle(run),)))


def current() -> Run | None:
    """Return the latest run of this process that is open, else the latest; None before `init`."""
    global _current
    if _earlier and _current is not None and _current._finished and (opened := _open_runs()):
        _current = opened.pop()
        _earlier[:] = opened
    return _current


def _all_runs() -> list[Run]:
    return [run for run in (*_secondary_runs, *_earlier, _current) if run is not None]


@dynamo_disable
@hide_unknown_arguments
def log(data: Mapping[str, Any] = NO_DATA, step: int | None = None, *more: Any, **unknown: Any) -> None:
    """Log a dict of values to the current run; see `Run.log`. Never raises; without a run it does nothing.

    Args:
        data: Values by key: int, float, bool, str, `Histogram`, numpy scalars, tensors of one element, and nested
            dicts, whose keys are joined with `/`.
        step: int64, in any order. Default: one more than the largest step that this label has logged; 0 in the first
            call.

    Examples:
        >>> chiplog.log({"train/loss": loss, "opt": {"lr": 3e-4}}, step=step)
    """
    run = current() if _earlier else _current
    if run is None:
        _warn_no_run()
    elif unknown or more:
        run.log(data, step, *more, **unknown)
    else:
        run.log(data, step)


@ignore_unknown_arguments
def finish(exit_code: int = 0) -> None:
    """Finish the current run, if there is one. Queries see its last events a moment later; see `Run.finish`.

    Args:
        exit_code: 0 marks the label as finished, any other number as failed.

    Examples:
        >>> chiplog.finish()
    """
    run = current()
    if run is not None:
        run.finish(exit_code)


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
    with handlers_held():
        _install_hooks()
        try:
            os.environ[SETUP] = encode_setup(os.environ, process_info.read_process_facts(_opened))
        except Exception as error:
            _log.warning("chiplog: setup() failed inside (%s); child processes open separate runs", error_text(error))


def _open(settings: RunSettings) -> Run:
    try:
        return Run(settings)
    except Exception as error:
        _log.warning("chiplog: init() failed inside (%s %s); nothing is logged", type(error).__name__, error)
        return Run(replace(settings, mode="disabled"))


def _resolve_settings(environ: Mapping[str, str], *, nothing_given: bool = False, **given: Any) -> RunSettings:
    remarks: list[Diagnostic] = []
    asked = requested_run(given, environ, remarks)
    run_id = _name("run ID", asked.run_id, remarks)
    asked = asked._replace(run_id=run_id)
    label = _name("label", given["label"] or environ.get("CHIPLOG_LABEL"), remarks)
    reinit = _checked(reinit_of(given["reinit"]), remarks)
    opened = _open_runs()
    still_open = initial_run_id(opened[-1]._settings.identity) if opened and not reinit else ""
    facts = process_info.read_process_facts(_opened - {still_open})
    identity = resolve_identity(environ, facts, label, run_id)
    where = paths_for_root(own_dir(given["dir"], environ))
    group = _checked(clean_text("group", given["group"] or environ.get("CHIPLOG_GROUP")), remarks)
    name = _checked(clean_text("name", given["name"]), remarks)
    if group is not None and not run_id:
        identity, name = with_own_run(identity, group, name, facts)
    project = _checked(clean_text("project", given["project"] or environ.get("CHIPLOG_PROJECT")), remarks)
    own = f"rank{identity.rank}" if group is not None and not run_id and identity.rank is not None else ""
    key = key_of(working_directory(), project, group, own)
    identity, label = go_on(identity, asked, label, key, where, is_spawned=facts.spawned is not None)
    clean_id, clean_label = _name("run ID", identity.run_id, []), _name("label", identity.label, [])
    identity = replace(identity, run_id=clean_id or "", label=clean_label or "")
    primary = _checked(flag("primary", given["primary"]), remarks)
    if primary is None:
        primary = _checked(flag("CHIPLOG_PRIMARY", environ.get("CHIPLOG_PRIMARY")), remarks)
    asked_mode = "disabled" if nothing_given else given["mode"]
    mode = _checked(mode_of(asked_mode, environ.get("CHIPLOG_MODE", ""), identity), remarks)
    if primary is not None:
        identity = replace(identity, primary=primary, is_fallback_primary=False)
    if reinit == CREATE_NEW:
        labels = [(run._identity.run_id, run._identity.label) for run in opened]
        identity = beside(identity, labels, primary_given=primary is not None)
    if identity.primary and mode != "disabled":  # one of a thousand ranks reports it
        warn_unknown_run(where, identity, asked, remarks)
    try:
        config = config_entries(given["config"])
    except Exception as error:
        why = f" ({error_text(error)})" if str(error) else ""
        what = f"config of type {type(given['config']).__name__} is not a mapping{why}"
        remarks.append(Diagnostic("bad_argument", "config", f"{what} and is ignored; give a dict"))
        config = {}
    gpus = given["gpu_device_ids"]
    if gpus is None and environ.get("CHIPLOG_GPU_DEVICE_IDS"):
        gpus = environ["CHIPLOG_GPU_DEVICE_IDS"].split(",")
    return RunSettings(
        identity=with_cached_run_id(where, identity) if mode != "disabled" else identity,
        places=where,
        mode=mode,
        agent_address=given["agent"] or environ.get("CHIPLOG_AGENT") or None,
        project=project,
        name=name,
        group=group,
        job_type=_checked(clean_text("job_type", given["job_type"]), remarks),
        tags=as_strings(given["tags"]),
        notes=_checked(clean_text("notes", given["notes"]), remarks),
        config=config,
        run_given=bool(run_id),
        label_given=bool(label),
        primary_given=primary is not None or (group is not None and not run_id),
        gpu_device_ids=None if gpus is None else tuple(word.strip() for word in as_strings(gpus) if word.strip()),
        speaks_for_node=str(given["mode"] or environ.get("CHIPLOG_MODE")).strip().lower() == RANK0,
        update_finish_state=_checked(flag("update_finish_state", given["update_finish_state"]), remarks),
        capture_console=_checked(flag("capture_console", given["capture_console"]), remarks) is not False,
        records_environment=_checked(flag(RECORDS_ENVIRONMENT, environ.get(RECORDS_ENVIRONMENT)), remarks) is not False,
        bounds=read_bounds(environ, lambda message: remarks.append(Diagnostic("bad_argument", message[:60], message))),
        unfinished_key=key,
        diagnostics=tuple(remarks),
    )


def disabled_settings(environ: Mapping[str, str], given: Mapping[str, None]) -> RunSettings:
    """Return the settings of a disabled run, even with bad variables or without a working directory."""
    try:
        return _resolve_settings(environ, **given, nothing_given=True)
    except Exception:  # reported by init(): a relative CHIPLOG_DIR below a removed directory
        identity = Identity("disabled", "disabled", "")
        return RunSettings(identity, Paths(*(Path("/nonexistent"),) * 3), "disabled", None)


def _name(kind: str, value: Any, remarks: list[Diagnostic]) -> str | None:
    """Return a cleaned run ID or label, and report a change; None if there is none."""
    if value is None or value == "":
        return None
    clean, change = safe_name(kind, str(value), NAME_CHARS_MAX)
    if change is not None:
        remarks.append(Diagnostic("bad_name", change[:60], change))
    return clean or None


def _checked(found: tuple[_T, Diagnostic | None], remarks: list[Diagnostic]) -> _T:
    """Return a setting; add what is wrong with it, if anything, to the remarks."""
    value, bad = found
    if bad is not None:
        remarks.append(bad)
    return value


_warned_no_run = False


def _warn_no_run() -> None:
    global _warned_no_run
    if not _warned_no_run:
        _warned_no_run = True
        _log.warning("chiplog: log() without a run; call chiplog.init() first")


# -- the process --


def _install_hooks() -> None:
    global _hooks_installed
    if _hooks_installed:
        return
    _hooks_installed = True
    remember_main_frame()
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork)  # safeguard: fork-detaches-journal
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        for run in _all_runs():  # safeguard: exception-ends-all-runs
            run._mark_exit(error)
        previous(kind, error, traceback)

    sys.excepthook = hook
    previous_of_threads = threading.excepthook

    def thread_hook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None and arguments.exc_type is not SystemExit:
            name = arguments.thread.name if arguments.thread is not None else "?"
            for run in _open_runs():
                run._note_thread(name, arguments.exc_value)
        previous_of_threads(arguments)

    threading.excepthook = thread_hook
    original_exit = sys.exit

    def exit_hook(status: Any = None, /) -> NoReturn:
        global _pending_exit
        try:
            original_exit(status)
        except SystemExit as error:
            # In another thread it ends only the thread. In atexit, after the main thread, it ends nothing.
            if threading.current_thread() is threading.main_thread() and threading.main_thread().is_alive():
                _pending_exit = SystemExit(*error.args)
                remember_main_frame()  # in a REPL or embedded, the frame that called init() has returned
                attach_context(_pending_exit, error)
                error._chiplog_departure = _ExitMarker(_pending_exit)  # type: ignore[attr-defined]  # any attribute may be set
            raise

    sys.exit = exit_hook  # no hook sees a SystemExit; one raised without sys.exit goes unseen


class _ExitMarker:
    """Attached to the SystemExit of a sys.exit(). If it is deleted while code runs, the exit was caught.

    The interpreter deletes the one that ends the process after the last frame.
    """

    def __init__(self, left: SystemExit) -> None:
        self._left = left  # a copy: the raised one must be deleted when its handler drops it

    def __del__(self, frame: Callable[[], FrameType] = sys._getframe) -> None:
        global _pending_exit
        if _pending_exit is self._left and frame().f_back is not None:  # safeguard: caught-exit-is-no-end
            _pending_exit = None

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        return str, ()  # a pickled exception does not carry the marker


def _at_exit(*, is_seen: bool = False) -> None:
    """End the runs of this process. is_seen: an exception that ends it, if any, is being handled."""
    global _pending_exit
    returned = is_seen or main_frame_returned()  # safeguard: kept-exit-is-no-end
    if returned:
        _pending_exit = None  # it was caught, and the handler keeps it
    # A child of multiprocessing exits while its exception is being handled, without calling the excepthook.
    error = sys.exc_info()[1] or _pending_exit  # safeguard: child-exception-seen
    if returned if error is None else not exit_status_of(error)[0]:
        here = _current._settings.places if _current is not None else paths_for_root(own_dir(None, os.environ))
        note_good_end(here.owners)  # safeguard: pool-worker-ends-well
    for run in _all_runs():
        if error is not None:
            run._mark_exit(error)
        elif not returned:  # safeguard: unseen-exit-is-not-normal
            run._leave()  # `raise SystemExit(4)`: no hook gets the exit code
        run.finish()


def _at_exit_of_child() -> None:
    global _pending_exit
    _pending_exit = None  # an exception that ends it is being handled; any other one was caught
    _at_exit(is_seen=True)


def _after_fork() -> None:
    global _lock, _pending_exit
    _pending_exit = None
    _opened.clear()
    _lock = threading.Lock()  # another thread of the parent may have held it
    remember_main_frame()
    if _current is not None:
        for run in _all_runs():
            run._after_fork()
        _register_child_finalizer()


def _register_child_finalizer() -> None:
    """Register the finalizer of a child that multiprocessing has not marked as a child yet.

    multiprocessing clears its finalizers right after this, and then calls what is registered here.
    """
    global _bootstrap_pid
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _bootstrap_pid != os.getpid():
        _bootstrap_pid = os.getpid()
        util.register_after_fork(_at_exit, _finish_with_multiprocessing)


def _finish_with_multiprocessing(_: object = None) -> None:
    """Finish the run at the end of a child of multiprocessing: it exits without atexit, but runs its finalizers."""
    sys.modules["multiprocessing.util"].Finalize(None, _at_exit_of_child, exitpriority=100)


# The process with a registered finalizer, and the one that registered it for the time after its start.
_finalizer_pid = _bootstrap_pid = 0


def _finalize_with_multiprocessing() -> None:
    """Register once that a child of multiprocessing finishes its run."""
    global _finalizer_pid
    if (
        _finalizer_pid != os.getpid()
        and process_info.is_multiprocessing_child()
        and "multiprocessing.util" in sys.modules
    ):
        _finalizer_pid = os.getpid()
        _finish_with_multiprocessing()
