"""One query in progress, from its arrival to its answer."""

import threading
from dataclasses import dataclass, field
from typing import Any

from chiplog_schemas.query import query_messages
from chiplog_schemas.query.execute import timeout_of
from chiplog_schemas.query.result_file import ResultFile
from chiplog_schemas.security.zap import AuthenticatedClient, PeerConnection

STOPPING = "the collector is stopping; ask again later"
_CANCELLED = "the query was cancelled by its client"


@dataclass(frozen=True, slots=True)
class LargeResult:
    """A result that its client reads in parts."""

    file: ResultFile
    n_rows: int


Answer = list[Any] | LargeResult


@dataclass(slots=True)
class QueryJob:
    """One query in progress.

    The lock orders its end and its interruption, so that the next query is not interrupted.
    """

    peer: bytes
    client: AuthenticatedClient
    connection: PeerConnection | None
    id: bytes
    sql: str
    params: list[Any] | dict[str, Any] | None
    timeout_s: float
    arrived: float
    digest: bytes = b""
    flush: int = 0  # of the index, which the query must see
    place: int = -1  # among the running queries
    time_zone: str = ""
    bytes_max: int = 0  # above it the client takes the result in parts; 0: never
    deadline: float = 0.0
    begun: float | None = None  # set when it runs, after the guard admitted it
    timed_out: bool = False
    is_cut_off: bool = False  # because the collector stops, not because of its time limit
    is_cancelled: bool = False  # by its client
    is_answered: bool = False
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_abandoned(self) -> bool:
        """Return True if the client has closed its connection."""
        return self.connection is not None and self.connection.is_closed

    def timeout(self) -> list[bytes]:
        """Return the answer that the query was cancelled, took too long, or has no time left."""
        if self.is_cancelled:
            return query_messages.failure(self.id, "cancelled", _CANCELLED)
        if self.is_cut_off:
            return query_messages.failure(self.id, "stopping", STOPPING)
        return query_messages.failure(self.id, *timeout_of(self.timeout_s))
