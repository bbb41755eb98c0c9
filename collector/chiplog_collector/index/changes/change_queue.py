"""From a client's request for a change to its answer: one record of the log after the other, until all are applied.

The threads that answer clients submit; the writer's thread does the rest, in `turn`. A record goes to the receiver
through a socket, because only the receiver writes the log, and comes back through the log as any other.
"""

import logging
import queue
import socket
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from chiplog_collector.index.apply.state import State
from chiplog_collector.index.changes.change_plan import Plan, RequestRefused, plan_request
from chiplog_collector.query.change_request import ChangeRequest, Others
from chiplog_schemas.model.change_record import encode_change
from chiplog_schemas.query import query_messages

_NONE: Mapping[bytes, str] = MappingProxyType({})
CHANGE_WAIT_S = 30.0  # for a record to be synced and applied; a disk that refuses may take longer
_log = logging.getLogger("chiplog.index")
_LATE = "the change is not applied yet, because the collector's log cannot be written or is behind; ask again later"


class ChangeQueue:
    """Carries out changes, one request at a time. channel: to the receiver; None: there is none, and all are refused.

    wake: called after each submission, from the submitting thread. elsewhere: see `plan_request`.
    """

    def __init__(
        self,
        channel: socket.socket | None = None,
        wake: Callable[[], Any] = lambda: None,
        elsewhere: Others = lambda run_id: None,
    ) -> None:
        self._channel = channel
        self._elsewhere = elsewhere
        self._wake = wake
        self._submitted: queue.SimpleQueue[ChangeRequest] = queue.SimpleQueue()
        self._waiting: deque[ChangeRequest] = deque()  # for the current change to end
        self._waits: list[ChangeRequest] = []  # for a position in the log
        self._current: ChangeRequest | None = None
        self._plan = Plan([])
        self._is_sent = False  # the first change of the plan is on its way
        self._has_begun = False  # the receiver has one of the plan's changes: the rest follows, however long it takes

    def submit(self, request: ChangeRequest) -> None:
        """Take a request. Its `answer` is called once, later."""
        self._submitted.put(request)
        self._wake()

    def turn(
        self,
        state: State,
        next_number: int,
        now: float,
        *,
        failed: Mapping[bytes, str] = _NONE,
        is_behind: bool = False,
    ) -> None:
        """Continue. Called by the writer after each transaction.

        next_number: how far the log is applied. failed: by ID, the changes that were set aside since the last turn, and
        why. is_behind: the log has more. Then no request is begun: what it concerns is not known yet.
        """
        if self._current is not None and self._is_sent and self._plan.changes[0].id in failed:
            reason = f"the change cannot be applied: {failed[self._plan.changes[0].id]}"
            _log.warning("%s", reason)
            self._end(query_messages.failure(self._current.id, "refused", reason))  # safeguard: failed-change-answered
        while not self._submitted.empty():
            request = self._submitted.get()
            is_wait = request.question.kind == query_messages.QueryMessageKind.WAIT
            (self._waits if is_wait else self._waiting).append(request)
        for wait in list(self._waits):
            if next_number >= wait.question.number or now >= wait.arrived + wait.question.timeout_s:
                self._waits.remove(wait)
                wait.answer(wait, query_messages.done(wait.id, {"number": next_number}))
        while self._step(state, now, is_behind=is_behind):
            pass

    def _step(self, state: State, now: float, *, is_behind: bool) -> bool:
        """Return True if there may be more to do at once."""
        if self._current is None:
            if not self._waiting:
                return False
            if is_behind:  # safeguard: request-planned-on-whole-log
                return self._refuse_late(now)
            self._begin(self._waiting.popleft(), state)
            return True
        request = self._current
        if not self._plan.changes:
            self._end(query_messages.done(request.id, self._plan.info))
            return True
        change = self._plan.changes[0]
        if self._is_sent and change.id in state.managed:
            self._plan.changes.pop(0)
            self._is_sent = False
            return True
        if not self._has_begun and now >= request.arrived + CHANGE_WAIT_S:
            self._end(query_messages.failure(request.id, "busy", _LATE))
            return True
        if not self._is_sent:
            self._is_sent = self._send(encode_change(change))
            self._has_begun = self._has_begun or self._is_sent
        return False

    def _refuse_late(self, now: float) -> bool:
        """Refuse the oldest request if it has waited too long; return True if so."""
        request = self._waiting[0]
        if now < request.arrived + CHANGE_WAIT_S:
            return False
        self._waiting.popleft()
        request.answer(request, query_messages.failure(request.id, "busy", _LATE))
        return True

    def _begin(self, request: ChangeRequest, state: State) -> None:
        self._current, self._plan, self._is_sent, self._has_begun = request, Plan([]), False, False
        question = request.question
        try:
            if self._channel is None:
                raise RequestRefused("changes are not possible here; start the collector and ask it")
            self._plan = plan_request(state, question.id, question.action, question.arguments, self._elsewhere)
        except RequestRefused as error:
            self._end(query_messages.failure(request.id, "refused", str(error)))
        except Exception as error:  # whatever a client sends must not end the index
            _log.exception("a request for a change cannot be planned")
            # safeguard: bad-request-costs-itself
            self._end(query_messages.failure(request.id, "internal", f"{type(error).__name__}: {error}"))

    def _end(self, frames: list[bytes]) -> None:
        request, self._current = self._current, None
        assert request is not None
        request.answer(request, frames)

    def _send(self, payload: bytes) -> bool:
        """Pass a record to the receiver, in one piece. False: it does not take any now, because its disk refuses."""
        assert self._channel is not None
        try:
            self._channel.send(payload, socket.MSG_DONTWAIT)
        except OSError:  # it is full; or the receiver has ended, and this process will, too
            return False
        return True
