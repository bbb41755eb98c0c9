"""A run with W&B's interface, on top of chiplog's."""

import base64
import os
import pickle
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any, TextIO

from chiplog.integrations.adapter.reads import former_state
from chiplog.integrations.tensorboard.patch import Sync
from chiplog.integrations.wandb.addresses import project_url, run_url
from chiplog.integrations.wandb.charts import CustomChart
from chiplog.integrations.wandb.errors import Error, UsageError, artifact_errors, of_open_run, refuse, too_late
from chiplog.integrations.wandb.gym_videos import Monitor
from chiplog.integrations.wandb.model_watch import Watch
from chiplog.integrations.wandb.settings import Settings
from chiplog.integrations.wandb.state.attribute_dicts import AttributeDict
from chiplog.integrations.wandb.state.run_config import Config
from chiplog.integrations.wandb.state.run_summary import Definitions, Summary, fault_of, words_of
from chiplog.integrations.wandb.stored.restore import restore_file
from chiplog.recording.run.run import Run as ChiplogRun
from chiplog.safety import foreign_names
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostic
from chiplog.values.artifact_value import UnknownArtifactError
from chiplog.values.metrics import FLOAT_TYPES, Histogram
from chiplog_schemas.model.events import EventKind

_FIGURES = ("matplotlib.", "plotly.")  # what the modules of types that are drawn begin with
_ATTACHED = "chiplog-run:"  # what an `_attach_id` begins with
# Beside those with code here: chiplog's own, and those that do nothing.
_PASSED_ON = ("log_artifact", "log_model")
_METHODS_OF_OPEN_RUNS = foreign_names.RUN_NAMES.union(_PASSED_ON)
_TITLES_MAX = 1_000  # of alerts that may have to wait: scripts put numbers into titles
_STDOUT = 1  # a stream of the console
FORMER_WAIT_S = 1.0  # in all, for what a resumed run had before
_LEVELS = {"INFO": "info", "WARN": "warning", "ERROR": "error"}


class RunDisabled:
    """The class of disabled runs in earlier versions of W&B: libraries ask whether a run is one."""


class Run:
    """A run as `wandb.init()` returns it. What chiplog's run has beyond W&B's is there, too: `phase`, `label`, `rank`.

    inner: chiplog's run. settings: what `init` was told. directory: above `run.dir`; None: chiplog's own.
    """

    def __init__(self, inner: ChiplogRun, settings: Settings, directory: str | None = None) -> None:
        self._inner = inner
        self._settings = settings
        self._directory = directory
        self._is_strict = bool(settings.strict)
        self._at: int | None = None  # the step that is open; None before the first call of log()
        self._synced: dict[str, str] = {}  # by pattern of metrics: the step metric that is added
        self._last: dict[str, Any] = {}  # values of step metrics
        self._definitions = Definitions()
        self._summary = Summary(inner, self._definitions, lambda: self._former_state().get("summary", {}))
        self._config = Config(inner.config, self._former_config, lambda: self._check_open("config"))
        self._former: dict[str, Any] | None = None  # what the run had before; None: not asked for yet
        self._watches: list[Watch] = []
        self._taken: dict[str, Sync | Monitor] = {}  # what takes what other libraries write, by argument of init
        self._n_lines = 0  # of write_logs()
        self._quiet_until: dict[str, float] = {}  # by title of alerts, by the monotonic clock
        inner._end.before_finish = self._end  # also at an exit without finish()

    # -- logging --

    def log(
        self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
    ) -> None:
        """Log a dict of values. Each call is recorded when it returns, whatever `commit` says.

        Args:
            data: Values by key, as of `chiplog.Run.log`; figures of matplotlib and plotly, too.
            step: The step; it stays open, so that the next call without a step joins it. Lower and repeated steps are
                kept.
            commit: True: the next call without a step has the next one. Default: True if no step is given.
            sync: Ignored, as W&B does.

        """
        inner = self._inner
        if self._is_strict and self._is_finished:  # without of_open_run, whose call would cost a third of this one
            raise too_late(self.id, "log")
        if self._synced or not FLOAT_TYPES.issuperset(map(type, _values(data))):
            try:
                data = self._prepared(data)
            except Exception as error:  # of a foreign type: the core reports it
                inner._report_internal_error("log", error)
        at = self._at
        if at is None:
            at = self._at = inner._next_step
        if step is None:
            inner.log(data, at)
            if commit is None or commit:
                self._at = at + 1
            return
        inner.log(data, step)
        reached = inner._last_step
        if reached >= at:
            self._at = reached + 1 if commit else reached

    def _prepared(self, data: Any) -> Any:
        """Return what is logged for a dict: figures as media, and step metrics that belong to its metrics."""
        if not isinstance(data, Mapping):
            return data
        found = dict(_logged(key, value) for key, value in data.items())
        self._summary.note_logged(found)
        for pattern, step_metric in self._synced.items():
            if step_metric in found:
                self._last[step_metric] = found[step_metric]
            elif step_metric in self._last and any(_matches(key, pattern) for key in found):
                found[step_metric] = self._last[step_metric]
        return found

    @of_open_run
    def define_metric(
        self,
        name: str,
        step_metric: Any = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
    ) -> "Metric":
        """Say how a metric is summed up, and which metric is its x axis.

        Args:
            name: A metric's name, or a pattern that ends with `*`. A dot leads into a nested dict, one after a
                backslash is a dot.
            step_metric: The metric on the x axis, or what `define_metric` returned for it.
            step_sync: Add the last value of the step metric to calls of `log()` without it. Default: True if a step
                metric is given.
            hidden: The page draws it only for those who ask for it.
            summary: min, max, mean, last, first, none, copy or best, or several: `min,max`.
            goal: minimize or maximize: what `best` means.
            overwrite: Replace what earlier calls said of this name. Default: add to it.

        """
        axis = step_metric.name if isinstance(step_metric, Metric) else step_metric
        if fault := fault_of(name, axis, summary):
            refuse(self._is_strict, f"define_metric() is ignored: {fault}", Error)
        else:
            given = _key_of(name), words_of(summary, goal), axis, step_sync
            self._define(*given, is_hidden=None if hidden is None else bool(hidden), is_overwritten=bool(overwrite))
        return Metric(name, axis, summary)

    @never_raises("define_metric")
    def _define(
        self,
        key: str,
        given: list[str],
        axis: str | None,
        step_sync: bool | None,
        *,
        is_hidden: bool | None,
        is_overwritten: bool,
    ) -> None:
        words = self._definitions.define(key, given, is_overwritten=is_overwritten)
        word = words[0] if len(words) == 1 else "last" if is_overwritten else None
        if is_hidden is None and is_overwritten:
            is_hidden = False
        self._inner.define_metric(key, word, axis, is_hidden)
        if len(words) > 1 and self._inner._logged.keep_all():  # of which the core's definition knows none
            self._inner._values.forget_key_sets()
        if is_overwritten:
            self._synced.pop(key, None)
        if axis and step_sync is not False:
            self._synced[key] = axis
            self._last.setdefault(axis, 0)  # as in W&B, until it is logged

    # -- what a run shows --

    @property
    def step(self) -> int:
        """The step that the next call of `log()` without a step has."""
        if self._settings.mode == "shared" and self._is_strict:
            raise Error("Cannot read the W&B step in shared mode")
        return self._inner._next_step if self._at is None else self._at

    @property
    def starting_step(self) -> int:
        """The first step of this process: above 0 after a resume."""
        return self._inner._count.starting_step

    @property
    def id(self) -> str:
        """The run ID."""
        return self._inner.id

    @property
    def name(self) -> str:
        """The display name; the run ID without one."""
        return self._inner.name or self._former_state().get("name") or self._inner.id

    @name.setter
    def name(self, text: str) -> None:
        self._check_open("name")
        self._inner.name = text

    @property
    def notes(self) -> str | None:
        """Free text."""
        return self._inner.notes or self._former_state().get("notes")

    @notes.setter
    def notes(self, text: str) -> None:
        self._check_open("notes")
        self._inner.notes = text

    @property
    def tags(self) -> tuple[str, ...]:
        """Words to find the run by."""
        return self._inner.tags or tuple(self._former_state().get("tags") or ())

    @tags.setter
    def tags(self, words: Iterable[str]) -> None:
        self._check_open("tags")
        self._inner.tags = words

    @property
    def config(self) -> Config:
        """The config, also what the run had before it was resumed."""
        return self._config

    @config.setter
    def config(self, values: Mapping[str, Any]) -> None:
        self._config.update(values)

    @property
    def config_static(self) -> "ConfigStatic":
        """A copy of the config."""
        return ConfigStatic(self._config)

    @property
    def summary(self) -> Summary:
        """The summary: logged values at once, and what was assigned."""
        self._check_open("summary")
        return self._summary

    @summary.setter
    def summary(self, values: Mapping[str, Any]) -> None:
        self._summary.update(values)

    @property
    def project(self) -> str:
        """The project."""
        return str(self._inner.project or ("dummy" if self.disabled else "uncategorized"))

    @property
    def group(self) -> str:
        """The group."""
        return self._inner.group or ""

    @property
    def job_type(self) -> str:
        """The kind of the job."""
        return self._inner.job_type or ""

    @property
    def entity(self) -> str:
        """Who the run is of, as `init(entity=)` said."""
        return str(self._settings.entity or ("dummy" if self.disabled else ""))

    @property
    def path(self) -> str:
        """Entity, project and run ID, with slashes."""
        return "/".join(filter(None, (self.entity, self.project, self.id)))

    @property
    def dir(self) -> str:
        """A directory for files of this process, below `init(dir=)` if that was given."""
        if self._directory is None:
            return self._inner.dir
        path = os.path.join(self._directory, "wandb", f"run-{self.id}", "files")
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            self._report("run_dir", f"run.dir {path} cannot be created ({error.strerror}); chiplog's own is used")
            return self._inner.dir
        return path

    @property
    def sync_dir(self) -> str:
        """The directory above `dir`."""
        return os.path.dirname(self.dir)

    @property
    def settings(self) -> Settings:
        """A copy of the settings of the run, with what W&B derives from them: directories, addresses, the ID."""
        files = self.dir
        directory = os.path.dirname(files)
        derived = {
            "run_id": self.id,
            "run_url": self.url,
            "project_url": self.project_url,
            "files_dir": files,
            "sync_dir": directory,
            "sync_file": os.path.join(directory, f"run-{self.id}.wandb"),  # never written
        }
        return Settings(**self._settings.given() | derived)

    @property
    def start_time(self) -> float:
        """When the run began, in seconds since the epoch."""
        return float(self._inner.start_time)

    @property
    def url(self) -> str | None:
        """The address on a served page, else `chiplog:///PROJECT/runs/ID`; None of a disabled run."""
        return None if self.disabled else run_url(self._inner._settings.places.root, self.project, self.id)

    @property
    def project_url(self) -> str | None:
        """The address of the project."""
        return None if self.disabled else project_url(self.project)

    sweep_id = sweep_url = None

    @property
    def resumed(self) -> bool:
        """True if `init(resume=)` continues a run that is stored."""
        return self._inner.resumed or bool(self._former_state())

    @property
    def _is_finished(self) -> bool:
        return self._inner._finished

    def _check_open(self, what: str) -> None:
        if self._is_finished and self._is_strict:
            raise UsageError(f"Run ({self.id}) is finished. The change of `{what}` will be ignored.")

    def _former_config(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._former_state().get("config", {})
        return found

    def _former_state(self) -> dict[str, Any]:
        """Return what the run had before this process resumed it, asked for once."""
        if self._former is None:
            inner, is_resumed = self._inner, bool(self._settings.resume) and self._inner.mode == "online"
            root = inner._settings.places.root
            self._former = {}
            try:
                if is_resumed:
                    asked = root, inner.id, inner._run_journal.started_us, FORMER_WAIT_S
                    self._former = former_state(*asked, is_expected=inner.resumed) or {}
            except TimeoutError:
                message = f"what run {inner.id} had before it was resumed is unknown: SQL did not answer within "
                self._report("former_state", f"{message}{FORMER_WAIT_S:g} s; read it by wandb.Api().run()")
        return self._former

    def get_url(self) -> str | None:
        """Return `url`."""
        return self.url

    # -- other calls --

    @of_open_run
    def use_artifact(self, artifact_or_name: Any, *given: Any, **named: Any) -> Any:
        """Return a version of an artifact; see `chiplog.Run.use_artifact`. It may raise CommError, or UsageError.

        Args:
            artifact_or_name: "name:alias", "project/name:v3" or "entity/project/name:alias".
            *given: type and aliases.
            **named: The same.

        """
        first, _, rest = artifact_or_name.partition("/") if isinstance(artifact_or_name, str) else ("", "", "")
        is_own = "/" in rest and first == self.entity
        with artifact_errors(self.id if self._is_finished else None):
            try:
                return self._inner.use_artifact(rest if is_own else artifact_or_name, *given, **named)
            except UnknownArtifactError as error:
                if is_own or "/" not in rest:
                    raise
                try:  # there is no such project, so the first part is an entity
                    return self._inner.use_artifact(rest, *given, **named)
                except UnknownArtifactError:
                    raise error from None

    def use_model(self, name: str) -> str:
        """Download a version of an artifact; return the path of its file, of its directory if it has several.

        Args:
            name: As of `use_artifact`.

        Raises:
            CommError: It cannot be read.

        """
        artifact = self.use_artifact(name)
        with artifact_errors():
            directory, files = artifact.download(), artifact.files()
        return os.path.join(directory, files[0].path) if len(files) == 1 else str(directory)

    @of_open_run
    @never_raises("watch")
    def watch(
        self,
        models: Any,
        criterion: Any = None,
        log: str | None = "gradients",
        log_freq: int = 1000,
        idx: int | None = None,
        log_graph: bool = False,
    ) -> None:
        """Log histograms of gradients and parameters: `gradients/NAME`, `parameters/NAME`.

        Args:
            models: One or several of torch.nn.Module.
            criterion: Accepted.
            log: gradients, parameters or all; None: nothing.
            log_freq: Every so many backward passes.
            idx: Accepted.
            log_graph: Accepted.

        """
        for model in models if isinstance(models, list | tuple) else [models]:
            self._watches.append(Watch(model, log or "", log_freq, self._log_histogram))

    def unwatch(self, models: Any = None) -> None:
        """End what `watch` began, of all models or of some."""
        only = None if models is None else models if isinstance(models, list | tuple) else [models]
        for watch in list(self._watches):
            if only is None or any(watch.model is model for model in only):
                watch.stop()
                self._watches.remove(watch)

    def _log_histogram(self, key: str, values: Any) -> None:
        self.log({key: Histogram.of(values)}, commit=False)

    @of_open_run
    @never_raises("alert")
    def alert(self, title: str, text: str = "", level: Any = None, wait_duration: Any = 0) -> None:
        """Record an alert.

        Args:
            title: A few words.
            text: More of them.
            level: INFO, WARN or ERROR.
            wait_duration: Seconds or a timedelta after an alert in which others of its title are not recorded.

        """
        wait_s, now = _seconds(wait_duration), time.monotonic()
        if now < self._quiet_until.get(title, 0):
            return
        if wait_s > 0:
            if len(self._quiet_until) >= _TITLES_MAX:
                self._quiet_until.clear()
            self._quiet_until[title] = now + wait_s
        word = str(getattr(level, "value", level) or "INFO").upper()
        self._inner.alert(title, text, _LEVELS.get(word, word.lower()))

    @of_open_run
    @never_raises("save", list)
    def save(self, glob_str: Any = None, base_path: Any = None, policy: str = "live") -> list[str]:
        """Save files. Their names in the run are relative to base_path.

        Args:
            glob_str: A file, a directory or a pattern.
            base_path: A directory above them. Default: the working directory.
            policy: Accepted: files are copied when this is called.

        """
        if glob_str is None or base_path is None:
            return [] if glob_str is None else self._inner.save(glob_str)
        path = os.path.abspath(glob_str)
        relative = os.path.relpath(path, os.path.abspath(base_path))
        is_pattern = any(mark in relative for mark in "*?[")
        return self._inner.save(path, (os.path.dirname(relative) or None) if is_pattern else relative)

    def restore(
        self, name: str, run_path: str | None = None, replace: bool = False, root: str | None = None
    ) -> TextIO | None:
        """Return a file that was saved to this or another run, opened for reading; see `wandb.restore`."""
        return restore_file(self, name, run_path, replace, root)

    @never_raises("write_logs")
    def write_logs(self, text: str) -> None:
        """Add lines to the console of the run, also if that is not captured."""
        if self._inner._console.capture is not None:
            print(text)
            return
        for line in text.splitlines():
            self._inner._emit(EventKind.CONSOLE, _STDOUT, self._n_lines, line)
            self._n_lines += 1

    def display(self, height: int = 420, hidden: bool = False) -> bool:
        """Return False: there is no page in the notebook. `chiplog.ui()` shows one."""
        return False

    def to_html(self, height: int = 420, hidden: bool = False) -> str:
        """Return what this process knows of the run, as HTML."""
        return self._inner._repr_html_()

    _repr_html_ = to_html

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Finish the run."""
        self._inner._end.before_finish = self._end  # a forked child has not inherited it
        self._inner.finish(exit_code or 0)

    @never_raises("finish")
    def _end(self) -> None:
        """End what was begun, and record what chiplog's own summary lacks; chiplog's run calls it when it ends."""
        self.unwatch()
        self._end_taking()
        self._summary.publish()

    @never_raises("init")
    def _take_from_libraries(self, found: Mapping[str, Any]) -> None:
        """Log what other libraries write, until `finish`. said: arguments of `init`: sync_tensorboard, monitor_gym."""
        report = self._inner._report_internal_error
        for name, taker in (
            ("sync_tensorboard", Sync(self._log_taken, self._config.setdefaults, report)),
            ("monitor_gym", Monitor(self._log_taken, report)),
        ):
            if found.get(name) and name not in self._taken and not self.disabled:
                self._taken[name] = taker
                taker.begin()

    def _log_taken(self, data: dict[str, Any], step: int | None) -> None:
        if self._is_finished:  # chiplog's run was finished
            self._end_taking()
        else:
            self.log(data, step)

    def _end_taking(self) -> None:
        for taker in self._taken.values():
            taker.end()

    @of_open_run
    def status(self) -> None:
        """Return None: nothing is pending that this process knows."""

    def project_name(self) -> str:
        """Return the project."""
        return self.project

    def get_project_url(self) -> str | None:
        """Return `project_url`."""
        return self.project_url

    def get_sweep_url(self) -> str | None:
        """Return None: there are no sweeps."""
        return None

    join = finish

    def _label(self, *given: Any, **named: Any) -> None:
        """Accept what libraries say of themselves."""

    @property
    def _attach_id(self) -> str:
        """What `wandb.attach` takes: the run, as it is handed to other processes."""
        return _ATTACHED + base64.b64encode(pickle.dumps(self)).decode()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            self._inner._end.mark_exit(error)
        self.finish()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the run for another process, where it is the same run under another label."""
        return _rejoin, (self._inner, self._settings, self._directory, os.getpid())

    @property
    def disabled(self) -> bool:
        """True if nothing is recorded."""
        return self._inner.disabled

    @property
    def offline(self) -> bool:
        """True if the journal waits for `chiplog sync`."""
        return self._inner.offline

    def __getattr__(self, name: str) -> Any:
        """Return what chiplog's run has; a method of W&B's that it lacks does nothing, with one line."""
        if name.startswith("__") or "_inner" not in self.__dict__:
            raise AttributeError(name)
        if self._is_strict and self._is_finished and name in _METHODS_OF_OPEN_RUNS:
            return _raise_finished(self.id, name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return repr(self._inner)

    def _report(self, kind: str, message: str) -> None:
        self._inner._report_fault(Diagnostic(kind, message[:80], message))


def _passed_on(name: str) -> Callable[..., Any]:
    def call(self: Run, *given: Any, **named: Any) -> Any:
        return self.__getattr__(name)(*given, **named)

    call.__name__ = name
    call.__doc__ = getattr(ChiplogRun, name, call).__doc__
    return call


for _name in (*_PASSED_ON, *foreign_names.HARMLESS_OF_RUNS):  # tests replace them on the class
    setattr(Run, _name, _passed_on(_name))


def _rejoin(inner: ChiplogRun, settings: Settings, directory: str | None, pid: int) -> Run:
    """Unpickle a run. In the process that pickled it W&B raises; here it is the same run."""
    if pid == os.getpid() and settings.strict:
        raise RuntimeError("attach in the same process is not supported currently")
    return Run(inner, settings, directory)


def run_of_attach_id(text: str) -> Run | None:
    """Return the run of an `_attach_id`; None for any other text."""
    if not text.startswith(_ATTACHED):
        return None
    found: Run = pickle.loads(base64.b64decode(text.removeprefix(_ATTACHED)))
    return found


def _raise_finished(run_id: str, name: str) -> Callable[..., None]:
    def call(*given: Any, **named: Any) -> None:
        raise too_late(run_id, name)

    return call


def _key_of(name: str) -> str:
    """Return the key of a name of `define_metric`, where a dot leads into a nested dict and a backslash escapes one."""
    return re.sub(r"(?<!\\)\.", "/", name).replace("\\.", ".")


class ConfigStatic(AttributeDict):
    """A copy of a config, also by attribute. It is true also if it is empty, as W&B's."""

    def __bool__(self) -> bool:
        return True


class Metric:
    """What `define_metric` returns."""

    def __init__(self, name: str, step_metric: str | None, summary: str | None) -> None:
        self.name = name
        self.step_metric = step_metric
        self.summary = summary


def _seconds(duration: Any) -> float:
    """Return a timedelta, or a number of seconds, as seconds; 0 for anything else."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    return float(duration) if isinstance(duration, int | float) else 0.0


def _values(data: Any) -> Iterable[Any]:
    return data.values() if type(data) is dict else (None,)


def _logged(key: Any, value: Any) -> tuple[Any, Any]:
    """Return what is logged for one entry: of a chart its table, figures of matplotlib or plotly as media."""
    if isinstance(value, CustomChart):
        return value.key_of_table(key), value.table
    if type(value) is dict:
        return key, dict(_logged(inner, entry) for inner, entry in value.items())
    kind = type(value)
    is_pyplot = kind is ModuleType and value.__name__ == "matplotlib.pyplot"  # `plt` means its current figure
    if is_pyplot or str(kind.__module__).startswith(_FIGURES):
        from chiplog.media.figure import Figure  # a training without figures does not need it

        return key, Figure(value)
    return key, value


def _matches(key: str, pattern: str) -> bool:
    return key.startswith(pattern[:-1]) if pattern.endswith("*") else key == pattern
