"""Cut what the index holds into pieces for a store: whole flushes, every 10 s, as sorted Parquet files in the outbox.

Where so much arrives that a piece is full earlier, it is cut then: a row waits less, and the work is spread evenly.

A thread of the index with its own cursor: neither the writer nor a query waits for it. What a piece holds is decided by
the number of the flush that wrote each row, so a piece that was not finished is cut again from the same rows.
"""

import logging
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import duckdb

from chiplog_collector.priority import lower_thread
from chiplog_collector.store.outbox import Outbox, Piece
from chiplog_collector.store.parquet_files import row_count, write_rows
from chiplog_collector.store.published_tables import COMPLETE, PUBLISHED, PublishedTable, published_query, rows_of
from chiplog_schemas._version import __version__
from chiplog_schemas.sql import series_sql

PIECE_S = 10.0  # between two pieces: as fresh as the page of a running training needs, at some requests a minute
PIECE_ROWS = 2_000_000  # sorted and encoded in a second of one core; a file of 10 MB, which compaction merges
OUTBOX_BYTES_MAX = 4 << 30  # half a day of 20,000 rows/s while the store is away; then pieces wait in the log
_POLL_S = 0.5  # for the publisher's first answer, and while the outbox is full
_PAUSE_MIN_S = 1.0  # after a burst, which says little about what comes next
_AGAIN_S = 10.0  # after the disk or the memory refused
_log = logging.getLogger("chiplog.index")


class PieceCutter:
    """Cuts pieces until it is closed."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, log_id: bytes, outbox: Outbox, url: str) -> None:
        """Use a cursor of the index. log_id: the ID of its log. url: of the store."""
        self._url = url
        self._cursor = connection.cursor()
        self._log = log_id.hex()
        self._outbox = outbox
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chiplog-pieces", daemon=True)
        self._is_refused = False
        self._looked_at = time.monotonic()  # when `next_piece` was asked last
        self._n_left = 0  # rows that waited after that piece

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Cut what is left, and end the thread. Call it after the last flush."""
        self._closing.set()
        self._thread.join()
        self._cursor.close()

    def _run(self) -> None:
        lower_thread()
        pause_s = 0.0
        while not self._closing.wait(pause_s):
            pause_s = self._turn()
        while self._turn() == 0.0:
            pass

    def _turn(self) -> float:
        """Cut one piece, if it is due and possible. Return how long to wait, in seconds."""
        try:
            waiting = self._outbox.ends()  # safeguard: waiting-pieces-read-before-published
            published = self._outbox.published()
            if published is None or published.is_foreign or (published.log, published.url) != (self._log, self._url):
                return _POLL_S
            is_full = self._outbox.size_bytes() > OUTBOX_BYTES_MAX
            after = max([published.until, *waiting])
            pause_s = _POLL_S if is_full else self._cut(after, published.positions.values())
            if self._is_refused:
                _log.info("pieces for the store can be cut again")
            self._is_refused = False
            return pause_s
        except (duckdb.Error, OSError) as error:  # safeguard: uncut-piece-stops-nothing
            if not self._is_refused:
                _log.warning("a piece for the store cannot be cut: %s; trying again", str(error).partition("\n")[0])
            self._is_refused = True
            return _AGAIN_S

    def _cut(self, after: int, ends: Iterable[int]) -> float:
        """Cut the piece after a record, if there is one. Return how long to wait, in seconds."""
        now = time.monotonic()
        until, day, n_rows, n_left = next_piece(self._cursor, after, ends) or (after, "", 0, 0)
        pause_s = full_in_s(n_left, n_rows + n_left - self._n_left, now - self._looked_at)
        self._looked_at, self._n_left = now, n_left
        if n_rows:
            self._outbox.add(lambda directory: self._write(directory, after, until, day))
        if n_left and self._closing.is_set():
            return 0.0
        return max(0.0, now + pause_s - time.monotonic())

    def _write(self, directory: Path, after: int, until: int, day: str) -> Piece:
        rows = {}
        for table in PUBLISHED:
            count = write_table(self._cursor, table, self._log, after, until, directory / f"{table.name}.parquet")
            if count:
                rows[table.name] = count
        write_completion(self._cursor, self._log, after, until, sum(rows.values()), directory / f"{COMPLETE}.parquet")
        return Piece(self._log, after, until, day, rows, uuid.uuid4().hex[:16])


def next_piece(
    connection: duckdb.DuckDBPyConnection, after: int, ends: Iterable[int] = ()
) -> tuple[int, str, int, int] | None:
    """Return the piece after a record: its last record, its day of receipt, its rows, and the rows after it.

    None if there is no row.

    ends: records at which a piece must end, because some tables have it and others do not.
    """
    counted = " UNION ALL ".join(
        f"SELECT {table.number} AS flush, count(*) AS n FROM base.{source} WHERE {table.number} > $after GROUP BY ALL"
        for table in PUBLISHED
        if not table.is_series
        for source in table.sources
    )
    query = f"""SELECT c.flush, c.n, coalesce(d.day, DATE '1970-01-01')::VARCHAR FROM (
        SELECT flush, sum(n)::BIGINT AS n FROM ({counted}) GROUP BY flush
    ) c ASOF LEFT JOIN base.receipt_days d ON c.flush >= d.flush ORDER BY c.flush"""
    end = min((number for number in ends if number > after), default=None)
    n_rows, until, day = 0, after, ""
    waiting = connection.execute(query, {"after": after}).fetchall()
    for flush, n, flush_day in waiting:
        is_beyond = end is not None and flush > end
        # safeguard: piece-within-one-day
        if n_rows and (n_rows + n > PIECE_ROWS or flush_day != day or is_beyond):
            break
        n_rows, until, day = n_rows + n, flush, flush_day
    return (until, day, n_rows, sum(n for _, n, _ in waiting) - n_rows) if n_rows else None


def full_in_s(n_left: int, n_new: int, in_s: float) -> float:
    """Return how long to wait until a piece is full.

    Args:
        n_left: The rows that wait for it.
        n_new: The rows that came lately.
        in_s: In this time.
    """
    if n_left >= PIECE_ROWS:
        return 0.0
    expected_s = (PIECE_ROWS - n_left) * in_s / n_new if n_new > 0 else PIECE_S
    return min(max(_PAUSE_MIN_S, expected_s), PIECE_S)


def write_completion(
    connection: duckdb.DuckDBPyConnection, log: str, after: int, until: int, n_rows: int, path: Path
) -> None:
    """Write the row that is committed after all other tables of a piece."""
    given = {
        "log": log,
        "after": after,
        "until": until,
        "host": socket.gethostname(),
        "version": __version__,
        "rows": n_rows,
    }
    found = connection.sql(
        """SELECT $log::VARCHAR AS log, $until::BIGINT AS number, $after::BIGINT AS after, $host::VARCHAR AS host,
           $version::VARCHAR AS version, now() AS cut_at, $rows::BIGINT AS n_rows""",
        params=given,
    )
    write_rows(found, path)


def write_table(
    connection: duckdb.DuckDBPyConnection, table: PublishedTable, log: str, after: int, until: int, path: Path
) -> int:
    """Write the rows that a piece has of a table, sorted, as a Parquet file; return their number, 0 without a file."""
    between = {"after": after} if table.is_dimension else {"after": after, "until": until}
    rows = rows_of(table)
    [(count,)] = connection.execute(f"SELECT count(*) FROM ({rows})", between).fetchall()
    if not count:
        return 0
    types = dict(connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE {rows})", between).fetchall())
    query = published_query(table, types, series_sql(rows) if table.is_series else rows)
    found = connection.sql(query, params={"log": log, "after": after, "until": until})
    write_rows(found, path)
    return row_count(path) if table.is_series else int(count)
