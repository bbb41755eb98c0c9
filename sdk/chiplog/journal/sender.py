"""The background thread of a run: it preallocates the journal's segments and sends its records to the node's agent.

It starts an agent if none listens and none was named. Its ticks run the periodic work of the run.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zmq

from chiplog.journal.health import JournalHealth
from chiplog.journal.journal import Journal
from chiplog.journal.reachability import Reason, probe
from chiplog.safety.process_number import may_start_threads
from chiplog_schemas.addresses import check_connect
from chiplog_schemas.backoff import Backoff
from chiplog_schemas.interrupts import handlers_held, unless_interrupt
from chiplog_schemas.limits import FINISH_WAIT_S, KIB, SEND_INTERVAL_S, SEND_INTERVAL_SLOW_S
from chiplog_schemas.paths import Paths
from chiplog_schemas.process.daemon import STARTING_S, has_collector, start_daemon_once
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.process.log_owner import served_elsewhere
from chiplog_schemas.security.curve import client_curve
from chiplog_schemas.security.key_files import Keys, keys_dir
from chiplog_schemas.security.permissions import Role
from chiplog_schemas.storage.former_places import new_notices
from chiplog_schemas.transport.collector_memory import remembered_collector
from chiplog_schemas.transport.dealer import DeliveryClient, require_free_fds

AGENT_MODULE = "chiplog_agent"
NO_COLLECTOR = (
    "no collector is installed here and CHIPLOG_COLLECTOR names none: pip install chiplog, or set the variable; "
    "until an agent runs the journal keeps everything"
)
_START_AFTER_S = 0.1  # a running agent answers within this; otherwise start one
_START_AGAIN_S = 5.0  # then start another if that one did not come up
_POLL_INTERVAL_S = 1.0  # another rank has just started one: check again after this
_LAST_POLL_S = 0.5  # at the end of a run without an answer: an agent started before this should have answered
_OPEN_AGAIN_MIN_S = 0.2  # out of descriptors, or keys that cannot be read: first pause before a retry
_OPEN_AGAIN_MAX_S = 5.0  # longest pause between retries
_PROBE_AFTER_S = 1.0  # then probe a named agent that has not answered: the report comes within 2 s
_FINISH_POLL_MS = 5
# Of the journal, in flight: from here on the intervals are short. It is a quarter of a journal's first segment, so the
# next segment is ready in time, and credit that returns is used soon.
_BUSY_BYTES = 64 * KIB
_CLOSE_S = 0.25  # part of the time that finish() may take: to close the socket


class SenderThread:
    """Send a journal until `stop`. Everything except `start`, `wake` and `stop` runs in its own thread."""

    def __init__(
        self,
        journal: Journal,
        places: Paths,
        info: dict[str, Any],
        *,
        agent_address: str | None,
        online: bool,
        on_tick: Callable[[], None],
        warn: Callable[[str], object],
        probes: bool = True,
        must_hurry: Callable[[], bool] = lambda: False,
        counts: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        """Prepare the thread.

        probes: whether to report a named agent that cannot be reached, and where the journals are. must_hurry:
        whether the ticks are needed at short intervals. counts: what the run counts, for its health; None: no reports.
        """
        self._journal = journal
        self._places = places
        self._info = info
        self._address = agent_address or places.agent_address
        self._may_start_agent = agent_address is None
        self._probe_at = 0.0 if probes and not self._may_start_agent else float("inf")  # 0: from the start
        self._reports_place = probes
        self._online = online
        self._on_tick = on_tick
        self._warn = warn
        self._must_hurry = must_hurry
        self._health = None if counts is None else JournalHealth(journal, counts, time.monotonic())
        self._deadline = float("inf")
        self._done = threading.Event()
        self.delivered = False  # everything was acknowledged when the thread ended
        self._asleep = threading.Lock()  # released to wake the thread: the training could close a descriptor
        self._asleep.acquire()
        # safeguard: sender-thread-is-daemon
        self._thread = threading.Thread(target=self._run, name="chiplog-sender", daemon=True)

    @property
    def is_running(self) -> bool:
        """Return True if the thread was started. Without one the journal keeps everything until an agent adopts it."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Start the thread unless it runs, and before it an agent if none runs.

        A process may end before its thread has run: a worker of a pool by os._exit, a rank by SIGSEGV.
        """
        if self.is_running:
            return
        no_agent = ""
        # safeguard: agent-started-with-journal
        if self._online and self._may_start_agent and lock_holder_pid(self._places.agent / "lock") == 0:
            _, no_agent = self._try_agent()
        error = self._start_thread()
        if error is not None:
            self._report(
                f"the system starts no thread ({error}), so nothing is sent while this process runs",
                f"the journal in {self._places.journals} keeps everything until this process has ended and an agent "
                "adopts it; raise `ulimit -u` or the pids limit of the container",
            )
        elif no_agent:
            self._warn(no_agent)

    def _start_thread(self) -> RuntimeError | None:
        """Start the thread. Return the error if the system is out of threads."""
        try:
            with handlers_held():  # as in start_thread()
                self._thread.start()
        except unless_interrupt(RuntimeError) as error:  # safeguard: journal-needs-no-thread
            return error
        return None

    def wake(self) -> None:
        """Wake the thread before its next interval."""
        with contextlib.suppress(RuntimeError):  # the thread is awake
            self._asleep.release()

    def stop(self, wait_s: float = FINISH_WAIT_S) -> bool:
        """Send the rest for at most `wait_s` and stop. Return True if everything was acknowledged."""
        if not self.is_running and (not may_start_threads() or self._start_thread() is not None):
            if self._online and self._may_start_agent and lock_holder_pid(self._places.agent / "lock") == 0:
                self._try_agent(_LAST_POLL_S)  # it adopts the journal; without one, a later agent does
            return False
        self._deadline = time.monotonic() + wait_s - _CLOSE_S  # safeguard: finish-waits-one-second
        self.wake()
        self._done.wait(wait_s)
        return self.delivered

    def _run(self) -> None:
        try:
            if self._reports_place:
                self._report_place()
            if self._online:
                self._send_loop()
            else:
                self._offline_loop()
        except Exception as error:  # the training must not notice; the journal keeps everything for an agent to adopt
            self._warn(f"sender stopped: {type(error).__name__} {error}; the journal is delivered after the run")
        finally:
            self._done.set()

    def _report_place(self) -> None:
        """Report where the journals are, if that is news, and that their data is served by another machine."""
        notices = new_notices(self._places)
        if self._online and self._may_start_agent:
            named, kept = os.environ.get("CHIPLOG_COLLECTOR"), remembered_collector(self._places.agent)
            if named and kept is not None and kept.is_configured and kept.address != named:
                notices.append(f"this node's agent delivers to {kept.address}, not to {named} of CHIPLOG_COLLECTOR")
            elif not named and kept is not None and not kept.is_configured:  # safeguard: rank-reports-former-collector
                why = "the collector that an earlier run named, because not all is delivered there"
                notices.append(f"this run goes to {kept.address}, {why}; see chiplog status")
            elif not named and kept is None:
                notices.append(served_elsewhere(self._places))
        for notice in filter(None, notices):
            self._warn(notice)

    def _offline_loop(self, until: float = float("inf")) -> None:
        """Maintain the journal until `until`, or until the end of the run."""
        while self._deadline == float("inf") and time.monotonic() < until:
            self._maintain()
            self._asleep.acquire(timeout=SEND_INTERVAL_S)
        self._maintain()

    def _open(self) -> tuple[zmq.Context[zmq.Socket[bytes]] | None, DeliveryClient] | None:
        """Return a context and a client as soon as they can be opened; None if the run ends before.

        The first try is also that of a run that has ended already: a short one ends before its thread comes here.
        """
        backoff, has_warned = Backoff(_OPEN_AGAIN_MIN_S, _OPEN_AGAIN_MAX_S), False
        while True:
            try:
                require_free_fds()
                check_connect(self._address)
                keys = Keys(keys_dir(None, os.environ, self._places.root))
                curve = client_curve(keys, self._address, Role.RANK, Role.AGENT)
                # Use libzmq only if keys need it: it aborts the process if the training closes one of its descriptors.
                # safeguard: no-zmq-without-keys
                context: zmq.Context[zmq.Socket[bytes]] | None = None if curve is None else zmq.Context()
            except ValueError as error:  # a bad address, or keys that are missing or readable by others
                self._report(f"no agent can be reached: {error}", "the journal keeps everything until one adopts it")
                self._offline_loop()
            except (OSError, zmq.ZMQError) as error:  # safeguard: unreadable-keys-end-nothing
                if not has_warned:
                    has_warned = True
                    self._report(f"the agent cannot be reached yet: {error}", "the journal keeps everything")
                self._offline_loop(time.monotonic() + backoff.next_s())  # safeguard: descriptors-checked-again
            else:
                journal = self._journal
                return context, DeliveryClient(
                    context, self._address, journal.producer, self._info, journal, curve=curve
                )
            if self._deadline != float("inf"):
                return None

    def _send_loop(self) -> None:
        opened = self._open()
        if opened is None:
            return
        context, link = opened
        has_warned = False
        start_at = time.monotonic() + _START_AFTER_S
        if self._probe_at == 0.0:
            self._probe_at = time.monotonic() + _PROBE_AFTER_S
        try:
            while True:
                now = time.monotonic()
                self._maintain()
                link.poll(now)
                self._report_health(link, now)
                if link.handshake_error and not has_warned:
                    has_warned = True
                    self._report(link.handshake_error, "the journal keeps everything")
                if link.is_open:
                    self._probe_at = float("inf")
                elif now >= self._probe_at and self._must_use_own_agent():  # safeguard: unreachable-agent-reported
                    link.close()
                    link = DeliveryClient(
                        None, self._places.agent_address, self._journal.producer, self._info, self._journal
                    )
                if not link.is_open and self._may_start_agent and now >= start_at and not self._is_served(link):
                    start_at = now + (_START_AGAIN_S if self._start_agent() else _POLL_INTERVAL_S)
                if self._deadline != float("inf"):
                    if self._has_ended(link, now):
                        return
                    link.request_ack()  # safeguard: finish-requests-acknowledgement
                    link.wait(_FINISH_POLL_MS / 1000)
                elif link.is_blocked:
                    link.wait(SEND_INTERVAL_S)
                else:
                    self._asleep.acquire(timeout=self._interval_s(link))
        finally:
            link.close()
            if context is not None and link.socket is None:
                context.term()

    def _report_health(self, link: DeliveryClient, now: float) -> None:
        if self._health is not None and (values := self._health.turn(now, is_open=link.is_open)):
            link.report(values, now)

    def _is_served(self, link: DeliveryClient) -> bool:
        """Return True if an agent will answer. Another could not take its lock, or would take it after its end."""
        # safeguard: slow-agent-awaited
        return link.is_answered and lock_holder_pid(self._places.agent / "lock") != 0

    def _interval_s(self, link: DeliveryClient) -> float:
        """Return the pause before the next tick."""
        if not link.is_open:
            return SEND_INTERVAL_S / 2
        is_busy = link.protocol.in_flight_bytes >= _BUSY_BYTES  # safeguard: busy-journal-sent-often
        is_queried = link.protocol.is_queried  # safeguard: queried-rank-sends-often
        return SEND_INTERVAL_S if is_busy or is_queried or self._must_hurry() else SEND_INTERVAL_SLOW_S

    def _has_ended(self, link: DeliveryClient, now: float) -> bool:
        """Return True if everything is delivered or the time for it is over. Then report or start a missing agent."""
        self.delivered = self._journal.acked >= self._journal.next_seq
        if not self.delivered and now < self._deadline:
            return False
        if not (self.delivered or link.is_open):
            if self._probe_at != float("inf"):
                self._must_use_own_agent()
            if self._may_start_agent:
                self._start_agent(_LAST_POLL_S)  # the previous agent may have been exiting
        return True

    def _must_use_own_agent(self) -> bool:
        """Report why the named agent cannot be reached; return True if it belongs to another user.

        In that case a retry does not help, and this user's own agent delivers the journal to the same collector. An
        agent that does not listen may be starting: retry, and it finds the journal if it serves this directory.
        """
        self._probe_at = float("inf")
        found = probe(self._address)
        if found is None:
            return False
        trouble = f"agent {self._address} cannot be reached: {found.text}"
        kept = f"the journal in {self._places.journals} is kept"
        if found.reason is not Reason.DENIED:
            self._report(trouble, f"{kept} until an agent delivers it: start that one, or run `chiplog up`")
            return False
        self._report(trouble, f"{kept}, and this user's own agent delivers it; unset CHIPLOG_AGENT to use that one")
        self._may_start_agent = True  # safeguard: own-agent-delivers
        return True

    def _maintain(self) -> None:
        self._journal.declare_dropped()
        self._journal.preallocate()
        self._journal.keep_files(time.monotonic())
        self._on_tick()

    def _start_agent(self, just_now_s: float = STARTING_S) -> bool:
        """Start an agent; return True if this process started it and no other had just done so."""
        is_started, trouble = self._try_agent(just_now_s)
        if trouble:
            self._warn(trouble)
        return is_started

    def _try_agent(self, just_now_s: float = STARTING_S) -> tuple[bool, str]:
        """Return the same, and one line if the agent could not be started."""
        try:
            lock = self._places.agent / "lock"
            kept = remembered_collector(self._places.agent)
            if kept is None and not lock_holder_pid(lock) and not has_collector(os.environ):
                return True, NO_COLLECTOR
            if kept is not None and lock_holder_pid(lock) == 0:  # safeguard: keys-of-stand-in-checked
                client_curve(Keys(Path(kept.keys)), kept.address, Role.AGENT, Role.COLLECTOR)
            return start_daemon_once(AGENT_MODULE, ["--embedded"], self._places, lock, just_now_s), ""
        except (OSError, ValueError) as error:  # ValueError: keys that it lacks, or may not read
            # safeguard: failed-agent-start-retried
            if self._journal.directory is None:  # the same directory refused the journal: reported
                return True, ""
            return True, f"no agent could be started: {error}; the journal keeps everything until one runs"

    def _report(self, trouble: str, kept: str) -> None:
        """Warn, and add where the events are in the meantime. kept: of a journal on disk."""
        is_on_disk = self._journal.directory is not None
        self._warn(f"{trouble}; {kept if is_on_disk else 'events are kept in memory, bounded, until an agent answers'}")
