"""Answer edits at other collectors of a store: the own row of a run changes by a record of the own log.

A collector that is asked to edit a run logs that, whether it has a part of the run or not. The row `run_edited` of its
`events` passes the edit on. Each collector that has the run repeats it under the same ID, so once. Of two edits of a
field the later one counts, by the time at which their collectors received them.
"""

import logging
import threading
from collections.abc import Callable, Sequence

import duckdb

from chiplog_collector.index.apply.state import Run, State
from chiplog_collector.query.change_request import ChangeRequest, Edit, own_request
from chiplog_schemas.model.change_record import Action
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import QueryMessageKind

AGAIN_S = 60.0  # after an error
_log = logging.getLogger("chiplog.index")


class EditRequests:
    """Requests what was edited at other collectors. `note_news` is for any thread, the rest for the writer's.

    Args:
        read: Returns the edits of all logs. Raises duckdb.Error.
        submit: Passes a request on.
    """

    def __init__(self, read: Callable[[], Sequence[Edit]], submit: Callable[[ChangeRequest], None]) -> None:
        self._read = read
        self._submit = submit
        self._has_news = threading.Event()
        self._has_news.set()  # of before this process
        self._not_before = 0.0
        self._open: set[bytes] = set()
        self._refused: set[bytes] = set()  # of a newer collector: no later try changes that

    def note_news(self) -> None:
        """Note that another log has new rows of events."""
        self._has_news.set()

    def turn(self, state: State, now: float) -> None:
        """Request what is due. Call it while the index keeps up. now: CLOCK_MONOTONIC."""
        if self._open or now < self._not_before or not self._has_news.is_set():
            return
        self._has_news.clear()
        try:
            found = self._read()
        except duckdb.Error as error:
            _log.warning("edits of other collectors cannot be read: %s", str(error).partition("\n")[0])
            self._try_later(now)
            return
        for edit in due_edits(state, found):
            if edit.id not in self._refused:
                self._request(edit, now)

    def _request(self, edit: Edit, now: float) -> None:
        def answered(_: ChangeRequest, frames: list[bytes]) -> None:
            self._open.discard(edit.id)
            answer = query_messages.parse(frames)
            if answer.kind == QueryMessageKind.DONE:
                _log.info("run %s is edited, as at another collector", edit.run_id)
                return
            _log.warning("run %s, which another collector edited, stays: %s", edit.run_id, answer.message)
            if answer.error_kind == "refused":
                self._refused.add(edit.id)
            else:
                self._try_later(now)

        self._open.add(edit.id)
        arguments = {"run": edit.run_id, "fields": dict(edit.fields), "answer": True}
        self._submit(own_request(Action.EDIT, arguments, now, answered, edit.id))

    def _try_later(self, now: float) -> None:
        self._has_news.set()
        self._not_before = now + AGAIN_S


def due_edits(state: State, edits: Sequence[Edit]) -> list[Edit]:
    """Return the edits to repeat here, in order, with the fields that no later edit has."""
    due, later = [], set()
    for edit in sorted(edits, key=lambda edit: (edit.received_us, edit.id), reverse=True):
        # safeguard: later-edit-counts
        fields = {name: value for name, value in edit.fields.items() if (edit.run_id, name) not in later}
        later |= {(edit.run_id, name) for name in fields}
        run = state.runs.get(edit.run_id)
        is_done = edit.id in state.managed  # safeguard: edit-repeated-once
        if fields and run is not None and not is_done and edit.received_us >= _begun_us(state, run):
            due.append(Edit(edit.received_us, edit.id, edit.run_id, fields))
    return due[::-1]


def _begun_us(state: State, run: Run) -> int:
    """Return when a run began here: an edit before that was of a run of the same ID that has been deleted."""
    return min((member.started_at or 0 for member in state.members.get(run.run, {}).values()), default=0)
