"""The receiver: receives agents' records, logs and syncs them, acknowledges. It does not use DuckDB.

It runs the index as a separate process and restarts it when it ends: a crash there costs no acknowledgement. An
embedded collector starts it when it is needed: most small jobs end before the first query.
"""

import contextlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from chiplog_collector.query.binding import check_free
from chiplog_collector.receiver.agent_liveness import AgentLiveness, LivenessChange
from chiplog_collector.receiver.commit import CommitBuilder, LogEntry, recover_lost, recover_senders
from chiplog_collector.receiver.disk_space import DiskSpace
from chiplog_collector.receiver.file_transfers import FileTransfers
from chiplog_collector.receiver.health import CollectorHealth, Counts
from chiplog_collector.receiver.index_process import IndexProcess
from chiplog_collector.receiver.lost_tail import append_receipt_for_lost_tail, lost_end_note
from chiplog_collector.receiver.page_process import page_process
from chiplog_collector.receiver.publisher_process import publisher_process
from chiplog_collector.receiver.store_watch import StoreWatch
from chiplog_collector.refusals import NAME as REFUSED_NAME
from chiplog_collector.refusals import RECORDS_MAX, RefusedEvents, read_refused
from chiplog_collector.store.outbox import Outbox
from chiplog_schemas.addresses import ipc_path
from chiplog_schemas.clock import now_us
from chiplog_schemas.limits import (
    CREDIT_BYTES,
    FILES_BYTES_MAX,
    FILES_LOOK_S,
    FILES_TOUCH_S,
    PEER_SILENT_S,
    RECORD_BYTES_MAX,
)
from chiplog_schemas.model.codes import RefusalReason
from chiplog_schemas.paths import Paths, check_root, ensure_private_dir
from chiplog_schemas.process.daemon import on_stop_signals
from chiplog_schemas.process.file_lock import keep_lock, lock_holder_pid, take_daemon_lock, touch
from chiplog_schemas.process.log_owner import LogOwnership
from chiplog_schemas.process.offload import Offload
from chiplog_schemas.protocol.actions import (
    DataReceived,
    LeaveCause,
    NumbersLost,
    ReceiverAction,
    Reply,
    SessionClosed,
    SessionOpened,
)
from chiplog_schemas.protocol.file_messages import is_file_message
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.security.key_files import Keys
from chiplog_schemas.security.permissions import Role
from chiplog_schemas.security.zap import open_authenticator
from chiplog_schemas.storage.record import CorruptRange, Kind, Record
from chiplog_schemas.storage.segment_format import larger_owner, list_segments, log_owner, read_segment
from chiplog_schemas.storage.segment_log import SegmentLog
from chiplog_schemas.storage.watermark import Watermark
from chiplog_schemas.transport.router import RouterSocket

GATHER_S = 0.02  # how long a commit waits for more records …
GATHER_BYTES = 4 << 20  # … unless it is this large
MESSAGES_PER_TURN_MAX = 1_000  # small ones take about GATHER_S; then commits and signals get their turn, in any flood
IDLE_EXIT_S = 30.0  # an embedded collector exits after this time without agents
READER_IDLE_EXIT_S = 300.0  # one that reads a store, without queries: people think between two questions
_IDLE_POLL_S = 0.25
# Where unknown peers can connect: no burst of them may use up the descriptors between two checks.
_GUARDED_POLL_S = 0.05
_WRITE_AGAIN_S = 1.0
_REPLACE_WAIT_S = 40.0  # an embedded collector lets its index catch up before it ends: 30 s at most
_WARN_AGAIN_S = 60.0  # how often a continuing failure is logged
_REFUSED_INTERVAL_S = 1.0  # a small file, and only people read the result
_log = logging.getLogger("chiplog.collector")


@dataclass(slots=True)
class ReceiverSettings:
    """The configuration of a collector."""

    places: Paths
    bind: list[str] = field(default_factory=list)
    query: list[str] = field(default_factory=list)
    embedded: bool = False
    credit_bytes: int = CREDIT_BYTES
    files_bytes_max: int = FILES_BYTES_MAX
    idle_exit_s: float = IDLE_EXIT_S
    keys: Keys | None = None  # of this host; without a collector's among them no socket uses keys
    page: tuple[str, int] | None = None  # host and port to serve the page at
    store: str = ""  # URL of the store to publish to, or to read alone if embedded; empty: none
    is_service: bool = False  # only an operator starts it: a reader must not start an embedded one in its place
    metrics: tuple[str, int] | None = None  # host and port of /metrics
    node: str = ""  # the name of this host in the tables
    take_over: str = ""  # host name of the former owner of the log, if a person has named it


class ReceiverDaemon:
    """The receiver of one collector. `run` returns when it was stopped or, if embedded, was idle for a while.

    Raises LockHeldError when another collector serves this directory, OSError when the directory or an address cannot
    be used.
    """

    def __init__(self, settings: ReceiverSettings, *, with_index: bool = True) -> None:
        self.settings = settings
        places = settings.places
        check_root(places)
        ensure_private_dir(places.collector)
        ensure_private_dir(places.run)
        self._lock = take_daemon_lock(
            places.collector / "lock", embedded=settings.embedded, replace_wait_s=_REPLACE_WAIT_S
        )
        try:
            # The index of a killed collector may still answer there: it is about to end, and the next one waits for it.
            if with_index and not lock_holder_pid(places.index_lock):
                for address in settings.query:
                    if address != places.query_address:
                        check_free(address)  # safeguard: bad-query-address-refused
            self._ownership = LogOwnership(places, is_service=settings.is_service, take_over=settings.take_over)
        except OSError:
            self._lock.release()
            raise
        directory = places.collector / "log"
        self._synced_watermark = Watermark(places.collector / "synced", writable=True)
        self.log = SegmentLog(directory, log_owner(directory) or os.urandom(16))
        kept = self.log.next_number if self.log.lost_tail is None else self.log.lost_tail[0]
        # A log that lost its end must not reuse numbers that the index, or a store, has seen.
        self.log.skip_to(self._synced_watermark.get())
        self._lost_end = lost_end_note(kept, self.log.next_number)  # a record to append
        if settings.store and not settings.embedded:
            with contextlib.suppress(OSError):  # a full disk: the next start notes it
                Outbox(places.store).note_unconfirmed(self.log.next_number)  # safeguard: start-of-publishing-noted
        if self.log.torn_bytes:
            _log.info("log: %d torn bytes after the last whole record were cut off", self.log.torn_bytes)
        next_numbers, lost = _recover(directory)
        self._commits = CommitBuilder(next_numbers, lost)
        if not self.log.segments():  # a new log: this gives it an ID, which the index needs
            self.log.append(Kind.SENDERS, self._commits.senders_record().payload)
            self.log.commit()
        append_receipt_for_lost_tail(self.log)  # safeguard: start-declares-lost-tail
        self._liveness = AgentLiveness(next_numbers, time.monotonic(), lost)
        self._receiver = ReceiverProtocol(next_numbers, settings.credit_bytes, scopes=True)
        self._synced_number = self.log.next_number
        self._publish_after: float | None = None  # when to try again
        self._publish()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = open_authenticator(self._context, settings.keys, Role.COLLECTOR)
        self._router = RouterSocket(self._context, settings.bind, self._authenticator, "ingest")
        self._files = FileTransfers(places.files, settings.files_bytes_max)
        self._poller = zmq.Poller()
        self._poller.register(self._router.socket, zmq.POLLIN)
        self._poller.register(self._files.fileno(), zmq.POLLIN)
        # Records with changes, which the index passes on from clients: each in one piece.
        self._changes: socket.socket | None = None
        self._index_end: socket.socket | None = None
        self._changes_poller = zmq.Poller()
        self._space = DiskSpace()
        self._index: IndexProcess | None = None
        if with_index:
            self._changes, self._index_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for poller in (self._poller, self._changes_poller):
                poller.register(self._changes.fileno(), zmq.POLLIN)
            self._index = IndexProcess(
                places,
                settings.query,
                embedded=settings.embedded,
                keys=settings.keys,
                log_bytes=self.log.size_bytes,
                changes=self._index_end,
                store=settings.store,
            )
        self._page = page_process(places.root, *settings.page) if settings.page is not None else None
        self._publisher = (
            publisher_process(places.root, settings.store) if settings.store and not settings.embedded else None
        )
        self._outbox = Outbox(places.store)
        self._store_watch = StoreWatch(self._outbox) if self._publisher is not None else None
        self._health = CollectorHealth(settings.node, time.monotonic(), follows_index=with_index)
        self._is_busy = False  # whether events arrived since the last values of health
        if settings.metrics is not None:
            from chiplog_schemas.transport.metrics_server import MetricsServer  # http.server costs 20 ms

            MetricsServer(*settings.metrics, self._health.health())
        self._offload = Offload("chiplog-log", lambda: self._act(self._receiver.beat()))
        self._stopping = False
        self._since: float | None = None
        self._busy_at = time.monotonic()
        self._write_after = 0.0
        self._next_poll_s = self._warn_again_at = 0.0
        self._touch_at = time.monotonic() + FILES_TOUCH_S
        self._refused_events = RefusedEvents()  # by the index
        self._disk_free_bytes = 0
        self._refused_at = 0.0  # when to read what the index refused
        self._renewed: dict[bytes, tuple[str, ...]] = {}  # as the log has them, of senders with refusals

    def stop(self, *_: object) -> None:
        """End the loop at its next turn. A signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Serve until stopped."""
        on_stop_signals(self.stop)
        self._leave_retired_id()
        if self._index is not None:
            self._index.tick(time.monotonic(), self.log.size_bytes)
            if self._index.listener is not None:
                self._poller.register(self._index.listener, zmq.POLLIN)
        _log.info("receiver listens for events at %s", ", ".join(self.settings.bind))
        while not self._stopping:
            self.turn()
            if self._index is not None:
                self._watch_index(self._index)
            for child in (self._page, self._publisher):
                if child is not None:
                    child.tick(time.monotonic())
            if self._may_leave(time.monotonic()) and self._leave():
                break
        self._shut_down()

    def _watch_index(self, index: IndexProcess) -> None:
        listener = index.listener
        index.tick(time.monotonic(), self.log.size_bytes)
        if index.listener is not listener:
            if listener is not None:
                self._poller.unregister(listener)
            if index.listener is not None:
                self._poller.register(index.listener, zmq.POLLIN)

    def turn(self) -> None:
        """Run one turn of the loop: wait, receive, commit what is due."""
        now = time.monotonic()
        idle_s = _IDLE_POLL_S if self._authenticator is None else _GUARDED_POLL_S
        wait_s = idle_s if self._since is None else max(0.0, self._since + GATHER_S - now)
        if self._write_after:
            wait_s = max(0.0, self._write_after - now)
            time.sleep(wait_s)  # the disk refuses: unread messages stay with the agents
        elif self._space.is_short:  # safeguard: events-stay-with-agents-on-full-disk
            self._changes_poller.poll(int(min(wait_s, _IDLE_POLL_S) * 1000))
        elif self._poller.poll(int(wait_s * 1000)):
            self._take_messages(time.monotonic())
        now = time.monotonic()  # safeguard: receiver-monotonic-clock
        # safeguard: agents-told-of-queries
        self._receiver.is_queried = self._index is not None and self._index.is_queried(now)
        self._router.throttle_listeners(now)  # safeguard: receiver-descriptors-kept
        self._check_files(now)
        self._take_files(now)
        self._take_changes(now)
        self._act(self._receiver.tick(now))
        self._report_refused(now)
        listens = not (self._write_after or self._space.is_short)
        for word in self._liveness.tick(now, listens=listens):  # safeguard: lost-node-crashes-labels
            self._log_liveness(word)
        if self._since is not None and (
            now - self._since >= GATHER_S or self._commits.waiting_bytes >= GATHER_BYTES or self._write_after
        ):
            self._commit(now)
        self._report_health(now)
        if now >= self._publish_after if self._publish_after is not None else not self._synced_watermark.exists_on_disk:
            self._publish()

    def _report_health(self, now: float) -> None:
        """Note this turn, and every 10 s log a sample of the collector itself, if an agent has sent something."""
        refusal = "the log cannot be written" if self._write_after else ""
        if self._space.is_short:
            refusal = "the disk is full: events stay with the agents"
        applied = self._index.applied if self._index is not None else 0
        if not self._health.turn(self._synced_number, applied, refusal, now):
            return
        counts = Counts(
            log_bytes=self.log.size_bytes,
            disk_free_bytes=self._disk_free_bytes,
            quarantined=self._commits.quarantined,
            refused=self._refusals,
            unapplied=self._refused_events.n_kept,
            duplicates=self._receiver.duplicates,
            connected=len(self._receiver.senders),
            index_restarts=self._index.n_restarts if self._index is not None else 0,
        )
        values = self._health.read(counts, now)
        if self._is_busy and not self.settings.embedded and not refusal:
            self._is_busy = False
            self._append([self._commits.add_own_block(self._health.block(values, now_us()))])

    @property
    def _refusals(self) -> dict[RefusalReason, int]:
        """How much was refused since the start, by reason."""
        refusals = Counter(self._receiver.refusals)
        refusals[RefusalReason.MALFORMED] += self._files.malformed
        refusals[RefusalReason.NODE] += self._refused_events.n_refused
        refusals[RefusalReason.UNAUTHORIZED] += self._authenticator.refused if self._authenticator is not None else 0
        return refusals

    def _take_messages(self, now: float) -> None:
        for _ in range(MESSAGES_PER_TURN_MAX):  # safeguard: turn-bounded
            if self._commits.waiting_bytes >= GATHER_BYTES:
                return
            try:
                received = self._router.receive(now)
            except zmq.Again:
                return
            self._busy_at = now
            if received is None:
                continue
            permit = received.client.permit
            if is_file_message(received.frames):
                self._act(self._files.receive(received.routing, received.frames, now, permit))
            else:
                self._act(self._receiver.receive(received.routing, received.frames, now, permit))

    def _take_files(self, now: float) -> None:
        """Log the files that the store has on stable storage; later, if the log cannot be written now."""
        if self._write_after:
            return
        replies, arrived = self._files.step(now)
        self._act(replies)
        for file in arrived:
            self._append([self._commits.add_file(file.sender, file.digest, file.n_bytes, file.nodes)])

    def _take_changes(self, now: float) -> None:
        """Log the changes that clients have requested; later, if the log cannot be written now."""
        while self._changes is not None and not self._write_after:
            try:
                payload = self._changes.recv(RECORD_BYTES_MAX, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            self._busy_at = now
            self._append([self._commits.add_change(payload)])

    def _act(self, actions: Sequence[ReceiverAction]) -> None:
        for action in actions:
            match action:
                case DataReceived(sender, first, last, payload, permit):
                    self._is_busy = True
                    nodes = permit.nodes if permit is not None else None
                    self._append(self._commits.add_slice(sender, first, last, payload, nodes))
                case Reply():
                    self._router.reply(action, time.monotonic())
                case NumbersLost(sender, first, last, reason):
                    self._append([self._commits.add_gap(sender, first, last, reason)])
                case SessionOpened(sender, info):
                    self._health.agent_came(sender)
                    if (word := self._liveness.greeted(sender, info.get("node"), info.get("boot"))) is not None:
                        self._log_liveness(word)
                case SessionClosed(sender, cause):
                    if not self._commits.next_numbers.get(sender):
                        continue  # it never delivered: no label depends on it, and a peer can invent senders
                    # safeguard: silent-since-last-message
                    silent_s = PEER_SILENT_S if cause is LeaveCause.SILENT else 0.0
                    if cause is LeaveCause.SILENT:
                        self._health.agent_fell_silent(sender, time.monotonic())
                    clean_exit = cause is LeaveCause.GOODBYE
                    self._liveness.left(sender, time.monotonic(), goodbye=clean_exit, silent_s=silent_s)

    def _report_refused(self, now: float) -> None:
        """Report to agents how many of their events are refused, and to the index when their keys change."""
        if now < self._refused_at or self._write_after:
            return
        self._refused_at = now + _REFUSED_INTERVAL_S
        counts = read_refused(self.settings.places.collector / REFUSED_NAME)
        self._refused_events.note(counts)
        full = {sender for sender, refused in counts.items() if refused.records >= RECORDS_MAX}
        self._act(self._receiver.set_refused({sender: refused.events for sender, refused in counts.items()}, full))
        for sender in counts:
            permit = self._receiver.permit_of(sender)
            if permit is not None and self._renewed.get(sender) != permit.nodes:
                self._renewed[sender] = permit.nodes
                self._append([])
                self._commits.renew(sender, permit.nodes)
        self._renewed = {sender: nodes for sender, nodes in self._renewed.items() if sender in counts}

    def _log_liveness(self, word: LivenessChange) -> None:
        """Record in the log that an agent is lost, or that it has reconnected."""
        if not word.is_here:
            which = f"agent of node {word.node}" if word.node else "an agent that delivered before this start"
            _log.warning("%s is lost: silent for %.0f s", which, word.silent_s)
        payload = [word.is_here, int(word.silent_s * 1e6), word.node, word.boot]
        self._append([self._commits.add_presence(word.sender, payload)])

    def _append(self, accepted: list[LogEntry]) -> None:
        if self._since is None:
            self._since = time.monotonic()
            if self.log.at_segment_start:
                senders = self._commits.senders_record()
                self.log.append(senders.kind, senders.payload)
        for entry in accepted:
            if entry.record is not None:
                self.log.append_record(entry.record)
            else:
                self.log.append(entry.kind, entry.payload)

    def _commit(self, now: float) -> None:
        """Write and sync the accepted records, publish how far the log is, then acknowledge."""
        if not self._write_after:
            receipt = self._commits.receipt_record(now_us())
            self.log.append(receipt.kind, receipt.payload)
        try:
            self._ownership.confirm()
            self._offload.run(self.log.commit)  # safeguard: log-synced-before-acknowledge, receiver-beats-while-syncing
        except OSError as error:
            if not self._write_after:
                _log.warning("log cannot be written: %s; agents keep their events until it can", error)
            self._write_after = now + _WRITE_AGAIN_S
            return
        if self._write_after:
            _log.info("log can be written again")
            self._write_after = 0.0
        self._receiver.was_busy(time.monotonic() - now)
        self._since = None
        self._synced_number = self.log.next_number
        self._publish()
        for sender, next_number in self._commits.committed().items():
            self._act(self._receiver.acknowledge(sender, next_number))
        self._act(self._files.committed())

    def _publish(self) -> None:
        """Publish for the index how far the log is synced, in a new file if the old one was removed."""
        try:
            if not self._synced_watermark.exists_on_disk:
                self._synced_watermark = Watermark(self.settings.places.collector / "synced", writable=True)
            self._synced_watermark.set(self._synced_number)
        except OSError as error:
            self._publish_after = time.monotonic() + _WRITE_AGAIN_S
            _log.warning("how far the log is cannot be published to the index: %s; trying again", error)
        else:
            self._publish_after = None

    def _check_files(self, now: float) -> None:
        """Restore lock and socket files that a cleaner removed; end when the directory is gone."""
        if now < self._next_poll_s:
            return
        self._next_poll_s = now + FILES_LOOK_S
        self._check_disk()
        self._note_outages()
        self._note_lost_end()
        self._leave_retired_id()
        if reason := self._ownership.renew() or keep_lock(self._lock):
            _log.error("collector ends: %s", reason)
            self._stopping = True
            return
        try:
            self._router.check_files()
        except (OSError, zmq.ZMQError) as error:
            if now >= self._warn_again_at:
                self._warn_again_at = now + _WARN_AGAIN_S
                _log.warning("cannot listen for agents: %s; trying again", error)
        if now >= self._touch_at:
            self._touch_at = now + FILES_TOUCH_S
            place = self.settings.places
            with contextlib.suppress(OSError):
                self._lock.touch()
            touch([ipc_path(place.collector_address)], [place.collector, place.collector / "log", place.run])

    def _check_disk(self) -> None:
        """Warn about a disk that fills up, and take no events while too little is free."""
        with contextlib.suppress(OSError):
            disk = os.statvfs(self.settings.places.collector)
            self._disk_free_bytes = disk.f_bavail * disk.f_frsize
            warning = self._space.check(self._disk_free_bytes, disk.f_blocks * disk.f_frsize)
            if warning is not None:
                _log.warning("%s: %s", self.settings.places.collector, warning)

    def _note_outages(self) -> None:
        """Log that the store is away, or back; later, if the log cannot be written now."""
        if self._store_watch is None or self._write_after or self._space.is_short:
            return
        for payload in self._store_watch.turn():
            self._append([self._commits.add_change(payload)])

    def _note_lost_end(self) -> None:
        """Add an event about a log that lost its end; later, if the log cannot be written now."""
        if self._lost_end is not None and not self._write_after and not self._space.is_short:
            payload, self._lost_end = self._lost_end, None
            self._append([self._commits.add_change(payload)])

    def _leave_retired_id(self) -> None:
        """Continue under a new log ID if the store has retired this one, as a restored log does."""
        retired = self._outbox.retired() if self._publisher is not None else b""
        if not retired or self._write_after or self._space.is_short:
            return
        if self._since is not None:
            self._commit(time.monotonic())
        for child in (self._index, self._publisher):
            if child is not None:
                child.stop()
        if self.log.owner == retired and self._since is None:
            self.log.renew(larger_owner(retired))  # safeguard: retired-log-has-new-id
            self._append([])
            self._commit(time.monotonic())
        if self._since is not None or self._write_after:
            return  # the disk refuses; tried again
        try:
            self._outbox.renew(self.log.owner)
            _log.warning("log %s was retired; it continues as %s", retired.hex(), self.log.owner.hex())
        except OSError as error:
            _log.warning("the outbox cannot be continued as log %s: %s; trying again", self.log.owner.hex(), error)

    # -- the end --

    def _may_leave(self, now: float) -> bool:
        if self.settings.store and self._index is not None and self._index.is_queried(now):
            self._busy_at = now
        return (
            self.settings.embedded
            and not self._receiver.senders
            and self._files.is_idle
            and self._since is None
            and now - max(self._busy_at, self._read_at()) >= self.settings.idle_exit_s
        )

    def _read_at(self) -> float:
        """Return when a client last received a part of a large result, which ends with the index."""
        return self._index.read_at() if self._index is not None else 0.0  # safeguard: read-result-keeps-collector

    def _leave(self) -> bool:
        """Unbind and exit. An agent that connects now starts another collector, which waits for the lock."""
        self._router.close(0)
        _log.info("no agent for %g s; exiting", self.settings.idle_exit_s)
        return True

    def _shut_down(self) -> None:
        """Stop intake, drain, commit, let the index catch up, close, in this order."""
        # While the disk refuses, pending records already have their receipt: append nothing after it.
        if not self._router.socket.closed and not (self._write_after or self._space.is_short):
            self._take_messages(time.monotonic())
        if self._since is not None:
            self._commit(time.monotonic())
        self._router.close(100)
        if self._page is not None:
            self._page.stop()
        if self._index is not None:
            self._index.stop()
        if self._publisher is not None:  # after the index, which cuts its last piece at the end
            self._publisher.stop()
        self.close()
        _log.info("receiver stopped")

    def close(self) -> None:
        """Close everything and release the lock."""
        self._router.close(0)
        self._offload.close()
        self._files.close()
        for end in (self._changes, self._index_end):
            if end is not None:
                end.close()
        self.log.close()
        if self._index is not None:
            self._index.close()
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()
        self._ownership.release()
        self._lock.release()


def _recover(directory: Path) -> tuple[dict[bytes, int], set[bytes]]:
    """Return next number by sender, and the lost senders: from the newest segment with SENDERS on."""
    next_numbers: dict[bytes, int] = {}
    found: list[Record | CorruptRange] = []
    for _, path in reversed(list_segments(directory)):
        items = list(read_segment(path))
        for sender, number in recover_senders(items).items():
            next_numbers[sender] = max(number, next_numbers.get(sender, 0))
        found[:0] = items
        if any(isinstance(item, Record) and item.kind == Kind.SENDERS for item in items):
            break
    return next_numbers, recover_lost(found)
