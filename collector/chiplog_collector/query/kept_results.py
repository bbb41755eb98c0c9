"""Results that clients read in parts: each belongs to the connection that asked for it, and is dropped when it is idle.

Only the thread that owns the socket uses this. The transaction of such a query has ended: a result is a file.
"""

from dataclasses import dataclass

from chiplog_schemas.limits import RESULT_IDLE_S, RESULT_PART_BYTES, RESULTS_KEPT_MAX
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.result_file import ResultFile
from chiplog_schemas.security.zap import PeerConnection

_EXPIRED = (
    f"the result is no longer kept: no part of it was requested for {RESULT_IDLE_S:g} s, "
    "or the collector or the connection was restarted; ask again"
)


@dataclass(slots=True)
class _Kept:
    file: ResultFile
    n_rows: int
    connection: PeerConnection | None
    used_at: float


class KeptResults:
    """The results of one service, by connection and query. Times are CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, bytes], _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: tuple[bytes, bytes]) -> bool:
        return key in self._kept

    def keep(
        self,
        key: tuple[bytes, bytes],
        file: ResultFile,
        n_rows: int,
        connection: PeerConnection | None,
        now: float,
    ) -> list[bytes]:
        """Keep a result; return the answer to its query: the first part, or that too many are kept."""
        if len(self._kept) >= RESULTS_KEPT_MAX:  # safeguard: kept-results-bounded
            file.close()
            message = f"{RESULTS_KEPT_MAX} results are being read in parts; try again later"
            return query_messages.failure(key[1], "busy", message)
        self.drop(key)
        self._kept[key] = _Kept(file, n_rows, connection, now)
        return self.read_part(key, 0, RESULT_PART_BYTES, now)

    def read_part(self, key: tuple[bytes, bytes], offset: int, n_bytes: int, now: float) -> list[bytes]:
        """Return the answer to FETCH."""
        kept = self._kept.get(key)
        if kept is None:
            return query_messages.failure(key[1], "expired", _EXPIRED)
        kept.used_at = now
        try:
            data = kept.file.read(offset, n_bytes)
        except OSError as error:
            return query_messages.failure(key[1], "internal", f"a result cannot be read: {error}")
        return query_messages.result_part(key[1], kept.file.n_bytes, kept.n_rows, offset, data)

    def drop(self, key: tuple[bytes, bytes]) -> None:
        """Drop a result, if it is kept."""
        if (kept := self._kept.pop(key, None)) is not None:
            kept.file.close()

    def drop_idle(self, now: float) -> None:
        """Drop the results of closed connections, and those that no client has read for RESULT_IDLE_S."""
        for key, kept in list(self._kept.items()):
            is_gone = kept.connection is not None and kept.connection.is_closed
            if is_gone or now - kept.used_at > RESULT_IDLE_S:  # safeguard: idle-result-dropped
                self.drop(key)

    def close(self) -> None:
        """Drop all results."""
        for key in list(self._kept):
            self.drop(key)
