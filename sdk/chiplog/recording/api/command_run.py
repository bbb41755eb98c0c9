"""The label of a process that starts a training and waits for it, as `chiplog run` does.

It trains nothing itself. It is the primary of the run until a process of the training claims that, so a script without
chiplog has a run too: with its console, its command line and its end.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chiplog.identity.identity import encode_parent_run
from chiplog.identity.process_info import node_name
from chiplog.recording.run.run import Run
from chiplog.recording.run.run_settings import resolve_settings
from chiplog.settings import safe_name
from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.process.inherited_run import LAUNCHER, PARENT_RUN, encode_places, process_fingerprint

_INIT_ARGUMENTS = (
    *("project", "run_id", "id", "name", "group", "job_type", "tags", "notes", "config", "label", "primary", "resume"),
    *("mode", "one_run_per_process", "gpu_device_ids", "sample_interval_s", "update_finish_state", "capture_console"),
    *("dir", "agent", "reinit"),
)


class LaunchedRun:
    """The run of a command: its ID is known at once, and it is recorded from `open` to `finish`.

    command: the command line, which is recorded without its secrets. environ: the variables for the command. told:
    arguments as those of `init`. Constructor and `open` raise what a run cannot be opened with.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], given: Mapping[str, Any]) -> None:
        self._name = os.path.basename(command[0])
        self._environ = dict(environ)
        # Without GPUs: they belong to the training.
        fixed = {"label": safe_name("label", f"{LAUNCHER}-{node_name()}", NAME_CHARS_MAX)[0], "gpu_device_ids": ()}
        settings = resolve_settings(environ, {**dict.fromkeys(_INIT_ARGUMENTS), **given, **fixed}, (), frozenset())
        known = settings.identity
        # srun or mpirun may start one for each rank.
        label = known.label if known.rank is None else f"{LAUNCHER}-rank{known.rank}"
        self._known = replace(known, label=label, rank=None, local_rank=None, world_size=None)
        own = replace(
            self._known,
            restart=0,
            primary=not known.joined_existing_run,
            is_fallback_primary=True,  # any claim of the training wins
            needs_agreement=False,
            rank_from_launcher=False,
            launch_cache_key="",
        )
        self._settings = replace(settings, identity=own, launched=tuple(command), primary_given=True)
        self._run: Run | None = None

    def open(self) -> None:
        """Begin to record: from here on the console of this process and of its children."""
        self._run = Run(self._settings)
        for note in self._settings.diagnostics:
            self._run._report_fault(note)
        if self._run._console.capture is not None:
            try:
                self._run._console.capture.share_targets()
            except OSError:
                pass  # the lines of the ranks are recorded under the launcher's label too

    @property
    def id(self) -> str:
        """The run ID."""
        return self._settings.identity.run_id

    @property
    def is_recorded(self) -> bool:
        """Return False if the mode is disabled."""
        return self._settings.mode != "disabled"

    @property
    def environ(self) -> dict[str, str]:
        """The variables for the command: its processes find the run in them."""
        if not self.is_recorded or self._known.joined_existing_run:
            return self._environ  # in the second case the variable names the run already
        stamp = process_fingerprint()
        places = encode_places(self._environ, self._settings.places_for_children)
        run = encode_parent_run(os.getpid(), self.id, self._known, stamp, LAUNCHER, places)
        return {**self._environ, PARENT_RUN: run}

    def finish(self, exit_code: int, why: str = "") -> None:
        """Record how the command ended. exit_code: -n for signal n. why: the reason, if it could not be started."""
        how = f"was killed by {_signal_name(-exit_code)}" if exit_code < 0 else f"ended with exit code {exit_code}"
        if self._run is not None:
            self._run._end.mark_end_of_command(exit_code, why or f"{self._name} {how}")
            self._run.finish(exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
