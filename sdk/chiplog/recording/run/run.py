"""One open run in one process: its identity, its events beside `log()`, its end. Never raises into training."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chiplog.identity.identity import Identity
from chiplog.identity.inherited_env import restore_environ
from chiplog.recording.log.recorder import Recorder
from chiplog.recording.resume.collector_lookup import AttemptLookup
from chiplog.recording.resume.resume import unmet_demand
from chiplog.recording.run.group_membership import GroupMembership
from chiplog.recording.run.other_names import attribute_of, html_of
from chiplog.recording.run.resume_files import ResumeFiles
from chiplog.recording.run.run_console import RunConsole
from chiplog.recording.run.run_end import RunEnd
from chiplog.recording.run.run_journal import RunJournal
from chiplog.recording.run.run_notices import RunNotices
from chiplog.recording.sharing.config import Config, ConfigPublisher, Summary
from chiplog.recording.sharing.environment import EnvironmentCollector
from chiplog.recording.sharing.run_description import RunDescription
from chiplog.recording.sharing.run_files import RunFiles
from chiplog.recording.sharing.run_text import RunTags, RunText
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.dynamo import exclude_from_dynamo
from chiplog.safety.lenient_calls import ignore_unknown_arguments, report_unknown
from chiplog.safety.process_number import process_number
from chiplog.settings import RunSettings
from chiplog.values.artifact_value import ArtifactValue, artifact_class
from chiplog.values.metrics import Media
from chiplog_schemas.model.events import EventKind


class Run(Recorder):
    """A run as this process sees it. Returned by `chiplog.init`."""

    name = RunText("name")
    notes = RunText("notes")
    project = RunText("project")
    group = RunText("group")
    job_type = RunText("job_type")
    tags = RunTags()

    def __init__(self, settings: RunSettings, *, opens: bool = True) -> None:
        super().__init__(settings.limits)
        self._notices = RunNotices(
            self._emit, self._diagnostics.report, self._report_internal_error, lambda: self._finished
        )
        self._membership = GroupMembership(settings, self._diagnostics, self._follow_group, lambda: self._finished)
        self._run_journal = RunJournal(
            self,
            lambda: self._settings,
            self._membership,
            self._devices,
            self._diagnostics,
            self._emit,
            self._tick,
            self._follow_fork,
        )
        self._run_journal.is_inherited = not opens
        self._description = RunDescription(
            settings,
            lambda: self._current_identity,
            self._emit,
            self._diagnostics,
            is_finished=self._is_finished_warn,
            record_identity=self._run_journal.record_identity,
        )
        self._attempt = AttemptLookup(settings.places)
        self._resume_files = ResumeFiles(settings, self._membership, self._count, self._run_journal)
        self._console = RunConsole(settings, self._run_journal, self._emit, self._diagnostics)
        self._end = RunEnd(
            self,
            self._membership,
            self._run_journal,
            self._notices,
            self._diagnostics,
            steps=self._shutdown_steps,
            on_refused=self._warn_after_finish,
            on_closed=lambda: restore_environ(os.environ, self),
        )
        self._files = RunFiles(
            lambda: self._settings,
            lambda: self._current_identity,
            self._emit,
            self._diagnostics,
            is_finished=self._is_finished_warn,
            ensure_recording=self._ensure_recording,
        )
        self._config_publisher = ConfigPublisher(
            self._emit,
            self._diagnostics.report,
            self._report_internal_error,
            is_primary=lambda: self.is_primary,
            is_silent=lambda call: settings.mode == "disabled" or self._is_finished_warn(call),
            whole=bool(settings.config),
            event_bytes_max=settings.limits.event_bytes_max,
            logged=self._logged,
            await_values=self._devices.wait,
        )
        exclude_from_dynamo()
        self._environment = EnvironmentCollector(
            lambda *fields: self._emit(EventKind.NOTICE, "environment", "info", *fields), os.environ, settings.launched
        )
        if settings.mode != "disabled" and opens:
            self._resume_files.load()
            unmet = unmet_demand(settings.places, settings.identity)
            self._run_journal.open()
            self._membership.watch_demand(unmet, self._run_journal.started_us)
        elif settings.mode != "disabled":
            self._run_journal.open_with_first_event()
        self.config._publish_update(settings.config)
        if settings.capture_console and settings.mode != "disabled":
            self._console.begin()

    # -- identity --

    @property
    def _settings(self) -> RunSettings:
        """The settings of `init`, with the texts and tags of now."""
        return self._description.settings

    @property
    def id(self) -> str:
        """The run ID. Under a launcher that shares no ID it may change once torch.distributed is initialised."""
        return self._membership.identity.run_id

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
        return self._attempt.read(self._membership.identity.label, self._run_journal.started_us)

    @property
    def restart_count(self) -> int:
        """How often the launcher restarted this process: torchelastic's or Slurm's restart count, 0 without one."""
        return self._membership.identity.restart

    @property
    def rank(self) -> int | None:
        """The rank, as far as it is known."""
        return self._current_identity.rank

    @property
    def local_rank(self) -> int | None:
        """The rank on this node, if the launcher gives one."""
        return self._membership.identity.local_rank

    @property
    def world_size(self) -> int | None:
        """The number of ranks, as far as it is known."""
        return self._membership.identity.world_size

    @property
    def _current_identity(self) -> Identity:
        self._follow_fork()
        return self._membership.current

    @property
    def is_primary(self) -> bool:
        """True if this label claims to write the config, files and state of the run."""
        self._follow_fork()
        return self._membership.identity.primary

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
        return self._files.make_directory()

    @property
    def config(self) -> Config:
        """The config of the run: a dict, also by attribute. Assigning a dict updates it."""
        return self._config_publisher.config

    @config.setter
    def config(self, values: Mapping[str, Any]) -> None:
        self.config.update(values)

    @property
    def summary(self) -> Summary:
        """The summary of this label: a dict, also by attribute. Assigning a dict updates it."""
        return self._config_publisher.summary

    @summary.setter
    def summary(self, values: Mapping[str, Any]) -> None:
        self.summary.update(values)

    def __getattr__(self, name: str) -> Any:
        """Return what scripts expect under another name, or an object that does nothing. Called for unknown names."""
        return attribute_of(self, name)

    def __repr__(self) -> str:
        return f"<chiplog run {self.id} as {self.label}, {self.mode}>"

    def _repr_html_(self) -> str:
        """Return what this process knows of the run, as a table for notebooks."""
        return html_of(self)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._end.mark_exit(error)
        self.finish()

    def _is_same(self, settings: RunSettings) -> bool:
        """Return True if another `init` of this process means this run."""
        return self._membership.is_same(self._settings, settings) and not self._run_journal.is_inherited

    def _report_fault(self, bad: Diagnostic) -> None:
        """Report a bad argument once, to the log and in `events`."""
        if not self._finished:  # otherwise the call itself warns that it is too late
            self._diagnostics.report(bad)

    def _follow_group(self, before: Identity) -> None:
        """Continue as what the group has agreed on."""
        identity = self._membership.identity
        if (identity.run_id, identity.label) != (before.run_id, before.label):  # logged events keep their steps
            self._resume_files.load()
        self._run_journal.record_identity()
        if identity.primary and not self._finished:
            self._config_publisher.publish_config(self.config)

    # -- other events --

    def _log_any(self, data: Mapping[str, Any], step: Any) -> None:
        self._membership.ask()  # new keys: usually soon after init
        self._devices.find_current()
        super()._log_any(data, step)

    def _log_media(self, step: int, key: str, value: Media) -> None:
        self._files.log_media(step, key, value)

    def _ensure_recording(self) -> bool:
        is_recording = super()._ensure_recording()
        sender = self._run_journal.sender
        if sender is not None and not sender.is_running:  # no thread polls the devices
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

    def _set_tag(self, key: str, value: str | None) -> None:
        """Set a tag of the run, from any label; None removes it. The last call of all labels counts. Never raises."""
        self._description.set_tag(key, value)

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
        return self._files.save(path, name)

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
        self._files.artifacts.log(artifact, aliases)
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
        return self._files.artifacts.use(artifact_or_name, type, aliases, timeout_s)

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
        self._end.finish(exit_code)

    def _shutdown_steps(self, exit_code: int) -> Iterator[Callable[[], object]]:
        """Yield the steps before the last event, in order."""
        yield self._console.end
        yield self._membership.rendezvous.close
        yield self._steps.stop
        yield self._watches.stop
        yield self._step_phases.append_last
        yield self._devices.close
        yield self._config_publisher.publish_hashes
        if not self._run_journal.is_inherited:
            yield self._resume_files.save_last
            yield lambda: self._resume_files.note_end(is_normal=not exit_code and self._end.status.is_normal)
            yield self._collect_environment
            yield self._environment.stop
        yield self._diagnostics.emit_counts
        yield lambda: self._notices.emit_suppressed(None)
        yield lambda: self._end.status.set_exit_code(exit_code)

    @never_raises("tick")  # sending must continue
    def _tick(self) -> None:
        """Run by the sender thread at every interval."""
        if self._finished:
            return
        self._devices.poll()
        self._step_phases.poll_open_step()
        self._run_journal.poll()
        self._membership.poll()
        self._config_publisher.publish_hashes(time.monotonic())
        self._resume_files.save()
        self._collect_environment()
        self._console.tick()
        self._diagnostics.emit_counts(time.monotonic())
        self._notices.emit_suppressed(time.monotonic())

    def _collect_environment(self) -> None:
        settings, in_memory = self._settings, self._run_journal.is_in_memory
        if self.is_primary and not in_memory and settings.mode != "disabled" and settings.records_environment:
            self._environment.start()

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
        self._console.begin_in_child()
        self._watches.begin_in_child()
        self._run_journal.begin_in_child()  # with its label, and the devices
        self._step_phases.begin_in_child()
        self._end.begin_in_child()
        self._notices.begin_limits()
        self._logged.reset()
        self._count.reset()  # the label is new
        self._resume_files.begin_in_child()
        self._diagnostics.begin_in_child()
        self._config_publisher.reset_after_fork()
        self._attempt = AttemptLookup(self._settings.places)


@report_unknown.register
def _(run: Run, bad: Diagnostic) -> None:
    run._report_fault(bad)
