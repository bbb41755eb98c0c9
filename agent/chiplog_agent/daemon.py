"""The agent's one loop: ranks' messages in, blocks into the spool, the spool to the collector, samples in between."""

import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from typing import Any

import zmq

from chiplog_agent.pipeline.batcher import EventBatcher
from chiplog_agent.pipeline.collector_supervisor import CollectorSupervisor
from chiplog_agent.pipeline.file_uploader import FileUploader
from chiplog_agent.pipeline.health import AgentHealth, Counts, health_of
from chiplog_agent.pipeline.sample_intake import SampleIntake
from chiplog_agent.pipeline.spool import Spool
from chiplog_agent.ranks.exit_cause import ExitCauseResolver
from chiplog_agent.ranks.former_place import FormerPlaceMover
from chiplog_agent.ranks.origins import origin_of_living
from chiplog_agent.ranks.orphan_journals import OrphanJournalCollector, remove_stale_staging
from chiplog_agent.stats.release_mark import ReleaseMark
from chiplog_agent.stats.sampler_lease import SamplerLease
from chiplog_schemas._version import __version__
from chiplog_schemas.addresses import ipc_path
from chiplog_schemas.clock import now_us
from chiplog_schemas.limits import (
    ADOPT_INTERVAL_S,
    BATCH_BYTES_MAX,
    CREDIT_BYTES,
    FILES_TOUCH_S,
    IDLE_EXIT_S,
    SAMPLE_INTERVAL_S,
    SPOOL_BYTES_MAX,
    SPOOL_SYNC_INTERVAL_S,
    SPOOL_SYNC_INTERVAL_SLOW_S,
)
from chiplog_schemas.model.codes import RefusalReason
from chiplog_schemas.once import OnceLogger
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.process.daemon import on_stop_signals, start_daemon_once
from chiplog_schemas.process.file_lock import Lock, keep_lock, touch
from chiplog_schemas.process.offload import Offload
from chiplog_schemas.process.pool_owners import remove_old
from chiplog_schemas.process.procfs import boot_id
from chiplog_schemas.protocol.actions import (
    DataReceived,
    HealthReported,
    NumbersLost,
    ReceiverAction,
    Reply,
    SessionClosed,
    SessionOpened,
)
from chiplog_schemas.protocol.receiver import ReceiverProtocol
from chiplog_schemas.security.curve import ClientCurve
from chiplog_schemas.security.key_files import Keys
from chiplog_schemas.security.permissions import Role
from chiplog_schemas.security.zap import open_authenticator
from chiplog_schemas.storage.journal_dir import list_journals
from chiplog_schemas.transport.collector_memory import forget_collector
from chiplog_schemas.transport.dealer import DeliveryClient
from chiplog_schemas.transport.router import RouterSocket

_MESSAGES_PER_TURN = 64  # then the other inputs get their turn
_GATHER_S = 0.025  # half of the interval in which a block is due …
_GATHER_SLOW_S = 0.05  # … and a quarter of the long one: a rank that ends waits at most this long
_TURN_S = 0.4  # between two whole turns: twice the interval in which a block is due
_REFUSED_TURN_S = 0.1  # poll interval while the disk refuses
_WRITE_AGAIN_S = 1.0  # after a disk error
_CREDIT_SUM_BYTES = 4 * CREDIT_BYTES  # for all ranks: the agent must stay below 150 MiB with eight of them …
_CREDIT_MIN_BYTES = 2 * BATCH_BYTES_MAX  # … and with more ranks, one batch is in flight while another is spooled
_WARN_AGAIN_S = 60.0  # after this long without it, a failure of the same kind is logged again
_OWNERS_KEPT_S = 600.0  # after the end of a pool's owner: its workers' journals are adopted long before
_TIDY_INTERVAL_S = 60.0  # leftovers of dead processes are small
_log = logging.getLogger("chiplog.agent")


@dataclass(slots=True)
class AgentSettings:
    """The configuration of an agent."""

    places: Paths
    node: str
    collector_address: str | None = None  # None: the embedded collector of the same CHIPLOG_DIR
    bind: list[str] = field(default_factory=list)  # in addition to the node's own ipc socket
    embedded: bool = False  # start a collector when none answers, exit when idle
    stats: bool = True
    spool_bytes_max: int = SPOOL_BYTES_MAX
    credit_bytes: int = CREDIT_BYTES
    idle_exit_s: float = IDLE_EXIT_S
    sample_interval_s: float = SAMPLE_INTERVAL_S
    keys: Keys | None = None  # of this host; without an agent's among them its own addresses use no keys
    curve: ClientCurve | None = None  # for the collector; None: without keys
    metrics: tuple[str, int] | None = None  # host and port of /metrics
    forgets_collector: bool = False  # once everything is delivered: only the environment of a training named it


class AgentDaemon:
    """One agent. `run` returns when it was stopped or, if embedded, was idle for a while.

    lock: of places.agent, held. Raises OSError when the directory or a socket cannot be used.
    """

    def __init__(self, settings: AgentSettings, lock: Lock) -> None:
        self.settings = settings
        places = settings.places
        ensure_private_dir(places.agent)
        ensure_private_dir(places.journals)
        self._lock = lock
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        now = time.monotonic()
        self._batcher = EventBatcher(os.urandom(16), settings.node, os.getpid(), __version__, now_us())
        # A reader starts the embedded daemons for a spool that they owe, and these must not take what is another's.
        self._delivers_here = settings.collector_address is None
        self._spool = Spool(places.agent / "spool", os.urandom(16), bytes_max=settings.spool_bytes_max)
        self._offload = Offload("chiplog-spool", self._beat)
        self._receiver = ReceiverProtocol(credit=settings.credit_bytes)
        self._exit_causes = ExitCauseResolver(places.journals)
        self._orphans = OrphanJournalCollector(places.journals, self._exit_causes)
        self._former = FormerPlaceMover(places, settings.collector_address)
        self._synced: dict[bytes, int] = {}  # producer -> next seq in the spool, while its journal may exist
        self._acks: dict[bytes, int] = {}  # to send after the next sync
        self._authenticator = open_authenticator(self._context, settings.keys, Role.AGENT) if settings.bind else None
        self._router = self._bind()
        self._delivery = DeliveryClient(
            self._context,
            settings.collector_address or places.collector_address,
            self._spool.id,
            {"node": settings.node, "pid": os.getpid(), "boot": boot_id()},
            self._spool,
            curve=settings.curve,
            on_change=lambda state, reason: self._collector.on_change(state, reason),
        )
        self._files = FileUploader(
            self._context,
            self._delivery.address,
            self._spool.id,
            {"node": settings.node, "pid": os.getpid()},
            places.outbox,
            self._emit_of_file,
            curve=settings.curve,
        )
        self._once = OnceLogger(_log.warning, keys_max=100, quiet_s=_WARN_AGAIN_S)
        self._collector = CollectorSupervisor(
            self._delivery,
            places,
            self._emit_no_collector,
            self._warn_throttled,
            may_start=settings.embedded and settings.collector_address is None,
            now=now,
        )
        collector = settings.curve.server.public if settings.curve is not None else self._delivery.address
        self._samples = SampleIntake(
            self._batcher,
            SamplerLease(boot_id(), settings.node, collector),
            settings.node,
            period_s=settings.sample_interval_s if settings.stats else None,
            is_embedded=settings.embedded,
            has_room=lambda: self._has_room,
            is_dead=lambda producer: self._exit_causes.is_dead(producer),
            release=ReleaseMark(places.agent),
            known_gpus=places.agent / "known-gpus.json",
        )
        self._health = AgentHealth(settings.node, now, self._spool.ages_s(now_us()))
        if settings.metrics is not None:
            from chiplog_schemas.transport.metrics_server import MetricsServer  # http.server costs 20 ms

            shown = health_of(self._health, self._samples.exposed, self._samples.exposed_states)
            MetricsServer(*settings.metrics, shown)
        self._poller = zmq.Poller()
        self._polled: set[zmq.Socket[bytes]] = set()  # to the collector; they are replaced at times
        self._stopping = False
        self._turned_at = self._last_polled_s = 0.0
        self._tidy_at = 0.0
        self._touch_at = now + FILES_TOUCH_S
        self._busy_at = now
        self._write_after = 0.0
        self._peer_pid: int | None = None  # of the message being handled, see ReceivedMessage

    # -- the loop --

    def stop(self, *_: object) -> None:
        """End the loop at its next turn. A signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Serve until stopped."""
        on_stop_signals(self.stop)
        self._poller.register(self._router.socket, zmq.POLLIN)
        self._poller.register(self._exit_causes.fileno(), zmq.POLLIN)
        self._samples.start(self._poller)
        _log.info("agent of node %s serves %s", self.settings.node, self.settings.places.agent_address)
        while not self._stopping:
            now = time.monotonic()
            has_ended = self._poll(now)
            now = time.monotonic()
            self._take_messages(now)
            if not has_ended and self._is_gathering(now):
                continue
            self._turned_at = now
            self._samples.take(self._receiver.senders, now)
            self._router.throttle_listeners(now)
            self._poll_journals(now)
            self._set_pace()
            self._flush(now)
            now = time.monotonic()  # the sync may have taken long  # safeguard: clock-read-after-sync
            self._delivery.poll(now)
            self._files.step(now, is_open=self._delivery.is_open)
            # In every turn: the collector's acknowledgement makes room even when there is nothing to flush.
            self._act(self._receiver.set_credit(self._credit), now)
            self._collector.ensure_running(now)
            self._collector.poll_refused(self._emit_refused)
            self._report_health(now)
            if self._is_idle(now) and self._try_exit_idle():
                break
        self._shut_down()

    @property
    def _credit(self) -> int:
        """The credit of each rank.

        The more ranks log as fast as they can, the more data waits in this process's memory.
        """
        share = max(_CREDIT_MIN_BYTES, _CREDIT_SUM_BYTES // max(1, len(self._receiver.senders)))
        # safeguard: full-spool-withholds-credit
        return 0 if self._spool.is_full else min(self.settings.credit_bytes, share)

    def _poll(self, now: float) -> bool:
        """Wait for input, or until something is due. Return True if the process of a rank has ended."""
        upstream = {socket for socket in (self._delivery.socket, self._files.socket) if socket is not None}
        for socket in self._polled - upstream:
            with contextlib.suppress(KeyError):
                self._poller.unregister(socket)
        for socket in upstream - self._polled:
            self._poller.register(socket, zmq.POLLIN)
        self._polled = upstream
        idle_s = 0.05 if self.settings.bind or not self._delivery.is_open else ADOPT_INTERVAL_S
        wait_s = 0.0 if self._can_drain_orphans else self._batcher.wait_s(now, idle_s)
        if self._write_after > now:
            time.sleep(min(_REFUSED_TURN_S, self._write_after - now))  # unread messages must not keep the loop awake
        elif self._batcher.is_small:
            # Collect more events for a small block instead of waking for each message.
            gather_s = _GATHER_S if self._receiver.is_queried else _GATHER_SLOW_S
            return self._exit_causes.wait(min(gather_s, wait_s))
        else:
            self._poller.poll(int(wait_s * 1000))
        return False

    def _is_gathering(self, now: float) -> bool:
        """Return True if all else can wait until the small block is due: a whole turn costs several times as much."""
        is_urgent = self._receiver.is_ack_requested or self._can_drain_orphans or now - self._turned_at >= _TURN_S
        return self._batcher.is_small and not is_urgent and not self._batcher.is_flush_due(now)

    def _set_pace(self) -> None:
        """Sync often while clients ask the collector, and at once if a rank waits for its acknowledgement."""
        is_queried = self._receiver.is_queried = self._delivery.protocol.is_queried  # safeguard: ranks-told-of-queries
        self._batcher.sync_interval_s = SPOOL_SYNC_INTERVAL_S if is_queried else SPOOL_SYNC_INTERVAL_SLOW_S
        if self._receiver.is_ack_requested:
            self._receiver.is_ack_requested = False
            self._batcher.sync_interval_s = 0.0  # safeguard: waiting-rank-acknowledged-at-once

    def _take_messages(self, now: float) -> None:
        if self._spool.waiting_bytes > CREDIT_BYTES or self._router.socket.closed:
            return  # the disk refuses: unread messages stay with the senders
        for _ in range(_MESSAGES_PER_TURN):
            if not self._batcher.has_capacity:
                return
            if not self._router.has_message:
                break
            try:
                received = self._router.receive(now)
            except zmq.Again:
                break
            self._busy_at = now
            if received is not None:
                permit = received.client.permit
                self._peer_pid = received.peer_pid
                self._act(self._receiver.receive(received.routing, received.frames, now, permit), now)
        self._act(self._receiver.tick(now), now)

    def _act(self, actions: list[ReceiverAction], now: float) -> None:
        for action in actions:
            match action:
                case DataReceived(sender, first, last, payload):
                    # safeguard: acknowledged-after-sync
                    self._batcher.add_slice(sender, first, last, payload, now, now_us())
                case Reply():
                    self._router.reply(action, now)
                case SessionOpened(sender, info):
                    self._batcher.register(sender, info)
                    self._locate(sender, now)
                    self._samples.watch(self._receiver.senders)
                case NumbersLost(sender, first, last, reason):
                    self._batcher.declare_lost(sender, first, last, reason, now_us())
                case HealthReported(sender, health):
                    self._samples.take_report(sender, health, now)
                case SessionClosed(sender, _):
                    peer = self._batcher.peers.get(sender)
                    if peer is not None and peer.finished:
                        self._forget(sender)
                    self._samples.watch(self._receiver.senders)

    def _locate(self, producer: bytes, now: float) -> None:
        """Report where the process of a producer runs whose HELLO was just received."""
        is_local = self._peer_pid is not None
        self._orphans.on_hello(producer, self._peer_pid or 0)
        pid = self._exit_causes.pid_of(producer) if is_local else 0
        origin = origin_of_living(pid, self._batcher.peers[producer].identity, is_local=is_local)
        self._batcher.locate(producer, origin, now, now_us())

    @property
    def _has_room(self) -> bool:
        """Return True if there is room for more than the ranks' data, on the disk or in memory if the disk refuses."""
        return not self._spool.is_full and self._spool.waiting_bytes <= CREDIT_BYTES

    @property
    def _can_drain_orphans(self) -> bool:
        """Return True if dead ranks' journals may move into the spool: not while it is full or its disk refuses."""
        return self._orphans.is_busy and self._has_room

    def _poll_journals(self, now: float) -> None:
        if has_ended := self._exit_causes.poll(now_us()):
            self._samples.watch(self._receiver.senders)
        if has_ended or now - self._last_polled_s >= ADOPT_INTERVAL_S:
            self._last_polled_s = now
            self._check_files(now)
            self._collect_orphans(now)
            self._orphans.decide(self._batcher, now)
        if now >= self._tidy_at:
            self._tidy_at = now + _TIDY_INTERVAL_S
            remove_stale_staging(self.settings.places.journals, time.time())
            remove_old(self.settings.places.owners, time.time() - _OWNERS_KEPT_S)
        self._former.tick(now)
        if self._can_drain_orphans:
            self._orphans.drain_into(self._batcher, now, now_us())

    def _collect_orphans(self, now: float) -> bool:
        """Adopt the journals of dead ranks and forget delivered producers.

        Return True if the journals could be listed.
        """
        try:
            adopted = self._orphans.scan(self._synced, self._receiver.senders)
        # safeguard: descriptors-short-agent-continues
        except OSError as error:  # unknown peers may have used up all descriptors
            self._warn_throttled("journals cannot be listed", error)
            return False
        for producer in adopted:
            self._receiver.forget(producer)
            self._busy_at = now
            self._samples.watch(self._receiver.senders)
        known = self._orphans.known | self._receiver.senders
        # Only watched: it sent BYE before it removed its journal, and a scan in between watched it once more.
        # safeguard: peer-state-dropped, process-watched-while-needed
        for producer in (self._batcher.peers.keys() | self._synced.keys() | self._exit_causes.watched) - known:
            self._forget(producer)  # delivered, and its process removed the journal
        return True

    def _forget(self, producer: bytes) -> None:
        """Drop the state of a producer. An agent runs for months, so descriptors and memory must not leak."""
        self._batcher.forget(producer)
        self._receiver.forget(producer)
        self._exit_causes.forget(producer)  # safeguard: finished-producer-frees-descriptor
        self._samples.forget(producer)
        self._synced.pop(producer, None)

    def _warn_throttled(self, what: str, error: Exception) -> None:
        """Log a failure that will be retried: once, however long it continues."""
        self._once.log(what, "%s: %s; trying again", what, error, now=time.monotonic())

    def _flush(self, now: float) -> None:
        """Build a block of the pending events, sync it, then acknowledge."""
        if now < self._write_after:
            return
        is_moving = not self._former.is_idle
        if not (self._batcher.is_flush_due(now) or self._spool.waiting_bytes or self._orphans.is_waiting or is_moving):
            return
        self._append_pending()
        self._append_former()
        try:
            self._offload.run(self._spool.sync)  # safeguard: spool-synced-before-acknowledge
        except OSError as error:
            if self._write_after == 0.0:
                _log.warning("spool cannot be written: %s; ranks keep their events until it can", error)
            self._write_after = now + _WRITE_AGAIN_S  # safeguard: refused-spool-retried
            return
        if self._write_after:
            _log.info("spool can be written again")
            self._write_after = 0.0
        self._receiver.was_busy(time.monotonic() - now)
        acks, self._acks = self._acks, {}
        for producer, next_seq in acks.items():
            self._synced[producer] = next_seq
            self._act(self._receiver.acknowledge(producer, next_seq), now)
        for producer in self._orphans.on_spool_synced():
            self._forget(producer)
        self._former.on_spool_synced()

    def _beat(self) -> None:
        """Send heartbeats to ranks and collector while the disk is slow."""
        now = time.monotonic()
        self._act(self._receiver.beat(), now)  # safeguard: agent-beats-to-ranks
        self._delivery.beat(now)  # safeguard: agent-beats-to-collector

    def _append_pending(self) -> None:
        """Append all events so far, so that the next sync covers every pending acknowledgement and removal."""
        blocks, taken = self._batcher.build(now_us())
        for block in blocks:
            self._spool.append(block)
        if taken and self._delivers_here:  # safeguard: foreign-spool-waits
            self._spool.owe()
        self._acks.update(taken)

    def _append_former(self) -> None:
        """Append blocks of a spool that is in a former place of this directory."""
        blocks = self._former.take_blocks() if self._has_room else []
        for block in blocks:
            self._spool.append(block)
        if blocks and self._delivers_here:
            self._spool.owe()

    def _emit_no_collector(self, message: str, now: float) -> None:
        self._batcher.notice("no_collector", "warning", message, {}, now, now_us())

    def _emit_refused(self, message: str, count: int) -> None:
        self._batcher.notice("refused", "error", message, {"events": count}, time.monotonic(), now_us())

    def _emit_of_file(self, kind: str, level: str, message: str, body: dict[str, Any]) -> None:
        self._batcher.notice(kind, level, message, body, time.monotonic(), now_us())

    @property
    def _refusals(self) -> dict[RefusalReason, int]:
        """How much of ranks was refused since the start, by reason."""
        n_unauthorized = self._authenticator.refused if self._authenticator is not None else 0
        return {**self._receiver.refusals, RefusalReason.UNAUTHORIZED: n_unauthorized}

    def _report_health(self, now: float) -> None:
        """Note this turn, and every 10 s add a sample of the agent itself."""
        if not self._health.turn(*self._spool.progress, is_open=self._delivery.is_open, now=now):
            return
        counts = Counts(
            spool_bytes=self._spool.size_bytes,
            received=self._batcher.n_received,
            lost=self._batcher.n_lost,
            refused=self._collector.n_refused,
            refusals=self._refusals,
            duplicates=self._receiver.duplicates,
            damaged=self._batcher.damaged,
            ranks=len(self._receiver.senders),
            journals=len(self._orphans.known - self._receiver.senders),
            credit_bytes=self._credit,
            late_s=self._samples.take_late_s(),
            samples_dropped=self._samples.n_dropped + self._batcher.samples_dropped,  # the latter not declared yet
            gpus=self._samples.n_gpus,
            gpus_released=self._samples.is_released,
            gpus_lost=len(self._samples.lost_gpus),
            gpus_stale=self._samples.n_stale_gpus,
            fatal_xids=self._samples.n_fatal_xids,
            sampler_pid=self._samples.sampler_pid,
            samples_host=self._samples.samples_host,
            sdk=self._samples.sdk_totals(),
        )
        sample = self._health.read(counts, now)
        if self._samples.samples_node and self._has_room:
            self._batcher.sample(*sample, now_us(), now)

    # -- the end --

    def _is_idle(self, now: float) -> bool:
        return (  # safeguard: leave-after-drain
            self.settings.embedded
            and self._orphans.is_idle
            and self._former.is_idle
            and not self._receiver.senders
            and now - self._busy_at >= self.settings.idle_exit_s
            and self._spool.is_drained
            and self._files.is_idle
        )

    def _try_exit_idle(self) -> bool:
        """Unbind, poll once more, and exit; or bind again because a rank has connected."""
        self._router.close(0)
        if self._collect_orphans(time.monotonic()) and self._orphans.is_idle:
            _log.info("nothing to do for %g s; exiting", self.settings.idle_exit_s)
            return True
        self._poller.unregister(self._router.socket)
        self._rebind()
        self._busy_at = time.monotonic()
        return False

    def _check_files(self, now: float) -> None:
        """Restore lock and socket files that a cleaner removed, for new ranks; end when the directory is gone."""
        if reason := keep_lock(self._lock):
            _log.error("agent ends: %s", reason)
            self._stopping = True
            return
        if now >= self._touch_at:
            self._touch_at = now + FILES_TOUCH_S
            self._touch_files()
        if self._router.socket.closed:
            self._rebind()
            return
        try:
            self._router.check_files()
        except (OSError, zmq.ZMQError) as error:
            self._warn_throttled("cannot listen for ranks", error)

    def _touch_files(self) -> None:
        """Update the times of this agent's files, for cleaners that go by age.

        A rank touches the files that it holds.
        """
        places = self.settings.places
        with contextlib.suppress(OSError):
            self._lock.touch()
        touch([ipc_path(places.agent_address), places.agent_link], [places.agent / "spool", places.run])

    def _rebind(self) -> None:
        try:
            self._router = self._bind()
            self._poller.register(self._router.socket, zmq.POLLIN)
        # safeguard: failed-socket-retried
        except (OSError, zmq.ZMQError) as error:  # a full disk or no descriptor: retried later; ranks keep events
            self._warn_throttled("cannot listen for ranks", error)

    def _shut_down(self) -> None:
        """Stop intake, drain, flush, close, in this order."""
        self._samples.close()
        self._former.close()
        if not self._router.socket.closed:
            self._take_messages(time.monotonic())
        if self._batcher.samples_dropped:
            self._samples.declare_dropped(time.monotonic())
        self._append_pending()
        with contextlib.suppress(OSError):  # data that the disk refuses is still in the ranks' journals
            self._offload.run(self._spool.sync)
            for producer, next_seq in self._acks.items():
                self._act(self._receiver.acknowledge(producer, next_seq), time.monotonic())
            self._orphans.on_spool_synced()
        self._delivery.poll(time.monotonic())
        self._delivery.close()
        self._collector.close()
        self._files.close()
        self._router.close(100)
        self._offload.close()
        self._spool.close()
        if self._authenticator is not None:
            self._authenticator.close()
        if self.settings.forgets_collector and self._spool.is_drained:
            forget_collector(self.settings.places.agent)
        self._context.term()
        _log.info("agent stopped")
        self._lock.release()
        if not self._stopping:
            self._start_successor()

    def _start_successor(self) -> None:
        """Start an agent for journals that appeared after the last scan: their processes saw this agent's lock.

        An agent exits only when it can adopt none of the journals that it saw. A successor could not adopt them either,
        would exit as well, and would start the next agent.
        """
        places = self.settings.places
        try:
            # safeguard: no-successor-for-known-journals
            if {producer for producer, _ in list_journals(places.journals)} - self._orphans.known:
                start_daemon_once("chiplog_agent", ["--embedded"], places, places.agent / "lock", 0.0)
        except OSError as error:
            _log.warning("no agent can be started for the journals in %s: %s", places.journals, error)

    def _bind(self) -> RouterSocket:
        return RouterSocket(  # safeguard: ranks-domain
            self._context, [self.settings.places.agent_address, *self.settings.bind], self._authenticator, "ranks"
        )
