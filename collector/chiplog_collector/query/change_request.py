"""A request that the writer answers, not a query thread: a change, or a wait for a position in the log.

And what other collectors of a store have to do with changes.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chiplog_schemas.model.change_record import REQUEST_ID_BYTES, Action
from chiplog_schemas.query.query_messages import QueryMessage, QueryMessageKind
from chiplog_schemas.security.zap import LOCAL, AuthenticatedClient

Answer = Callable[["ChangeRequest", list[bytes]], None]


@dataclass(eq=False, slots=True)
class ChangeRequest:
    """A request without an answer yet.

    answer: sends the frames of the answer; called once, from any thread. arrived: CLOCK_MONOTONIC.
    """

    peer: bytes
    client: AuthenticatedClient
    question: QueryMessage
    arrived: float
    answer: Answer = field(repr=False)

    @property
    def id(self) -> bytes:
        """The ID of the client's message."""
        return self.question.id


Submit = Callable[[ChangeRequest], None]  # passes a request to the writer, from any thread


def own_request(
    action: Action, arguments: Mapping[str, Any], now: float, answer: Answer, id: bytes = b""
) -> ChangeRequest:
    """Return a request of the index itself for a change. now: CLOCK_MONOTONIC. id: else a random one."""
    id = id or os.urandom(REQUEST_ID_BYTES)
    question = QueryMessage(QueryMessageKind.MANAGE, id, action=action.value, arguments=dict(arguments))
    return ChangeRequest(b"", LOCAL, question, now, answer)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A run of which only other collectors of a store have something.

    Attributes:
        run_id: Its ID.
        hosts: Of these collectors.
        running: The labels that are not over, as far as is known here.
        can_ask: True if these collectors can be asked to delete it. Who only reads a store cannot.
    """

    run_id: str
    hosts: tuple[str, ...]
    running: tuple[str, ...] = ()
    can_ask: bool = True


@dataclass(frozen=True, slots=True)
class Edit:
    """A row `run_edited` of `events`, of any log.

    Attributes:
        received_us: When its collector received it.
        id: That of the request.
        run_id: The run.
        fields: The entries that were set; None clears one.
    """

    received_us: int
    id: bytes
    run_id: str
    fields: Mapping[str, Any]


def edit_of(received_us: int, body: str) -> Edit | None:
    """Return the edit of a row of `events`; None if another collector wrote what is none."""
    try:
        about = json.loads(body)
        id, run_id, fields = bytes.fromhex(about["request"]), about["run_id"], about["fields"]
    except (ValueError, TypeError, KeyError):  # safeguard: foreign-edit-ends-no-index
        return None
    is_edit = len(id) == REQUEST_ID_BYTES and isinstance(run_id, str) and isinstance(fields, dict)
    return Edit(received_us, id, run_id, fields) if is_edit else None


Others = Callable[[str], Elsewhere | None]  # by run ID; None if no other collector has it
