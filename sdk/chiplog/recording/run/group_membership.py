"""The identity of one run, and how it becomes known: from the launcher, else from the process group once it exists."""

import os
from collections.abc import Callable

from chiplog.identity.identity import Identity, for_forked_child, with_group
from chiplog.identity.launch_cache import store
from chiplog.identity.rendezvous import Agreement, RunIdRendezvous, is_in_group
from chiplog.recording.resume.collector_lookup import watch_demand
from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostics
from chiplog.settings import RunSettings, safe_name
from chiplog_schemas.limits import FINISH_WAIT_S, NAME_CHARS_MAX

_ASK_WAIT_S = FINISH_WAIT_S / 2  # part of finish()'s time: for the group's answer, if the rank has none yet


class GroupMembership:
    """The identity of one run in this process.

    on_known: called with the former identity when the group has agreed on another one, unless the run has finished.
    """

    def __init__(
        self,
        settings: RunSettings,
        diagnostics: Diagnostics,
        on_known: Callable[[Identity], None],
        is_finished: Callable[[], bool],
    ) -> None:
        self.identity = settings.identity
        self.rendezvous = RunIdRendezvous(settings.identity)
        self._settings = settings
        self._diagnostics = diagnostics
        self._report_internal_error = diagnostics.report_internal_error
        self._on_known = on_known
        self._is_finished = is_finished
        self.awaits_group = settings.identity.needs_agreement

    @property
    def current(self) -> Identity:
        """The identity with the rank and label that it has in the group, also before the group has agreed."""
        if not self.awaits_group:
            return self.identity
        return self.rendezvous.with_group_rank(self.identity, self._settings.label_given)

    def ask(self) -> None:
        """Ask the group, if there is one, for what the launcher did not set. Does not block."""
        if self.awaits_group:
            self._poll_group()

    def poll(self) -> None:
        """Ask the group, and adopt its answer. The sender thread calls this."""
        if self.awaits_group:
            self._poll_group()
            if (agreed := self.rendezvous.take_answer()) is not None:
                self._adopt(agreed)

    @never_raises("finish")
    def wait(self) -> None:
        """Wait briefly for an agreed identity: a short training ends before the sender thread polls the group."""
        if not self.awaits_group or not self.identity.needs_agreement:
            return
        self.awaits_group = False  # a signal handler that finishes the run does not wait a second time
        try:
            self._poll_group()
            agreed = self.rendezvous.take_answer(_ASK_WAIT_S)
            if agreed is not None and not self._is_finished():
                self._adopt(agreed)
        finally:
            self.awaits_group = True

    def begin_in_child(self, parent_pid: int | None) -> None:
        """Become a child of the identity's process. parent_pid: if no event of that process was received."""
        self.awaits_group = False  # the visible group is the parent's
        self.identity = for_forked_child(self.identity, os.getpid(), parent_pid)

    def is_same(self, own: RunSettings, other: RunSettings) -> bool:
        """Return True if another `init` of this process means this run: its current or first ID, and its label.

        Without a launcher a rank has a generated ID until its process group exists. Then it is in the group's run.
        own: the settings as they are now.
        """
        is_label = not other.label_given or other.identity.label == self.identity.label
        is_run = other.identity.run_id in (self.identity.run_id, own.identity.run_id)
        if not is_run and other.identity.needs_agreement and own.identity.needs_agreement:
            is_unnamed = not (own.run_given or other.run_given)
            is_alike = (other.project or own.project) == own.project and (other.group or own.group) == own.group
            is_run = is_unnamed and is_alike and is_in_group()  # safeguard: one-run-around-group
        return is_run and is_label

    def watch_demand(self, unmet: str | None, started_us: int) -> None:
        """Warn once per launch that the run is stored under another ID: from local files, else from the collector."""
        identity, settings = self.identity, self._settings
        if not identity.demand or identity.demand_launch or not identity.primary:
            return

        def warn(message: str) -> None:
            if not self._is_finished():
                self._diagnostics.warn_once(("resume", ""), message)

        if unmet is not None:
            warn(unmet)
        elif settings.mode == "online":
            watch_demand(settings.places, identity.run_id, identity.label, started_us, identity.demand, warn)

    def _poll_group(self) -> None:
        identity = self.identity
        is_proposed = identity.needs_agreement and identity.proposed_run_id
        self.rendezvous.poll_group(identity.proposed_run_id if is_proposed else identity.run_id)

    def _adopt(self, agreed: Agreement) -> None:
        settings, before = self._settings, self.identity
        if before.launch_cache_key:
            try:
                store(settings.places, before.launch_cache_key, agreed.run_id)
            except OSError as error:
                message = f"the run ID cannot be stored for restarted ranks: {error}; they ask the other ranks"
                self._diagnostics.warn_once(("launches", ""), message)
        name = None if agreed.name is None else safe_name("label", agreed.name, NAME_CHARS_MAX)[0]
        given = {"label_given": settings.label_given, "primary_given": settings.primary_given}
        self.identity = with_group(before, agreed.rank, agreed.world_size, agreed.run_id, name, **given)
        self._on_known(before)
