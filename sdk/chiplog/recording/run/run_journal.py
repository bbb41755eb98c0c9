"""The journal of one run in this process: when it opens, what identifies it, what sends it, and how it closes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chiplog.journal.event_sink import EventSink, LazyJournal, NullJournal
from chiplog.journal.factory import open_journal
from chiplog.journal.journal import Journal
from chiplog.journal.sender import SenderThread
from chiplog.recording.ends.exit_status import ExitStatus, close
from chiplog.recording.log.device_events import DeviceEvents
from chiplog.recording.log.loop_calls import LoopCalls
from chiplog.recording.run.group_membership import GroupMembership
from chiplog.recording.run.run_notices import Emit
from chiplog.safety.diagnostics import Diagnostics
from chiplog.safety.process_number import may_start_threads
from chiplog.settings import RunSettings, identity_event_fields
from chiplog.torch.current_device import CurrentDevice
from chiplog_schemas.clock import now_us
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.process.descriptors import never_destroy
from chiplog_schemas.process.pool_owners import announce


class RunJournal:
    """Open, identify, send and close the journal that `calls` appends to.

    settings: returns the settings as they are now. tick: called by the sender thread at every interval. follow_fork:
    detaches the run from its parent's, if this is a forked child.
    """

    def __init__(
        self,
        calls: LoopCalls,
        settings: Callable[[], RunSettings],
        membership: GroupMembership,
        devices: DeviceEvents,
        diagnostics: Diagnostics,
        emit: Emit,
        tick: Callable[[], None],
        follow_fork: Callable[[], None],
    ) -> None:
        self._calls = calls
        self._settings = settings
        self._membership = membership
        self._devices = devices
        self._diagnostics = diagnostics
        self._emit = emit
        self._tick = tick
        self._follow_fork = follow_fork
        self.started_us = now_us()
        self.pid = os.getpid()
        self.is_inherited = False  # from another process: by fork or pickle
        self.sender: SenderThread | None = None
        self.is_in_memory = False  # the disk refused it, which was reported
        self._info: dict[str, Any] = {}  # the sender's description of this process in HELLO
        self._recorded_device: CurrentDevice | None = None

    @property
    def directory(self) -> Path | None:
        """The directory of the journal, if it is on disk."""
        journal = self._calls._journal
        return journal.directory if isinstance(journal, Journal) else None

    @property
    def producer(self) -> bytes:
        """The ID of the journal; empty before it is opened."""
        journal = self._calls._journal
        return journal.producer if isinstance(journal, Journal) else b""

    @property
    def is_under_pressure(self) -> bool:
        """Return True if events arrive faster than they are sent."""
        return bool(getattr(self._calls._journal, "is_under_pressure", False))

    def open(self) -> None:
        """Open the journal, and start to send it."""
        settings = self._settings()
        info = self._info = self._describe()
        if "owner" in info:
            announce(settings.places.owners, info["owner"])
        journal, on_disk = open_journal(
            settings.places,
            settings.mode,
            settings.limits,
            info,
            self.started_us,
            lambda message: self._diagnostics.warn_once(("disk", ""), message),
        )
        self._calls._journal = journal
        self.is_in_memory = not on_disk
        journal.on_append_in_child = self._append_in_child
        # safeguard: device-values-polled-often
        # safeguard: expected-group-polled-often
        self.sender = SenderThread(
            journal,
            settings.places,
            info,
            agent_address=settings.agent_address,
            online=settings.mode != "offline",
            on_tick=self._tick,
            warn=lambda message: self._diagnostics.warn_once(("sender", message[:20]), message),
            must_hurry=lambda: self._devices.deferred.is_used or self._membership.rendezvous.expects_group,
            counts=self._count,
        )
        if may_start_threads():  # safeguard: early-child-starts-no-thread
            self.sender.start()

    def open_with_first_event(self) -> None:
        """Open the journal when the first event is emitted: the run is one of another process."""
        self.is_inherited = True
        self._calls._journal = LazyJournal(self._open_lazily)

    def start_sender(self) -> None:
        """Start to send what a forked child logged before it could start threads."""
        if self.sender is not None and not self._calls._finished:
            self.sender.start()

    def record_identity(self) -> None:
        """Replace the identity on the journal's head page and append it as an event."""
        info, journal = self._describe(), self._calls._journal
        if isinstance(journal, Journal):
            journal.set_identity(pack(info))
        self._emit(EventKind.IDENTITY, info)

    def poll(self) -> None:
        """Report a disk error, and record the device once it is known. The sender thread calls this."""
        journal = self._calls._journal
        if isinstance(journal, Journal) and journal.disk_error is not None and not self.is_in_memory:
            self.is_in_memory = True
            message = f"journal cannot grow on disk: {journal.disk_error}; events are kept in memory, bounded"
            self._diagnostics.warn_once(("disk", ""), message)
            self._emit(EventKind.NOTICE, "journal_memory", "warning", message, {})
        if self._devices.current != self._recorded_device:  # safeguard: device-recorded-once-known
            self.record_identity()
            self._info.update(self._describe())  # for a later HELLO; only this thread reads it

    def close(self, status: ExitStatus, closes_at: float, on_refused: Callable[[], None]) -> None:
        """Append the last event, and wait for the agent, at most until `closes_at` of time.monotonic().

        on_refused: called for each later event.
        """
        last, journal = status.event(), self._calls._journal
        try:
            if isinstance(journal, Journal):
                journal.seal(last, on_refused)
                left_s = max(0.0, closes_at - time.monotonic())
                close(journal, self.sender, self._diagnostics, left_s, is_open=status.is_open)
            elif last is not None:
                journal.append(last, urgent=True)
        finally:
            if not isinstance(journal, Journal) or journal.is_sealed:
                self._calls._journal = NullJournal(journal.next_seq, on_refused)

    def begin_in_child(self) -> None:
        """Leave what a forked child inherited: journal, sender and values on devices."""
        former = self._calls._journal
        # To destroy these could change the parent's files, and CUDA ends a child that destroys its parent's events.
        # safeguard: fork-destroys-no-marks
        never_destroy((former, self.sender, self._devices.begin_in_child()))
        self.sender = None
        self._membership.begin_in_child(self.pid if isinstance(former, LazyJournal) else None)
        self.pid = os.getpid()
        self.open_with_first_event()

    def _count(self) -> dict[str, int]:
        """Return what the run counts, for its health."""
        return {"lost_device_values": self._devices.deferred.n_lost, **self._diagnostics.totals()}

    def _describe(self) -> dict[str, Any]:
        self._recorded_device = device = self._devices.current
        known = self._settings(), self._membership.identity, self.started_us, self.pid, device
        return identity_event_fields(*known, is_inherited=self.is_inherited)

    def _open_lazily(self) -> EventSink:
        self._follow_fork()
        self.started_us = now_us()
        self.open()
        return self._calls._journal

    def _append_in_child(self, payload: bytes, urgent: bool) -> None:
        """Append what a forked child was about to append to its parent's journal."""
        self._follow_fork()
        journal = self._calls._journal
        if not (isinstance(journal, Journal) and not journal.is_own):  # the run was finishing
            journal.append(payload, urgent=urgent)
