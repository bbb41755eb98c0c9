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
