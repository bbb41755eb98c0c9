"""A request that the writer answers, not a query thread: a change, or a wait for a position in the log."""

from collections.abc import Callable
from dataclasses import dataclass, field

from chiplog_schemas.query.query_messages import QueryMessage
from chiplog_schemas.security.zap import AuthenticatedClient


@dataclass(eq=False, slots=True)
class ChangeRequest:
    """A request without an answer yet.

    answer: sends the frames of the answer; called once, from any thread. arrived: CLOCK_MONOTONIC.
    """

    peer: bytes
    client: AuthenticatedClient
    question: QueryMessage
    arrived: float
    answer: Callable[["ChangeRequest", list[bytes]], None] = field(repr=False)

    @property
    def id(self) -> bytes:
        """The ID of the client's message."""
        return self.question.id


Submit = Callable[[ChangeRequest], None]  # passes a request to the writer, from any thread
