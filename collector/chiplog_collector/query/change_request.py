"""A request that the writer answers, not a query thread: a change, or a wait for a position in the log."""

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


Others = Callable[[str], Elsewhere | None]  # by run ID; None if no other collector has it
