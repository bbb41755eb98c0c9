"""One open run in one process: its identity, its events beside `log()`, its end. Never raises into training."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from chiplog.console.capture import ConsoleCapture
from chiplog.identity.identity import Identity, for_forked_child, with_group
from chiplog.identity.inherited_env import restore_environ
from chiplog.identity.launch_cache import store
from chiplog.identity.process_info import host_name, node_name
from chiplog.identity.rendezvous import Agreement, RunIdRendezvous, is_in_group
from chiplog.journal.event_sink import EventSink, LazyJournal, NullJournal
from chiplog.journal.factory import open_journal
from chiplog.journal.journal import Journal
from chiplog.journal.sender import SenderThread
from chiplog.recording.ends.exit_status import ExitStatus, close, run_all
from chiplog.recording.ends.failures import cause_of, exit_status_of, failure_detail
from chiplog.recording.log.recorder import Recorder
from chiplog.recording.resume.collector_lookup import AttemptLookup, watch_demand
from chiplog.recording.resume.resume import unmet_demand
from chiplog.recording.resume.step_counter import STEPS, StepCounterFile
from chiplog.recording.resume.unfinished_runs import UNFINISHED, UnfinishedRun
from chiplog.recording.run.run_notices import RunNotices
from chiplog.recording.sharing.artifacts import ArtifactStorage
from chiplog.recording.sharing.config import Config, ConfigPublisher, Summary
from chiplog.recording.sharing.environment import EnvironmentCollector
from chiplog.recording.sharing.files import FileSaver, SavedFile
from chiplog.recording.sharing.media import MediaStorage
from chiplog.recording.sharing.run_artifacts import RunArtifacts
from chiplog.recording.sharing.run_text import RunText
from chiplog.safety import foreign_names
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.dynamo import exclude_from_dynamo
from chiplog.safety.lenient_calls import ignore_unknown_arguments, report_unknown
from chiplog.safety.process_number import may_start_threads, process_number
from chiplog.safety.text import clean_utf8, is_encodable
from chiplog.settings import RunSettings, as_strings, identity_event_fields, safe_name
from chiplog.torch.current_device import CurrentDevice
from chiplog.values.artifact_value import ArtifactValue, artifact_class
from chiplog.values.metrics import Media, flatten
from chiplog_schemas.clock import now_us
from chiplog_schemas.codec import pack
from chiplog_schemas.interrupts import is_interrupt, unless_interrupt
from chiplog_schemas.limits import FINISH_WAIT_S, NAME_CHARS_MAX
from chiplog_schemas.model.codes import EndCause
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import ensure_private_dir
from chiplog_schemas.process.descriptors import never_destroy
from chiplog_schemas.process.pool_owners import announce
from chiplog_schemas.storage.content_files import ANY_LABEL_FOLDER

_ASK_WAIT_S = FINISH_WAIT_S / 2  # part of finish()'s time: for the group's answer, if the rank has none yet


# Attributes by the names of arguments, columns and other loggers.
_ALIASES: dict[str, Callable[[Any], Any]] = {
    "primary": lambda run: run.is_primary,
    "run_group": lambda run: run.group,
    "run_name": lambda run: run.name,
    "project_name": lambda run: foreign_names.CallableText(run.project or ""),
    "start_time": lambda run: run._started_us / 1e6,
    "started_at": lambda run: datetime.fromtimestamp(run._started_us / 1e6, UTC),
    "node": lambda run: node_name(),
    "hostname": lambda run: host_name(),
    "pid": lambda run: run._pid,
    "rank_pid": lambda run: run._pid,
    "info": lambda run: foreign_names.RunInfo(run.id, run.name, run._started_us // 1000),
}


class Run(Recorder):
    """A run as this process sees it. Returned by `chiplog.init`."""

    name = RunText("name")
    notes = RunText("notes")
    project = RunText("project")
    group = RunText("group")
    job_type = RunText("job_type")

    def __init__(self, settings: RunSettings, *, opens: bool = True) -> None:
        super().__init__(settings.bounds)
        self._settings = settings
        bounds = settings.bounds
        self._identity = settings.identity
        self._started_us = now_us()
        self._pid = os.getpid()
        self._exit_status = ExitStatus()
        self._notices = RunNotices(
            self._emit,
            self._diagnostics.report,
            self._report_internal_error,
            lambda: self._finished,
        )
        self._finish_lock = threading.RLock()  # a signal handler may call finish() during its thread's finish()
        self._before_finish: Callable[[], None] | None = None  # of an integration, which may still log; never raises
        self._awaiting_group = settings.identity.needs_agreement
        self._rendezvous = RunIdRendezvous(settings.identity)
        self._is_inherited = not opens  # from another process: by fork or pickle
        self._disk_warned = False
        self._warned_device: CurrentDevice | None = None
        self._info: dict[str, Any] = {}  # the sender's description of this process in HELLO
        self._attempt = AttemptLookup(settings.places)
        self._console: ConsoleCapture | None = None
        self._sender: SenderThread | None = None
        offline = settings.mode == "offline"
        self._saver = FileSaver(
            settings.places,
            settings.places.offline_files if offline else settings.places.outbox,
            file_bytes_max=bounds.file_bytes_max,
            outbox_bytes_max=bounds.outbox_bytes_max,
            emit=lambda path, size, digest: self._emit(EventKind.FILE, path, size, digest),
            report_fault=self._diagnostics.report,
        )
        self._media = MediaStorage(
            self._saver.store_bytes,
            emit=lambda *fields: self._emit(EventKind.MEDIA, *fields),
            report_fault=self._diagnostics.report,
        )
        self._artifacts = RunArtifacts(
            ArtifactStorage(self._saver, emit=self._emit, report_fault=self._diagnostics.report),
            lambda: self._settings,
            self._emit,
            self._report_internal_error,
            is_open=lambda call: not self._is_finished_warn(call),
            ensure_recording=self._ensure_recording,
        )
        self._config_publisher = ConfigPublisher(
            self._emit,
            self._diagnostics.report,
            self._report_internal_error,
            is_primary=lambda: self.is_primary,
            is_silent=lambda call: settings.mode == "disabled" or self._is_finished_warn(call),
            whole=bool(settings.config),
            event_bytes_max=bounds.event_bytes_max,
        )
        self._config = Config(self._config_publisher.publish_config, self._diagnostics.report)
        self._summary = Summary(
            self._config_publisher.emit_summary,
            self._diagnostics.report,
            self._logged,
            self._devices.wait,
        )
        exclude_from_dynamo()
        self._step_counter = StepCounterFile(settings.places.local / STEPS)
        self._unfinished = UnfinishedRun(settings.places.local / UNFINISHED, settings.unfinished_key)
        self._environment = EnvironmentCollector(
            lambda *fields: self._emit(EventKind.NOTICE, "environment", "info", *fields), os.environ, settings.launched
        )
        if settings.mode != "disabled" and opens:
            self._count.continue_from(self._step_counter.load(self._identity, settings.label_given))
            unmet = unmet_demand(settings.places, self._identity)
            self._open()
            self._watch_demand(unmet)
        elif settings.mode != "disabled":
            self._journal = LazyJournal(self._open_lazily)
        self.config._publish_update(settings.config)
        if settings.capture_console and settings.mode != "disabled":
            _capturing.append(self)
            if _capturing[0] is self:
                self._console = self._capture()

    # -- identity --

    @property
    def id(self) -> str:
        """The run ID. Under a launcher that shares no ID it may change once torch.distributed is initialised."""
        return self._identity.run_id

    @property
    def run_id(self) -> str:
        """Another name of `id`."""
        return self.id

    @property
    def resumed(self) -> bool:
        """True if `init(resume=…)` continues a run that this node knows."""
        return self._settings.resumed

    @property
    def label(self) -> str:
        """The name of this writer in the run."""
        return self._current_identity.label

    @property
    def attempt(self) -> int | None:
        """Which incarnation of the label this is: the collector's number; None while it is unknown.

        The first read asks the collector in the background, if it runs on this host or CHIPLOG_COLLECTOR names it.
        """
        if self.mode != "online" or self._finished:
            return None
        return self._attempt.read(self._identity.label, self._started_us)

    @property
    def restart_count(self) -> int:
        """How often the launcher restarted this process: torchelastic's or Slurm's restart count, 0 without one."""
        return self._identity.restart

    @property
    def rank(self) -> int | None:
        """The rank, as far as it is known."""
        return self._current_identity.rank

    @property
    def local_rank(self) -> int | None:
        """The rank on this node, if the launcher gives one."""
        return self._identity.local_rank

    @property
    def world_size(self) -> int | None:
        """The number of ranks, as far as it is known."""
        return self._identity.world_size

    @property
    def _current_identity(self) -> Identity:
        self._follow_fork()
        return (
            self._rendezvous.with_group_rank(self._identity, self._settings.label_given)
            if self._awaiting_group
            else self._identity
        )

    @property
    def is_primary(self) -> bool:
        """True if this label claims to write the config, files and state of the run."""
        self._follow_fork()
        return self._identity.primary

    @property
    def mode(self) -> str:
        """One of online, offline and disabled."""
        return self._settings.mode

    @property
    def offline(self) -> bool:
        """True if the journal waits for `chiplog sync`."""
        return self.mode == "offline"

    @property
    def disabled(self) -> bool:
        """True if nothing is recorded."""
        return self.mode == "disabled"

    @property
    def url(self) -> str | None:
        """The address of a page that shows this run: always None, because no web server is started."""
        return None

    @property
    def dir(self) -> str:
        """A directory for files of this label, created on first use. `save()` makes a file in it part of the run."""
        if self.mode == "disabled":
            return tempfile.gettempdir()
        directory = self._settings.places.root / "run-files" / self.id / self.label
        try:
            ensure_private_dir(directory)
        except unless_interrupt(OSError) as error:
            message = f"run.dir {directory} cannot be created ({error.strerror}); {tempfile.gettempdir()} is used"
            self._diagnostics.warn_once(("run_dir", ""), message)
            return tempfile.gettempdir()
        return str(directory)

    @property
    def config(self) -> Config:
        """The config of the run: a dict, also by attribute. Assigning a dict updates it."""
        return self._config

    @config.setter
    def config(self, values: Mapping[str, Any]) -> None:
        self._config.update(values)

    @property
    def summary(self) -> Summary:
        """The summary of this label: a dict, also by attribute. Assigning a dict updates it."""
        return self._summary

    @summary.setter
    def summary(self, values: Mapping[str, Any]) -> None:
        self._summary.update(values)

    def __getattr__(self, name: str) -> Any:
        """Return what scripts expect under another name, or an object that does nothing. Called for unknown names."""
        if name in _ALIASES:
            return _ALIASES[name](self)
        if name not in foreign_names.RUN_NAMES:
            raise AttributeError(f"'Run' object has no attribute {name!r}")
        self._report_fault(foreign_names.unavailable("run", name))
        return foreign_names.run_attribute(name)

    def __repr__(self) -> str:
        return f"<chiplog run {self.id} as {self.label}, {self.mode}>"

    def _repr_html_(self) -> str:
        """Return what this process knows of the run, as a table for notebooks."""
        import html  # imported here: a training shows no run

        state = "finished" if self._finished else "disabled" if self.disabled else "running"
        known = {"run": self.name or self.id, "id": self.id, "project": self.project, "label": self.label}
        rows = [*known.items(), ("state", state if self.mode in ("online", "disabled") else f"{state}, {self.mode}")]
        cells = ((name, html.escape(str("" if value is None else value))) for name, value in rows)
        return f"<table>{''.join(f'<tr><th>{name}</th><td>{text}</td></tr>' for name, text in cells)}</table>"

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._mark_exit(error)
        self.finish()

    def _is_same(self, settings: RunSettings) -> bool:
        """Return True if another `init` of this process means this run: its current or first ID, and its label.

        Without a launcher a rank has a generated ID until its process group exists. Then it is in the group's run.
        """
        own, other = self._settings, settings
        is_label = not other.label_given or other.identity.label == self._identity.label
        is_run = other.identity.run_id in (self._identity.run_id, own.identity.run_id)
        if not is_run and other.identity.needs_agreement and own.identity.needs_agreement:
            is_unnamed = not (own.run_given or other.run_given)
            is_alike = (other.project or own.project) == own.project and (other.group or own.group) == own.group
            is_run = is_unnamed and is_alike and is_in_group()  # safeguard: one-run-around-group
        return is_run and is_label and not self._is_inherited

    def _report_fault(self, bad: Diagnostic) -> None:
        """Report a bad argument once, to the log and in `events`."""
        if not self._finished:  # otherwise the call itself warns that it is too late
            self._diagnostics.report(bad)

    # -- description: the primary's is the run's --

    @property
    def tags(self) -> tuple[str, ...]:
        """Words to find the run by. Assigning replaces them."""
        return self._settings.tags

    @tags.setter
    def tags(self, words: Iterable[str]) -> None:
        self._describe(tags=as_strings(words))

    def _describe(self, **changes: Any) -> None:
        """Record the identity again with other texts or tags."""
        what = ", ".join(f"run.{name}" for name in changes)
        try:
            if self._is_finished_warn(what):
                return
            self._settings = replace(self._settings, **changes)
            if self.mode == "disabled":
                return
            if not self.is_primary:
                message = f"{what} on {self.label} stays with it: only the primary's is the run's"
                self._diagnostics.report(Diagnostic("not_primary", what, f"{message}; set it where run.is_primary"))
            self._record_identity()  # safeguard: renamed-run-recorded
        except Exception as error:
            self._diagnostics.report_internal_error(what, error)

    def _record_identity(self) -> None:
        """Replace the identity on the journal's head page and append it as an event."""
        self._warned_device = self._devices.current
        info = self._identity_map()
        if isinstance(self._journal, Journal):
            self._journal.set_identity(pack(info))
        self._emit(EventKind.IDENTITY, info)

    # -- other events --

    def _log_any(self, data: Mapping[str, Any], step: Any) -> None:
        if self._awaiting_group:  # new keys: usually soon after init
            self._rendezvous.poll_group(self._proposed_run_id)
        self._devices.find_current()
        super()._log_any(data, step)

    def _log_media(self, step: int, key: str, value: Media) -> None:
        if self._ensure_recording():
            self._media.log(step, key, value)

    def _ensure_recording(self) -> bool:
        is_recording = super()._ensure_recording()
        if self._sender is not None and not self._sender.is_running:  # no thread polls the devices
            self._tick()
        return is_recording

    @ignore_unknown_arguments
    @never_raises("alert")
    def alert(self, title: str, text: str = "", level: str = "warning") -> None:
        """Record an alert: a row of kind `alert` in `events`. Never raises.

        Args:
            title: One line. Of one title 5 alerts at once and then one in 10 s are kept, of all titles 100 a minute; a
                row counts the others.
            text: What the reader needs to know.
            level: debug, info, warning or error. Any other word means warning.

        Examples:
            >>> run.alert("loss is NaN", f"at step {step}", level="error")
        """
        if not self._is_finished_warn("alert()"):
            self._notices.alert(title, text, level)

    @never_raises("set_tag")
    def _set_tag(self, key: str, value: str | None) -> None:
        """Set a tag of the run, from any label; None removes it. The last call of all labels counts. Never raises."""
        if self._settings.mode == "disabled" or self._is_finished_warn("set_tag()"):
            return
        text = "" if value is None else str(value)
        for item in flatten({key: text}):  # the bounds of a text in log()
            if isinstance(item, Diagnostic):
                self._diagnostics.report(item)
            else:
                self._emit(EventKind.TAG, item[0], None if value is None else item[1])

    @ignore_unknown_arguments
    @never_raises("save", otherwise=list)
    def save(self, path: str | os.PathLike[str], name: str | None = None) -> list[str]:
        """Save files as files of the run. Never raises.

        The call takes as long as a copy. When it returns, the copy survives SIGKILL of this process, and the file may
        change. The agent delivers the copy, also after the end of the run. Only the primary's files become the run's;
        on other labels the call does nothing, and reports that once.

        Args:
            path: A file, a directory or a pattern (`*`, `**`).
            name: Name of the file in the run, or of the directory that several files go into. Default: the path
                relative to the working directory; outside of it the last part of the path.

        Returns:
            The names of the saved files in the run.

        Examples:
            >>> run.save("configs/*.yaml", "configs")
        """
        if self._settings.mode == "disabled" or self._is_finished_warn("save()"):
            return []
        if not self.is_primary:
            message = f"save() on {self.label} does nothing: only the primary's files are the run's"
            self._diagnostics.report(Diagnostic("save_not_primary", "", f"{message}; call it where run.is_primary"))
            return []
        return [file.path for file in self._saver.save(path, name)]

    @never_raises("save", otherwise=list)
    def _save_for_any_label(self, path: str | os.PathLike[str], name: str) -> list[SavedFile]:
        """Save files below ANY_LABEL_FOLDER, where they are the run's whichever label saves them. Never raises."""
        assert name.startswith(ANY_LABEL_FOLDER)
        if self._settings.mode == "disabled" or self._is_finished_warn("save()") or not self._ensure_recording():
            return []
        return self._saver.save(path, name)

    @ignore_unknown_arguments
    def log_artifact(
        self,
        artifact_or_path: ArtifactValue | str | os.PathLike[str],
        name: str | None = None,
        type: str | None = None,
        aliases: list[str] | None = None,
    ) -> Any:
        """Record a version of an artifact. Never raises.

        The call copies the files, as `save` does, for any label. The same files are the same version. A file above a
        limit of `save` is named without its bytes.

        Args:
            artifact_or_path: An Artifact; or a file, a directory or a URI, which becomes one.
            name: Of an artifact that is made of a path. Default: the run ID and the last part of the path.
            type: Likewise: a word such as model or dataset.
            aliases: Names that move to this version. `latest` always does.

        Returns:
            The artifact. Its `version` is None until `wait()`.

        Examples:
            >>> artifact = run.log_artifact("checkpoints/last.pt", name="model", type="model", aliases=["best"])
        """
        artifact: Any = artifact_class().from_any(artifact_or_path, name, type, self.id)
        self._artifacts.log(artifact, aliases)
        return artifact

    @ignore_unknown_arguments
    def log_model(self, path: str | os.PathLike[str], name: str | None = None, aliases: list[str] | None = None) -> Any:
        """Record a file or directory as a version of an artifact of type model; see `log_artifact`. Never raises.

        Args:
            path: A file or directory.
            name: Of the artifact. Default: the run ID and the last part of the path.
            aliases: Names that move to this version.

        Examples:
            >>> run.log_model("checkpoints/last.pt", name="model", aliases=["best"])
        """
        return self.log_artifact(path, name=name, type="model", aliases=aliases)

    @ignore_unknown_arguments
    def use_artifact(
        self,
        artifact_or_name: ArtifactValue | str,
        type: str | None = None,
        aliases: list[str] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Return a version of an artifact, and record that this run uses it. It waits for the collector, and may raise.

        Args:
            artifact_or_name: "name:latest", "name:v3" or "project/name:alias", where the last slash separates. Without
                an alias it is `latest`, without a project the run's.
            type: The type that it must have.
            aliases: Names that move to this version.
            timeout_s: How long to wait for a collector that does not answer. Default: CHIPLOG_ARTIFACT_WAIT_S, 30.

        Returns:
            The artifact; its `download()` writes the files.

        Raises:
            ArtifactError: The artifact is unknown, or the collector does not answer.

        Examples:
            >>> directory = run.use_artifact("model:best").download()
        """
        return self._artifacts.use(artifact_or_name, type, aliases, timeout_s)

    @ignore_unknown_arguments
    def define_metric(
        self, name: str, summary: str | None = None, step_metric: str | None = None, hidden: bool | None = None
    ) -> None:
        """Define how a metric is summed up in the view `summary`, and how its curve is drawn.

        The last call for a name counts. The primary's definitions are the default for other labels.

        Args:
            name: A metric's name, or a pattern such as `val/*`.
            summary: min, max, mean, last, first, or none for no row. Default: the last value.
            step_metric: The metric that is the x axis. Default: the step.
            hidden: True: the page draws it only for those who ask for it. Default: False, or what a pattern says.

        Examples:
            >>> run.define_metric("val/*", summary="max", step_metric="epoch")
            >>> run.define_metric("epoch", hidden=True)
        """
        self._config_publisher.define(name, summary, step_metric, hidden)
        if self._logged.define(self._config_publisher.summary_kind):
            self._values.forget_key_sets()

    @ignore_unknown_arguments
    def finish(self, exit_code: int = 0) -> None:
        """End the run for this label. Waits at most a second for the agent; the rest is delivered later.

        When it returns, the agent or the journal on this node has every event. The database follows, within a second
        as a rule. A query that must see the whole run waits until the label's state is not running and its
        `completeness.pending` is 0.

        Args:
            exit_code: 0 marks the label as finished, any other number as failed.

        Examples:
            >>> run.finish()
        """
        self._follow_fork()
        if self._before_finish is not None and not self._finished:
            self._before_finish()
        with self._finish_lock:
            if self._finished:
                return
            asked_at = time.monotonic()
            self._await_group()
            if self._finished:  # a signal handler of this thread has finished it
                return
            self._finished = True
        try:
            self._finish(exit_code, FINISH_WAIT_S - (time.monotonic() - asked_at))
        except BaseException as error:
            if isinstance(error, Exception) and not is_interrupt(error):
                self._diagnostics.report_internal_error("finish", error)
                return
            # Ctrl-C, or a signal handler that exits: a journal that is not sealed is retried at exit.
            self._finished = isinstance(self._journal, NullJournal)
            raise

    @never_raises("finish")
    def _await_group(self) -> None:
        """Wait briefly for an agreed identity: a short training ends before the sender thread polls the group."""
        if not self._awaiting_group or not self._identity.needs_agreement:
            return
        self._awaiting_group = False  # a signal handler that finishes the run does not wait a second time
        try:
            self._rendezvous.poll_group(self._proposed_run_id)
            agreed = self._rendezvous.take_answer(_ASK_WAIT_S)
            if agreed is not None and not self._finished:
                self._adopt_identity(agreed)
        finally:
            self._awaiting_group = True

    def _finish(self, exit_code: int, wait_s: float) -> None:
        begun = time.monotonic()
        self._key_sets = {}  # later calls of log() take the slow path, which warns
        run_all(self._shutdown_steps(exit_code), lambda error: self._diagnostics.report_internal_error("finish", error))
        last, journal = self._exit_status.event(), self._journal
        try:
            if isinstance(journal, Journal):
                journal.seal(last, self._warn_after_finish)
                left_s = max(0.0, wait_s - (time.monotonic() - begun))
                close(journal, self._sender, self._diagnostics, left_s, is_open=self._exit_status.is_open)
            elif last is not None:
                journal.append(last, urgent=True)
        finally:
            if not isinstance(journal, Journal) or journal.is_sealed:
                self._journal = NullJournal(journal.next_seq, self._warn_after_finish)
                restore_environ(os.environ, self)

    def _shutdown_steps(self, exit_code: int) -> Iterator[Callable[[], object]]:
        """Yield the steps before the last event, in order."""
        yield self._end_capture
        yield self._rendezvous.close
        yield self._steps.stop
        yield self._watches.stop
        yield self._step_phases.append_last
        yield self._devices.close
        yield self._config_publisher.publish_hashes
        if not self._is_inherited:
            yield lambda: self._step_counter.save(self._count.to_keep, is_last=True)
            yield lambda: self._note_whether_finished(exit_code)
            yield self._collect_environment
            yield self._environment.stop
        yield self._diagnostics.emit_counts
        yield lambda: self._notices.emit_suppressed(None)
        yield lambda: self._exit_status.set_exit_code(exit_code)

    def _mark_exit(self, error: BaseException) -> None:
        """Set the exception that ends this process, unless a failure is set."""
        code, reason = exit_status_of(error)
        if code and not self._exit_status.is_failed and not self._finished:
            self._exit_status.set_failed(reason, code, cause_of(error))
            if detail := failure_detail(error):  # at once: a process that hangs at exit never emits its state
                self._emit_notice("traceback", reason, detail)

    def _mark_end_of_command(self, exit_code: int, reason: str) -> None:
        """Set how the command of a launcher ended. exit_code: -n for signal n."""
        if exit_code < 0:
            self._exit_status.set_killed(reason, -exit_code)
        elif exit_code:
            self._exit_status.set_failed(reason, exit_code, EndCause.EXIT_STATUS)

    def _leave(self) -> None:
        """Note that this process exits although its code did not return and no hook saw a reason."""
        settings, journal = self._settings, self._journal
        has_agent_here = settings.agent_address in (None, settings.places.agent_address)
        is_on_disk = isinstance(journal, Journal) and journal.directory is not None
        self._exit_status.leave_open(is_adopted=is_on_disk and has_agent_here)

    def _emit_notice(self, notice: str, message: str, detail: Mapping[str, Any], level: str = "error") -> None:
        self._notices.emit(notice, message, detail, level)

    def _emit_record(self, *record: Any) -> None:
        self._follow_fork()
        self._notices.emit_record(*record)

    def _end_capture(self) -> None:
        """Restore the streams, and let the next open run capture them."""
        if self in _capturing:
            _capturing.remove(self)
        if self._console is not None:
            self._console.close()
            if _capturing:
                successor = _capturing[0]
                successor._console = successor._capture()

    def _capture(self) -> ConsoleCapture:
        journal = self._journal
        return ConsoleCapture(
            self._settings,
            journal.producer if isinstance(journal, Journal) else b"",
            self._emit_line,
            lambda *notice: self._emit(EventKind.NOTICE, "console_lost", "warning", *notice, urgent=True),
            lambda: not getattr(self._journal, "is_under_pressure", False),
            lambda message: self._diagnostics.warn_once(("console", ""), message),
            journal.directory if isinstance(journal, Journal) else None,
            is_supervised=self._sender is not None and self._sender.is_running,
        )

    def _emit_line(self, stream: int, line_no: int, line: str) -> None:
        self._emit(EventKind.CONSOLE, stream, line_no, line if is_encodable(line) else clean_utf8(line))

    # -- the journal and its sender --

    def _identity_map(self) -> dict[str, Any]:
        known = self._settings, self._identity, self._started_us, self._pid, self._devices.current
        return identity_event_fields(*known, is_inherited=self._is_inherited)

    def _open(self) -> None:
        info = self._info = self._identity_map()
        self._warned_device = self._devices.current
        if "owner" in info:
            announce(self._settings.places.owners, info["owner"])
        self._journal, on_disk = open_journal(
            self._settings.places,
            self._settings.mode,
            self._settings.bounds,
            info,
            self._started_us,
            lambda message: self._diagnostics.warn_once(("disk", ""), message),
        )
        self._disk_warned = not on_disk
        self._journal.on_append_in_child = self._append_in_child
        # safeguard: device-values-polled-often
        # safeguard: expected-group-polled-often
        self._sender = SenderThread(
            self._journal,
            self._settings.places,
            info,
            agent_address=self._settings.agent_address,
            online=self._settings.mode != "offline",
            on_tick=self._tick,
            warn=lambda message: self._diagnostics.warn_once(("sender", message[:20]), message),
            must_hurry=lambda: self._devices.deferred.is_used or self._rendezvous.expects_group,
        )
        if may_start_threads():  # safeguard: early-child-starts-no-thread
            self._sender.start()

    @never_raises("tick")  # sending must continue
    def _tick(self) -> None:
        """Run by the sender thread at every interval."""
        if self._finished:
            return
        self._devices.poll()
        self._step_phases.poll_open_step()
        self._poll_disk_and_group()
        self._config_publisher.publish_hashes(time.monotonic())
        self._step_counter.save(self._count.to_keep)
        self._note_unfinished()
        self._collect_environment()
        if self._console is not None:
            self._console.tick()
        self._diagnostics.emit_counts(time.monotonic())
        self._notices.emit_suppressed(time.monotonic())

    def _collect_environment(self) -> None:
        settings = self._settings
        if self.is_primary and not self._disk_warned and settings.mode != "disabled" and settings.records_environment:
            self._environment.start()

    def _poll_disk_and_group(self) -> None:
        """Report disk errors, and ask torch.distributed for what the launcher did not set."""
        journal = self._journal
        if isinstance(journal, Journal) and journal.disk_error is not None and not self._disk_warned:
            self._disk_warned = True
            message = f"journal cannot grow on disk: {journal.disk_error}; events are kept in memory, bounded"
            self._diagnostics.warn_once(("disk", ""), message)
            self._emit(EventKind.NOTICE, "journal_memory", "warning", message, {})
        if self._awaiting_group:
            self._rendezvous.poll_group(self._proposed_run_id)
            if (agreed := self._rendezvous.take_answer()) is not None:
                self._adopt_identity(agreed)
        if self._devices.current != self._warned_device:  # safeguard: device-recorded-once-known
            self._record_identity()
            self._info.update(self._identity_map())  # for a later HELLO; only this thread reads it

    @property
    def _proposed_run_id(self) -> str:
        identity = self._identity
        return identity.proposed_run_id if identity.needs_agreement and identity.proposed_run_id else identity.run_id

    def _adopt_identity(self, agreed: Agreement) -> None:
        settings = self._settings
        if self._identity.launch_cache_key:
            try:
                store(settings.places, self._identity.launch_cache_key, agreed.run_id)
            except OSError as error:
                message = f"the run ID cannot be stored for restarted ranks: {error}; they ask the other ranks"
                self._diagnostics.warn_once(("launches", ""), message)
        name = None if agreed.name is None else safe_name("label", agreed.name, NAME_CHARS_MAX)[0]
        given = {"label_given": settings.label_given, "primary_given": settings.primary_given}
        known = with_group(self._identity, agreed.rank, agreed.world_size, agreed.run_id, name, **given)
        if (known.run_id, known.label) != (self.id, self._identity.label):  # logged events keep their steps
            self._count.continue_from(self._step_counter.load(known, settings.label_given))
        self._identity = known
        self._record_identity()
        if self.is_primary and not self._finished:
            self._config_publisher.publish_config(self.config)

    def _watch_demand(self, unmet: str | None) -> None:
        """Warn once per launch that the run is stored under another ID: from local files, else from the collector."""
        identity, settings = self._identity, self._settings
        if not identity.demand or identity.demand_launch or not identity.primary:
            return

        def warn(message: str) -> None:
            if not self._finished:
                self._diagnostics.warn_once(("resume", ""), message)

        if unmet is not None:
            warn(unmet)
        elif settings.mode == "online":
            watch_demand(settings.places, identity.run_id, identity.label, self._started_us, identity.demand, warn)

    def _note_unfinished(self) -> None:
        """Record on this node that the run has started. Ranks of one node share a file."""
        identity = self._identity
        if (
            not identity.joined_existing_run
            and not self._step_counter.is_refused
            and (identity.primary or identity.local_rank == 0)
        ):
            places, journal = self._settings.places, self._journal
            producer = journal.producer.hex() if isinstance(journal, Journal) else ""
            parent = places.local / "offline" if self.mode == "offline" else places.journals
            self._unfinished.note(identity.run_id, identity.launch, parent / producer)

    def _note_whether_finished(self, exit_code: int) -> None:
        if exit_code or not self._exit_status.is_normal:
            self._note_unfinished()
        elif self._identity.primary and not self._step_counter.is_refused:  # safeguard: finished-run-not-resumed
            self._unfinished.clear(self._identity.run_id)

    # -- fork --

    def _follow_fork(self) -> None:
        """Detach a forked child from its parent's journal, socket and streams; its first `log()` opens a journal.

        Called by a hook, and at the first use in a child that comes before the hook or has none.
        """
        if self._process == (number := process_number()):
            return
        self._process = number
        if self._settings.mode == "disabled" or self._finished:
            return
        if self._console is not None:
            self._console.close_in_child()
            self._console = None
        _capturing.clear()
        # To destroy these could change the parent's files, and CUDA ends a child that destroys its parent's events.
        # safeguard: fork-destroys-no-marks
        never_destroy((self._journal, self._sender, self._devices.begin_in_child()))
        self._watches.begin_in_child()
        self._step_phases.begin_in_child()
        self._sender = None
        self._awaiting_group = False  # the visible group is the parent's
        self._is_inherited = True
        self._before_finish = None
        self._finish_lock = threading.RLock()
        self._notices.begin_limits()
        self._logged.reset()
        self._count.reset()  # the label is new
        self._step_counter = StepCounterFile(
            self._settings.places.local / STEPS
        )  # never loaded: no later process uses a child's label
        self._diagnostics.begin_in_child()
        self._config_publisher.reset_after_fork()
        unreceived = isinstance(self._journal, LazyJournal)
        self._identity = for_forked_child(self._identity, os.getpid(), self._pid if unreceived else None)
        self._pid = os.getpid()
        self._attempt = AttemptLookup(self._settings.places)
        self._journal = LazyJournal(self._open_lazily)

    def _append_in_child(self, payload: bytes, urgent: bool) -> None:
        """Append what a forked child was about to append to its parent's journal."""
        self._follow_fork()
        if not (isinstance(self._journal, Journal) and not self._journal.is_own):  # the run was finishing
            self._journal.append(payload, urgent=urgent)

    def _start_sender(self) -> None:
        """Start to send what a forked child logged before it could start threads."""
        if self._sender is not None and not self._finished:
            self._sender.start()

    def _open_lazily(self) -> EventSink:
        self._follow_fork()
        self._started_us = now_us()
        self._open()
        return self._journal


@report_unknown.register
def _(run: Run, bad: Diagnostic) -> None:
    run._report_fault(bad)


# Open runs that capture the console, in the order of opening. The first one records it, so each line is in one run.
_capturing: list[Run] = []
