"""What `chiplog store status` shows: tables, collectors, and what the store costs."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from chiplog_collector.store.delta_store import DeltaStore, Heartbeat
from chiplog_collector.store.heartbeat import SILENT_S
from chiplog_collector.store.parquet_files import bounded_engine
from chiplog_collector.store.published_tables import COMPLETE, ORDERS

PRICES = "S3 Standard in us-east-1, https://aws.amazon.com/s3/pricing, 2024"  # source and date of what follows
DOLLARS_A_GB_MONTH = 0.023
DOLLARS_A_REQUEST = {"put": 5e-6, "list": 5e-6, "get": 0.4e-6}  # deletions are free
_DAYS_A_MONTH = 30.0
_DAY_S = 86_400.0
_MEASURED_S_MIN = 60.0  # a start reads each table, which says nothing about a day
_LOG_DIGITS = 8  # of an ID; more if two logs begin alike
_KB = 1000
_NONE = "–"


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table: rows, files, files that are not merged yet, bytes."""

    name: str
    n_rows: int
    n_files: int
    n_pieces: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class LogStatus:
    """One collector.

    Attributes:
        log: The ID of its log.
        host: Where it runs, as it last said.
        number: The record up to which its log is published.
        cut_at: When its newest published piece was cut.
        age_s: How old its heartbeat is; None if it has none.
        beat: The content of that.
        is_retired: True if it is gone for good.
    """

    log: str
    host: str
    number: int
    cut_at: datetime | None
    age_s: float | None
    beat: Mapping[str, Any]
    is_retired: bool = False


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A store. contents: number and bytes of the objects in it that are contents of saved files."""

    tables: list[TableStatus]
    logs: list[LogStatus]
    contents: tuple[int, int]


def look(store: DeltaStore) -> StoreStatus:
    """Return the state of a store. Raises StoreError, and OSError of this disk."""
    tables = []
    for name in ORDERS:
        if files := store.snapshot(name):
            n_rows, n_bytes = sum(file.n_rows for file in files), sum(file.size_bytes for file in files)
            tables.append(TableStatus(name, n_rows, len(files), sum(file.is_piece for file in files), n_bytes))
    beats = {beat.log: beat for beat in store.heartbeats()}
    # The clock of the store may be ahead of this one, by years.
    now = max([datetime.now(UTC), *(beat.written_at for beat in beats.values())])
    done, retired = _completed(store), store.retired()
    logs = [_log_status(log, done.get(log), beats.get(log), now, retired) for log in sorted({*done, *beats})]
    return StoreStatus(tables, logs, store.contents())


def _completed(store: DeltaStore) -> dict[str, tuple[str, int, datetime]]:
    """Return by log: host and last record of its newest piece, and when that was cut."""
    with tempfile.TemporaryDirectory() as directory, bounded_engine(Path(directory) / "spill") as engine:
        sources = store.fetch_all(COMPLETE, store.snapshot(COMPLETE), Path(directory))
        if not sources:
            return {}
        query = """SELECT log, arg_max(host, number), max(number), epoch_us(arg_max(cut_at, number))
            FROM read_parquet(?) GROUP BY log"""
        found = engine.execute(query, [sources]).fetchall()
    begin = datetime.fromtimestamp(0, UTC)
    return {log: (host, number, begin + timedelta(microseconds=cut_us)) for log, host, number, cut_us in found}


def _log_status(
    log: str, done: tuple[str, int, datetime] | None, beat: Heartbeat | None, now: datetime, retired: set[str]
) -> LogStatus:
    host, number, cut_at = done or ("", -1, None)
    content = beat.content if beat is not None else {}
    age_s = (now - beat.written_at).total_seconds() if beat is not None else None
    return LogStatus(log, str(content.get("host") or host), number, cut_at, age_s, content, log in retired)


def shown(status: StoreStatus) -> Iterator[RenderableType]:
    """Yield what is printed, which fits 80 columns."""
    tables = _table(table="left", rows="right", files="right", pieces="right", bytes="right")
    rows = [(table.n_rows, table.n_files, table.n_pieces, table.n_bytes) for table in status.tables]
    for table, row in zip(status.tables, rows, strict=True):
        tables.add_row(table.name, *(f"{number:,}" for number in row))
    if status.contents[0]:
        tables.add_row("contents", "", f"{status.contents[0]:,}", "", f"{status.contents[1]:,}")
        rows.append((0, status.contents[0], 0, status.contents[1]))
    total = [sum(column) for column in zip(*rows, strict=True)] or [0] * 4
    tables.add_row("total", *(f"{number:,}" for number in total), style="bold")
    yield tables
    yield ""
    yield from _shown_logs(status.logs)
    a_day = storage_dollars_a_day(total[3])
    living = [log for log in status.logs if not log.is_retired]
    publishing = sum(request_dollars(counts) for log in living if (counts := requests_a_day(log.beat)))
    yield ""
    yield f"a day of storage ${a_day:.2f}, of requests of publishers ${publishing:.2f}, if it were {PRICES}"
    for log in living:
        if log.beat.get("keeps_files"):
            yield (
                f"contents of saved files stay at {log.host} (CHIPLOG_STORE_FILES=0): they die with its disk, and "
                "no other reader has them"
            )


def _shown_logs(logs: list[LogStatus]) -> Iterator[RenderableType]:
    if not logs:
        yield "no collector has published to it"
        return
    digits = next(n for n in range(_LOG_DIGITS, 33) if len({log.log[:n] for log in logs}) == len(logs))
    table = _table(
        log="left",
        host="left",
        record="right",
        heard="right",
        lag="right",
        waits="right",
        requests="right",
        cost="right",
    )
    for log in logs:
        counts = None if log.is_retired else requests_a_day(log.beat)
        table.add_row(
            log.log[:digits],
            log.host,
            f"{log.number:,}" if log.number >= 0 else _NONE,  # none is published
            _heard(log),
            _lag(log),
            _waits(log.beat),
            _NONE if counts is None else f"{sum(counts.values()):,.0f}",
            _NONE if counts is None else f"${request_dollars(counts):.2f}",
        )
    yield table
    yield "lag: of what waits at a collector; waits: pieces in its outbox; requests and cost: of a day"


def _heard(log: LogStatus) -> Text:
    if log.is_retired:
        return Text("retired")
    is_silent = log.age_s is None or log.age_s > SILENT_S
    return Text(_NONE if log.age_s is None else f"{_duration(log.age_s)} ago", "red" if is_silent else "")


def _lag(log: LogStatus) -> str:
    """Return how old the oldest row is that has left no collector, as far as is known. A retired log has no lag."""
    lag_s = log.beat.get("lag_s")
    if not isinstance(lag_s, int | float) or log.age_s is None or log.is_retired:
        return _NONE
    return _duration(lag_s + (log.age_s if lag_s or log.age_s > SILENT_S else 0.0))


def _waits(beat: Mapping[str, Any]) -> str:
    n_pieces, n_bytes = beat.get("waiting"), beat.get("waiting_bytes")
    if not isinstance(n_pieces, int) or not isinstance(n_bytes, int):
        return _NONE
    return f"{n_pieces:,}, {_size(n_bytes)}" if n_pieces else "0"


def _table(**columns: Any) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name, justify in columns.items():
        table.add_column(name, justify=justify, no_wrap=name != "host", overflow="fold")
    return table


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _size(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n_bytes < _KB:
            return f"{n_bytes:.0f} {unit}"
        n_bytes /= _KB
    return f"{n_bytes:.1f} GB"


def storage_dollars_a_day(n_bytes: int) -> float:
    """Return what it costs to keep bytes for a day."""
    return n_bytes / 1e9 * DOLLARS_A_GB_MONTH / _DAYS_A_MONTH


def requests_a_day(beat: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the requests of a publisher by kind, as many as there would be in a day. None: it has just started.

    beat: the content of its heartbeat.
    """
    try:
        passed_s = (datetime.fromisoformat(beat["at"]) - datetime.fromisoformat(beat["since"])).total_seconds()
        counts = {kind: float(beat["requests"][kind]) for kind in DOLLARS_A_REQUEST}
    except (KeyError, TypeError, ValueError):  # of another version
        return None
    if passed_s < _MEASURED_S_MIN:
        return None
    return {kind: count * _DAY_S / passed_s for kind, count in counts.items()}


def request_dollars(counts: Mapping[str, float]) -> float:
    """Return what requests cost, by kind."""
    return sum(count * DOLLARS_A_REQUEST[kind] for kind, count in counts.items())
