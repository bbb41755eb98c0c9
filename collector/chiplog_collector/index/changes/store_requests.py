"""Answer the deletions of other collectors of a store: the own part of a run is deleted by a record of the own log."""

import logging
from collections.abc import Callable
from hashlib import blake2b

from chiplog_collector.index.apply.state import State
from chiplog_collector.query.change_request import ChangeRequest, own_request
from chiplog_collector.store.deletion_requests import DeletionRequest, DeletionRequests
from chiplog_schemas.model.change_record import REQUEST_ID_BYTES, Action
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import QueryMessageKind

LOOK_S = 2.0  # two small files
AGAIN_S = 60.0  # after a refusal: labels of the run are not over, or the disk refuses
_log = logging.getLogger("chiplog.index")


class StoreRequests:
    """Requests what other collectors have deleted. One thread: the writer's.

    Args:
        requests: What they have deleted.
        submit: Passes a request on.
        applied: Returns the number of the last record that was applied.
    """

    def __init__(
        self, requests: DeletionRequests, submit: Callable[[ChangeRequest], None], applied: Callable[[], int]
    ) -> None:
        self._requests = requests
        self._submit = submit
        self._applied = applied
        self._due_at = 0.0
        self._open: set[DeletionRequest] = set()
        self._not_before: dict[DeletionRequest, float] = {}

    def turn(self, state: State, now: float) -> None:
        """Request what is due. Call it while the index keeps up. now: CLOCK_MONOTONIC. Raises OSError."""
        if now < self._due_at:
            return
        self._due_at = now + LOOK_S
        for request in self._requests.waiting():
            if request in self._open or now < self._not_before.get(request, 0.0):
                continue
            if request.run_id not in state.runs:
                self._requests.note_answer(request, self._applied())
            else:
                self._request(request, now)

    def _request(self, request: DeletionRequest, now: float) -> None:
        def answered(_: ChangeRequest, frames: list[bytes]) -> None:
            self._open.discard(request)
            answer = query_messages.parse(frames)
            if answer.kind == QueryMessageKind.DONE:
                _log.info("run %s is deleted, as in log %s", request.run_id, request.log)
                try:
                    self._requests.note_answer(request, self._applied())
                except OSError:
                    self._not_before[request] = now + AGAIN_S
                return
            if request not in self._not_before:
                _log.warning("run %s, which log %s deleted, stays: %s", request.run_id, request.log, answer.message)
            self._not_before[request] = now + AGAIN_S  # safeguard: refused-request-asked-again

        self._open.add(request)
        arguments = {"runs": [request.run_id], "why": f"deleted in log {request.log}", "answer": True}
        self._submit(own_request(Action.DELETE, arguments, now, answered, _id(request)))


def _id(request: DeletionRequest) -> bytes:
    """Return the same ID after each restart: what was carried out is not carried out again."""
    named = f"{request.log} {request.number} {request.run_id}".encode()
    return blake2b(named, digest_size=REQUEST_ID_BYTES).digest()
