"""The agent's report on its collector and, if embedded, the start of a collector when none answers."""

import logging
from collections.abc import Callable

from chiplog_schemas.paths import Paths
from chiplog_schemas.process.daemon import COLLECTOR_MODULE, has_collector, start_daemon
from chiplog_schemas.process.log_owner import belongs_elsewhere
from chiplog_schemas.protocol.sender import SenderState
from chiplog_schemas.transport.dealer import DeliveryClient
from chiplog_schemas.transport.link_status import LinkState, remove_link_status, write_link_status

NOT_INSTALLED = "it is not installed here; pip install chiplog, or name one by --collector"
_START_AFTER_S = 0.1  # a running collector answers within this time; otherwise one is started …
_START_AGAIN_S = 5.0  # … and again when that one did not come up
_log = logging.getLogger("chiplog.agent")


class CollectorSupervisor:
    """Supervises the collector at the other end of a link.

    may_start: whether this agent may start a collector. emit_elsewhere: adds a row to `events` when this directory's
    data belongs to a collector on another machine. report_fault: logs a failure that will be retried.
    """

    def __init__(
        self,
        link: DeliveryClient,
        places: Paths,
        emit_elsewhere: Callable[[str, float], None],
        report_fault: Callable[[str, Exception], None],
        *,
        may_start: bool,
        now: float,
    ) -> None:
        self._delivery = link
        self._places = places
        self._emit_elsewhere = emit_elsewhere
        self._report_fault = report_fault
        self._may_start = may_start
        self._start_at = now + _START_AFTER_S
        self._has_warned = False
        self._reported = ""
        self._refused = 0  # events, as last reported
        self._kept: int | None = None  # events, as last seen; the first time those that were refused before this start
        self.n_refused = 0  # events since the start
        self._report(LinkState.CONNECTING, f"collector {link.address} has not answered yet")

    def on_change(self, state: SenderState, reason: str) -> None:
        """Log whether the collector answers: once per change, however many retries there are."""
        if state is SenderState.OPEN:
            text, link_state = f"collector {reason} answers", LinkState.OPEN
        elif state is SenderState.CLOSED:
            text, link_state = f"collector {self._delivery.address} is out of reach: {reason}", LinkState.CLOSED
        else:
            return
        if text != self._reported:  # safeguard: state-change-reported-once
            self._reported = text
            _log.log(logging.WARNING if link_state is LinkState.CLOSED else logging.INFO, "%s", text)
            self._report(link_state, text)

    def poll_refused(self, report: Callable[[str, int], None]) -> None:
        """Report how many events the collector keeps without applying them, whenever that begins, doubles or ends.

        report: adds a row to `events`.
        """
        former, self._kept = self._kept, self._delivery.protocol.refused
        if former is not None and self._kept is not None:
            self.n_refused += max(0, self._kept - former)
        refused = (self._kept or 0) if self._delivery.is_open else self._refused
        if (refused and self._refused <= refused < 2 * self._refused) or refused == self._refused:
            return
        self._refused = refused
        text = f"collector {self._delivery.address} answers"
        if refused:
            text += (
                f", and refuses {refused} events of other nodes than the key of this agent: they are kept there; "
                "the rows `refused_node` of events name them, and chiplog keys allow --node admits them"
            )
            _log.warning("%s", text)
            report(text, refused)
        else:
            _log.info("%s, and no longer refuses any events", text)
        self._reported = text
        self._report(LinkState.REFUSING if refused else LinkState.OPEN, text)

    def close(self) -> None:
        """Remove the report: no process watches the link from now on."""
        remove_link_status(self._places.agent_link)

    def _report(self, state: LinkState, text: str) -> None:
        try:
            write_link_status(self._places.agent_link, state, text)
        except OSError as error:
            remove_link_status(self._places.agent_link)  # an outdated state must not remain
            self._report_fault("the state of the link cannot be reported to `chiplog status`", error)

    def ensure_running(self, now: float) -> None:
        """Start a collector if none answers and this directory's data does not belong to another machine."""
        if not self._may_start or self._delivery.is_open or now < self._start_at:
            return
        self._start_at = now + _START_AGAIN_S
        try:
            if not has_collector({}):
                raise FileNotFoundError(NOT_INSTALLED)
            if not (elsewhere := belongs_elsewhere(self._places)):
                start_daemon(COLLECTOR_MODULE, ["--embedded"], self._places)
            elif not self._has_warned:
                self._has_warned = True
                _log.warning("%s", elsewhere)
                self._emit_elsewhere(elsewhere, now)
        except OSError as error:
            self._report_fault("no collector could be started, and the spool keeps everything", error)
