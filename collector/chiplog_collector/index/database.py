"""The only object that writes DuckDB: it opens, migrates, loads the state, and writes each batch in one transaction."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import numpy as np
from numpy.typing import NDArray

from chiplog_collector.index.apply.state import Identified, Producer, Run, State
from chiplog_collector.index.apply.write_batch import Batch, Columns, turn
from chiplog_collector.index.fact_tables import Facts
from chiplog_collector.index.numpy_source import NAN_KEPT, Incoming
from chiplog_collector.memory_limit import limit_memory
from chiplog_collector.transaction import transaction
from chiplog_collector.view_definitions import define_views
from chiplog_schemas.model.block_format import BLOCK_VERSION
from chiplog_schemas.model.change_record import Action
from chiplog_schemas.model.codes import QuarantineCode
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.model.system_metrics import SYSTEM_METRICS
from chiplog_schemas.query.duckdb_errors import is_refused_commit
from chiplog_schemas.sql import MIGRATION, ROLLUPS, rollups_sql, tables_sql, views_sql

_TS_FIRST, _TS_LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999, as Python's datetime
DAY_US = 86_400_000_000
_NAN_KEPT_IN_LIST = "list_transform({}, lambda x: coalesce(x, 'nan'::DOUBLE))"
_log = logging.getLogger("chiplog.index")
_LEDGER_ROWS_MAX = 200_000  # above this and four times its ideal size, the ledger is merged

# Types of columns that numpy can hold, and how to select the others that need it.
_DTYPES = {"INTEGER": "i4", "BIGINT": "i8", "DOUBLE": "f8", "BOOLEAN": "?"}
_SELECTED = {"DOUBLE": NAN_KEPT, "DOUBLE[]": _NAN_KEPT_IN_LIST}
_NULLS = {"producer": -1, "block_version": 0, "cause": "", "outcome": ""}  # what a null of these columns is passed as
# By table: the columns of the rows of an event kind. Rows of other tables have the order of tables.sql.
_EVENT_COLUMNS = {kind.spec.table: kind.spec.row for kind in EventKind if kind.spec.row}
_TIMES = ("started_at", "ended_at")
_Entry = TypeVar("_Entry", Run, Producer)
_DIMENSIONS: dict[str, type[Run] | type[Producer] | type[Identified]] = {
    "producers": Producer,
    "runs": Run,
    "identified": Identified,
}
# Sorted, so that a rebuild sums in the same order. Of a counter the last value counts: a mean would take away what it
# counted until the end of the interval, and one over a restart of the counter would be a value that it never had.
_COUNTERS = ", ".join(f"'{name}'" for name, metric in SYSTEM_METRICS.items() if metric.is_counter)
_ROLLED_UP = f"""WITH kinds AS (
    SELECT id, name = 'hw.gpu.throttle.reasons' AS is_mask, name IN ({_COUNTERS}) AS is_counter FROM base.names
), parts AS (
    SELECT producer, device, key, epoch_us(ts) // {{every}} * {{every}} AS us,
           list(value ORDER BY ts, value) AS samples, bit_or(TRY_CAST(value AS BIGINT))::DOUBLE AS bits,
           min(flush) AS flush
    FROM base.system_facts WHERE {{between}} GROUP BY ALL
) SELECT producer, device, key, make_timestamp(us) AS ts,
    CASE WHEN k.is_mask THEN bits WHEN k.is_counter THEN samples[-1] ELSE list_avg(samples) END AS value, flush
FROM parts JOIN kinds k ON k.id = key ORDER BY key, device, ts"""
# Whether records were ever lost on the way, see State.damaged.
# safeguard: lossless-quarantine-is-no-damage
_DAMAGED = """SELECT EXISTS (FROM base.events WHERE producer IS NULL AND kind = 'gap') OR EXISTS (
    FROM base.quarantine WHERE loses_events)"""


class StaleDatabaseError(Exception):
    """The file has another migration or log, or lacks blocks that this version can read: rebuild it from the log."""


def is_disk_error(error: BaseException) -> bool:
    """Return True if an error is a refusal of the disk, or a lack of memory: a retry may succeed."""
    if isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException):
        return True
    # safeguard: refused-commit-is-no-record
    return isinstance(error, duckdb.TransactionException) and is_refused_commit(str(error))


class Database:
    """The index's DuckDB file. One per process, and one process per file.

    Raises duckdb.Error when it cannot be opened (see `corruption_reason`), StaleDatabaseError when it must be rebuilt.
    has_views: of this version; the file was just created. memory_bytes: DuckDB's limit from the start.
    """

    def __init__(self, path: Path, log_id: bytes, *, has_views: bool = False, memory_bytes: int | None = None) -> None:
        self.path = path
        self.connection = duckdb.connect(str(path))
        if memory_bytes is not None:
            limit_memory(self.connection, memory_bytes)  # rollups may be computed from all points
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute("SET preserve_insertion_order = true")
        self.next_number = 0
        self.log_id = log_id
        self._ledger_rows = 0
        self.newest_day = 0  # of receipt, since 1970
        self.dropped = -1  # facts up to this flush have left the database, because a store has them
        self.lacks_series = False  # and the rollups of their series are incomplete
        self._types: dict[str, dict[str, str]] = {}  # by table and column, as they are needed
        self._incoming = Incoming(self.connection)
        try:
            self._prepare(log_id, has_views)
            self._facts = Facts(self.connection, self._incoming)
        except BaseException:
            self.close()  # a retry needs the file
            raise

    def _prepare(self, log_id: bytes, has_views: bool) -> None:
        if not self._has_tables():
            with transaction(self.connection):
                self.connection.execute(tables_sql())
                self.connection.execute("INSERT INTO base.position VALUES (?, ?, 0, 0, 0)", [MIGRATION, log_id])
        row = self.connection.execute("SELECT migration, log_id, next_number FROM base.position").fetchone()
        if row is None:
            raise StaleDatabaseError(f"{self.path} does not contain its position in the log")
        migration, of_log, self.next_number = row
        if migration != MIGRATION:
            raise StaleDatabaseError(f"{self.path} is of migration {migration}, not {MIGRATION}")
        if bytes(of_log) != log_id:
            raise StaleDatabaseError(f"{self.path} is the index of another log")
        if n_unread := self._count_unread():  # safeguard: unread-blocks-applied-in-place
            raise StaleDatabaseError(f"{self.path} lacks {n_unread} blocks that an older version could not read")
        self._load_dropped()
        if has_views:
            return
        with transaction(self.connection):  # a commit for each view, with a sync, would take twice as long
            if not self._has_rollups():  # safeguard: rollups-need-no-rebuild
                if self.dropped >= 0:  # safeguard: series-of-dropped-facts-stay
                    raise StaleDatabaseError(f"{self.path} lacks facts that the rollups of this version sum up")
                self.connection.execute(rollups_sql())
            define_views(self.connection, [views_sql()])

    def _load_dropped(self) -> None:
        found = self.connection.execute("FROM base.dropped").fetchall()
        self.dropped, self.lacks_series = found[0] if found else (-1, False)

    def _count_unread(self) -> int:
        """Return how many blocks the log had admitted, an older version passed, and this one can read."""
        query = "SELECT count(*) FROM base.quarantine WHERE code = ? AND block_version <= ?"
        [(found,)] = self.connection.execute(query, [QuarantineCode.UNREAD_BLOCK.value, BLOCK_VERSION]).fetchall()
        return int(found)

    def _has_tables(self) -> bool:
        return self._has_table("position")

    def _has_rollups(self) -> bool:
        """Return whether the rollups are those of this version."""
        if not self._has_table("rollups"):
            return False
        return self.connection.execute("SELECT version FROM base.rollups").fetchall() == [(ROLLUPS,)]

    def _has_table(self, name: str) -> bool:
        query = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'base' AND table_name = ?"
        row = self.connection.execute(query, [name]).fetchone()
        return row is not None and row[0] == 1

    def close(self) -> None:
        """Close the connection; DuckDB checkpoints."""
        self.connection.close()

    # -- loading --

    def load(self) -> State:
        """Read the dimensions and the ledger."""
        state = State()
        execute = self.connection.execute
        self._load_dropped()
        for run in self._entries(Run, "SELECT * EXCLUDE (flush) FROM base.runs ORDER BY run"):
            run.tags = list(run.tags or [])
            run.told = list(run.told or [])
            run.alias_nodes = list(run.alias_nodes or [])
            run.edited = list(run.edited or [])
            state.add_run(run)
        times = ", ".join(f"epoch_us({name}) AS {name}" for name in _TIMES)
        of_producers = f"SELECT * EXCLUDE (flush) REPLACE ({times}) FROM base.producers"
        query = f"{of_producers} ORDER BY launch_order, restart, producer"
        for producer in self._entries(Producer, query):
            producer.uuid = bytes(producer.uuid)
            producer.gpus = list(producer.gpus or [])
            producer.nodes = list(producer.nodes or [])
            producer.sender = None if producer.sender is None else bytes(producer.sender)
            state.add_producer(producer)
        state.names = dict(execute("SELECT name, id FROM base.names ORDER BY id").fetchall())
        for run_id, launch, number in execute("SELECT run_id, launch, run FROM base.demands").fetchall():
            state.demands[(run_id, launch)] = number  # safeguard: demands-survive-restart
        self._load_versions(state)
        ledger = execute("SELECT producer, first_seq, last_seq FROM base.intervals ORDER BY ALL").fetchall()
        for number, first, last in ledger:
            state.have[number].add(first, last)
        self._ledger_rows = len(ledger)
        for number, first, last, reason in execute("SELECT * EXCLUDE (flush) FROM base.losses ORDER BY ALL").fetchall():
            state.lost.setdefault(number, []).append((first, last, reason))
        told = "SELECT body FROM base.events WHERE producer IS NULL AND kind = 'refused_node'"
        for (said,) in execute(told).fetchall():
            said = json.loads(said)
            pair = (bytes.fromhex(said["producer"]), bytes.fromhex(said["sender"]))
            state.refused.setdefault(tuple(said["nodes"]), set()).add(pair)
        kept = "SELECT number, sender, nodes, sum(events)::BIGINT FROM base.refused GROUP BY ALL HAVING sum(events) > 0"
        for number, sender, nodes, n_events in execute(kept).fetchall():
            state.kept.setdefault(bytes(sender), {})[number] = (tuple(json.loads(nodes)), n_events)
        state.deleted = {bytes(uuid) for (uuid,) in execute("SELECT uuid FROM base.deleted").fetchall()}
        self._load_changes(state)
        (self.newest_day,) = execute(
            "SELECT coalesce(max(day) - DATE '1970-01-01', 0) FROM base.receipt_days"
        ).fetchall()[0]
        last = execute("SELECT last_run, last_producer FROM base.position").fetchone()
        assert last is not None
        state.last_run, state.last_producer = last  # safeguard: numbers-not-given-again
        found = execute(_DAMAGED).fetchone()
        state.damaged = bool(found and found[0])
        return state

    def _load_changes(self, state: State) -> None:
        execute = self.connection.execute
        for number, id, action, until, every in execute("FROM base.changes ORDER BY number").fetchall():
            state.managed.add(bytes(id))
            if action == Action.DELETE:
                state.last_deletion = number
            elif action == Action.TRIM_SYSTEM:
                state.trimmed = (number, until)
            elif action == Action.ROLL_UP:
                state.rolled_until[every] = until
            elif action == Action.ADMIT_BLOCKS:
                state.block_version = until
        parked = "SELECT number, block_version FROM base.quarantine WHERE block_version IS NOT NULL AND code = ?"
        state.parked = dict(execute(parked, [QuarantineCode.NEWER_BLOCK.value]).fetchall())

    def _load_versions(self, state: State) -> None:
        query = "SELECT project, name, digest, version FROM base.artifact_versions"
        for project, name, digest, version in self.connection.execute(query).fetchall():
            state.artifacts.setdefault((project, name), {})[digest] = version

    def _entries(self, kind: type[_Entry], query: str) -> Iterator[_Entry]:
        """Yield the rows of a query: each column is the attribute of its name."""
        cursor = self.connection.execute(query)
        names = [column[0] for column in cursor.description]
        for row in cursor.fetchall():
            yield kind(**dict(zip(names, row, strict=True)))

    # -- writing --

    def write(self, batch: Batch, state: State, next_number: int) -> None:
        """Write a batch and the position after it, all or nothing. Raises duckdb.Error."""
        try:
            self._write(batch, state, next_number)
        except BaseException:
            self._incoming.forget()
            self._load_dropped()
            raise
        self.next_number = next_number

    def _write(self, batch: Batch, state: State, next_number: int) -> None:
        columns = {name: turn(getattr(batch, name)) for name in ("metrics", "phases", "system")}
        with transaction(self.connection):
            self._begin_flush(next_number - 1, batch.received_us)
            for name, facts in columns.items():
                if facts is not None:
                    np.clip(facts["ts"].view(np.int64), _TS_FIRST, _TS_LAST, out=facts["ts"].view(np.int64))
                    self._facts.insert(name, facts)
            for table, rows in batch.rows.items():
                self._insert_rows(table, rows)
            if batch.names:
                ids = np.array([number for number, _ in batch.names], dtype=np.int32)
                names = _objects([name for _, name in batch.names])
                self._insert("names", {"id": ids, "name": names}, {"id": "id", "name": "name"})
            self._write_ledger(batch, state)
            changed = batch.producers - batch.deleted.keys()
            self._write_dimension("producers", [state.producers_by_number[n] for n in sorted(changed)])
            runs = batch.runs - batch.deleted_runs
            self._write_dimension("runs", [state.runs_by_number[n] for n in sorted(runs)])
            # safeguard: console-follows-owner
            renamed = changed.union(*(state.consoles.get(n, ()) for n in changed))
            self._write_dimension(
                "identified", [state.identified(state.producers_by_number[n]) for n in sorted(renamed)]
            )
            for first, until, every in batch.thinnings:
                self._thin_samples(first, until, every)
            if batch.lacks_facts:
                self._drop_facts(next_number - 1, lacks_series=True)
                self.dropped, self.lacks_series = next_number - 1, True
            self._write_changes(batch)  # last: what the flush has inserted of a deleted producer goes, too
            # No UPDATE: DuckDB refuses to checkpoint while a reader needs the previous version of the row.
            position = [MIGRATION, self.log_id, next_number, state.last_run, state.last_producer]
            self.connection.execute("DELETE FROM base.position")  # safeguard: checkpoint-beside-readers
            self.connection.execute("INSERT INTO base.position VALUES (?, ?, ?, ?, ?)", position)

    def _begin_flush(self, number: int, received_us: int) -> None:
        """Set what the rows of this flush get as `flush`, and note the first flush of a day of receipt."""
        self.connection.execute("SET VARIABLE flush = CAST(? AS BIGINT)", [number])
        if received_us // DAY_US > self.newest_day:
            self._end_day()
            self.newest_day = received_us // DAY_US
            query = "INSERT INTO base.receipt_days SELECT make_timestamp(?)::DATE, getvariable('flush'), ?"
            self.connection.execute(query, [min(received_us, _TS_LAST), self.next_number - 1])

    def _end_day(self) -> None:
        """Drop the rest of a day that the log has a part of."""
        [(begun,)] = self.connection.execute("SELECT coalesce(max(after), -1) FROM base.receipt_days").fetchall()
        if self.lacks_series and begun < self.dropped < self.next_number - 1:
            self._drop_facts(self.next_number - 1, lacks_series=True)
            self.dropped = self.next_number - 1

    def refused_records(self) -> list[int]:
        """Return the records of which events were refused at first, or that could not be applied."""
        query = "SELECT number FROM base.refused UNION SELECT number FROM base.quarantine"
        return [number for (number,) in self.connection.execute(query).fetchall()]

    def sort_facts(self) -> None:
        """Sort the facts of the last flushes into place once there are many. Raises duckdb.Error.

        Call it between transactions. A lack of disk or memory raises nothing: what could not be sorted stays where it
        is, and is as visible as before.
        """
        facts = self._facts
        for table in facts.unsorted():
            # safeguard: sorting-stops-nothing
            if self._tidied(f"the facts of {table} cannot be sorted", partial(facts.sort, table)):
                facts.sorted(table)
            else:
                facts.postpone(table)
        for series in facts.unmerged():
            # safeguard: merging-stops-nothing
            if self._tidied(f"the rollup {series} cannot be merged", partial(facts.merge, series)):
                facts.merged(series)
            else:
                facts.postpone_merge(series)

    def _tidied(self, complaint: str, tidy: Callable[[], None]) -> bool:
        """Run a step in its own transaction. False: there was no room for it, and nothing has changed."""
        try:
            with transaction(self.connection):
                tidy()
        except duckdb.Error as error:
            if not is_disk_error(error):
                raise
            _log.warning("%s: %s; trying later", complaint, str(error).partition("\n")[0])
            return False
        return True

    def day_end(self, day: date, number: int) -> int | None:
        """Return the last record of the days of receipt before a day, None if there is none up to a number."""
        query = """SELECT max(after) FROM (SELECT after, lag(day) OVER (ORDER BY day) AS day FROM base.receipt_days)
            WHERE day < $day AND after <= $number"""
        [(found,)] = self.connection.execute(query, {"day": day, "number": number}).fetchall()
        return None if found is None else int(found)

    def drop_facts(self, until: int, *, lacks_series: bool = False) -> None:
        """Remove the facts of flushes up to this one, and note it. Raises duckdb.Error.

        Call it between transactions. Their series stay; lacks_series: and must be made again, see `restore_series`.
        """
        lacks_series = lacks_series or self.lacks_series
        with transaction(self.connection):
            self._drop_facts(until, lacks_series=lacks_series)
        self.dropped, self.lacks_series = until, lacks_series
        self._facts.count()

    def _drop_facts(self, until: int, *, lacks_series: bool) -> None:
        self._facts.drop(until)
        self._note_dropped(until, lacks_series=lacks_series)

    def _note_dropped(self, until: int, *, lacks_series: bool) -> None:
        self.connection.execute("DELETE FROM base.dropped")
        self.connection.execute("INSERT INTO base.dropped VALUES (?, ?)", [until, lacks_series])

    def restore_series(self, found: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        """Compute the rollups of series again, of the facts that are here and of those that left. Raises duckdb.Error.

        Call it between transactions, and load the state afterwards.

        Args:
            found: By rollup, rows of the facts that left: 32 hex digits of a producer, a name, and the rest in order.
        """
        with transaction(self.connection):
            self._facts.restore_series(found)
            self._note_dropped(self.dropped, lacks_series=False)
        self.lacks_series = False
        for series in found:
            self._facts.merged(series)

    def orphaned_contents(self) -> list[str]:
        """Return the SHA-256 of saved files that no row names, in hex digits.

        A rebuild from a cleaned log does not know the deleted rows, but it knows each content that was stored. While
        blocks are set aside that may be applied later, only contents whose rows were deleted count.
        """
        unnamed = "sha256 NOT IN (SELECT sha256 FROM base.named_contents)"
        query = f"SELECT DISTINCT sha256 FROM base.orphans WHERE {unnamed}"
        if not self.has_deferred_blocks():  # safeguard: deferred-rows-keep-contents
            query = f"{query} UNION SELECT sha256 FROM base.stored WHERE {unnamed}"
        return [digest for (digest,) in self.connection.execute(query).fetchall()]  # safeguard: only-orphans-removed

    def has_deferred_blocks(self) -> bool:
        """Return True if there are blocks of a newer version, or refused ones that a changed key lets in."""
        query = """SELECT exists(FROM base.quarantine WHERE block_version IS NOT NULL)
                   OR exists(SELECT number FROM base.refused GROUP BY number HAVING sum(events) > 0)"""
        row = self.connection.execute(query).fetchone()
        return row is not None and bool(row[0])

    def checkpoint(self) -> None:
        """Write a checkpoint, called on a timer so that no commit has to. Raises duckdb.Error."""
        self.connection.execute("CHECKPOINT")

    def wal_bytes(self) -> int:
        """Return the size of the write-ahead log."""
        try:
            return os.stat(f"{self.path}.wal").st_size
        except FileNotFoundError:
            return 0

    def _insert_rows(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        types = self._types_of(table)
        names = _EVENT_COLUMNS.get(table, tuple(types))
        columns: Columns = {}
        selected = {}
        for name, given in zip(names, zip(*rows, strict=True), strict=True):
            kind, values = types[name], list(given)
            selected[name] = _SELECTED.get(kind, "{}").format(name)
            if name in _NULLS:
                values = [_NULLS[name] if value is None else value for value in values]
                selected[name] = f"nullif({name}, {_NULLS[name]!r})"
            if kind == "TIMESTAMP":
                clipped = [min(max(value, _TS_FIRST), _TS_LAST) for value in values]  # safeguard: times-clipped
                columns[name] = np.array(clipped, dtype=np.int64).view("datetime64[us]")
            elif kind in _DTYPES:
                columns[name] = np.array(values, dtype=_DTYPES[kind])
            else:
                columns[name] = _objects(values)
        self._insert(table, columns, selected)

    def _types_of(self, table: str) -> dict[str, str]:
        """Return the types of a table's columns by name, in their order, without `flush`, which has a default."""
        types = self._types.get(table)
        if types is None:
            query = f"SELECT column_name, column_type FROM (DESCRIBE base.{table}) WHERE column_name <> 'flush'"
            types = self._types[table] = dict(self.connection.execute(query).fetchall())
        return types

    def _insert(self, table: str, columns: Columns, selected: dict[str, str]) -> None:
        """Insert rows. selected: how each column of the table is made from `columns`."""
        names, expressions = ", ".join(selected), ", ".join(selected.values())
        with self._incoming.hold(table, columns) as source:
            self.connection.execute(f"INSERT INTO base.{table} ({names}) SELECT {expressions} FROM {source}")

    def _write_ledger(self, batch: Batch, state: State) -> None:
        if batch.intervals:
            ranges = _joined(batch.intervals)
            self._insert_ledger(ranges)
            self._ledger_rows += len(ranges)
            ideal = sum(map(len, state.have.values()))
            if self._ledger_rows > max(_LEDGER_ROWS_MAX, 4 * ideal):
                self._join_ledger(state, ideal)
        for number, losses in batch.losses.items():
            self.connection.execute("DELETE FROM base.losses WHERE producer = ?", [number])
            for first, last, reason in losses:
                columns = "producer, first_seq, last_seq, reason"
                query = f"INSERT INTO base.losses ({columns}) VALUES (?, ?, ?, ?)"
                self.connection.execute(query, [number, first, last, reason])

    def _thin_samples(self, first: int, until: int, every: int) -> None:
        """Replace system samples by their means over intervals, counters by last values, or delete them."""
        between = "ts >= make_timestamp($first) AND ts < make_timestamp($until)"
        bounds = {"first": first, "until": until}
        if every:
            self.connection.execute(
                f"CREATE OR REPLACE TEMP TABLE rolled AS {_ROLLED_UP.format(between=between, every=every)}", bounds
            )
        for table in ("system", "system_recent"):
            self.connection.execute(f"DELETE FROM base.{table} WHERE {between}", bounds)
        if every:
            self.connection.execute("INSERT INTO base.system BY NAME FROM rolled")
            self.connection.execute("DROP TABLE rolled")

    def _write_changes(self, batch: Batch) -> None:
        """Write deletions, restored producers, admitted blocks and saved views."""
        execute = self.connection.execute
        if batch.admitted:  # their records stay in quarantine: the log keeps them, see `refused_records`
            admitted = f"WHERE code = '{QuarantineCode.NEWER_BLOCK.value}' AND number IN (SELECT unnest(?::BIGINT[]))"
            unversioned = f"SELECT * REPLACE (NULL AS block_version) FROM base.quarantine {admitted}"
            execute(f"INSERT INTO base.quarantine {unversioned}", [batch.admitted])
            execute(f"DELETE FROM base.quarantine {admitted} AND block_version IS NOT NULL", [batch.admitted])
        if batch.deleted:
            deleted = "WHERE producer IN (SELECT unnest(?::INTEGER[]))"
            contents = f"SELECT DISTINCT sha256 FROM base.named_contents {deleted}"
            execute(f"INSERT INTO base.orphans {contents}", [list(batch.deleted)])
            for table in self._tables_of_producers():
                execute(
                    f"DELETE FROM base.{table} WHERE producer IN (SELECT unnest(?::INTEGER[]))", [list(batch.deleted)]
                )
            execute("INSERT INTO base.deleted SELECT unnest(?::BLOB[])", [list(batch.deleted.values())])
        if batch.restored:
            execute("DELETE FROM base.deleted WHERE uuid IN (SELECT unnest(?::BLOB[]))", [list(batch.restored)])
        if batch.deleted_runs:
            for table in ("runs", "demands"):
                execute(
                    f"DELETE FROM base.{table} WHERE run IN (SELECT unnest(?::INTEGER[]))", [list(batch.deleted_runs)]
                )
        for name, (body, ts) in batch.saved_views.items():
            execute("DELETE FROM base.saved_views WHERE name = ?", [name])
            if body is not None:
                execute("INSERT INTO base.saved_views VALUES (?, ?, make_timestamp(?))", [name, body, ts])

    def _tables_of_producers(self) -> list[str]:
        """Return the tables whose rows belong to a producer."""
        query = """SELECT DISTINCT table_name FROM duckdb_columns() JOIN duckdb_tables() USING (schema_name, table_name)
                   WHERE schema_name = 'base' AND column_name = 'producer' ORDER BY table_name"""
        return [name for (name,) in self.connection.execute(query).fetchall()]

    def _insert_ledger(self, ranges: list[tuple[int, int, int, int]]) -> None:
        producer, first, last, seen = (np.array(column, dtype=np.int64) for column in zip(*ranges, strict=True))
        np.clip(seen, _TS_FIRST, _TS_LAST, out=seen)
        columns = {"producer": producer, "first_seq": first, "last_seq": last, "seen_at": seen.view("datetime64[us]")}
        self._insert("intervals", columns, {name: name for name in columns} | {"producer": "producer::INTEGER"})

    def _join_ledger(self, state: State, ideal: int) -> None:
        query = "SELECT producer, epoch_us(max(seen_at)) FROM base.intervals GROUP BY producer"
        seen = dict(self.connection.execute(query).fetchall())
        self.connection.execute("DELETE FROM base.intervals")
        rows = [(number, first, last, seen[number]) for number, have in state.have.items() for first, last in have]
        self._insert_ledger(rows)
        self._ledger_rows = ideal

    def _write_dimension(self, table: str, entries: list[Any]) -> None:
        """Replace the rows of some entries. They are passed as JSON, which keeps nulls and lists with their types."""
        if not entries:
            return
        names = [entry.name for entry in fields(_DIMENSIONS[table])]
        types = self._types_of(table)
        rows = [[_json_value(getattr(entry, name)) for name in names] for entry in entries]
        self.connection.execute(
            f"DELETE FROM base.{table} WHERE {names[0]} IN (SELECT unnest(?::INTEGER[]))", [[row[0] for row in rows]]
        )
        selected = ", ".join(_from_json(index, name, types[name]) for index, name in enumerate(names))
        query = f"INSERT INTO base.{table} ({', '.join(names)}) SELECT {selected} FROM (SELECT unnest(?::JSON[]) AS r)"
        self.connection.execute(query, [json.dumps(rows)])


def _joined(ranges: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Merge adjacent ranges of one producer; the later time counts."""
    joined: list[tuple[int, int, int, int]] = []
    for number, first, last, seen in sorted(ranges):
        if joined and joined[-1][0] == number and joined[-1][2] + 1 == first:
            joined[-1] = (number, joined[-1][1], last, max(seen, joined[-1][3]))
        else:
            joined.append((number, first, last, seen))
    return joined


def _objects(values: list[Any]) -> NDArray[Any]:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _json_value(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _from_json(index: int, name: str, column_type: str) -> str:
    if column_type == "BLOB":
        return f"unhex(r->>{index})"
    if column_type == "TIMESTAMP":
        # greatest() and least() skip nulls, which would turn an unknown end into one in the year 9999.
        bounded = f"make_timestamp(greatest(least((r->>{index})::BIGINT, {_TS_LAST}), {_TS_FIRST}))"
        return f"CASE WHEN r->>{index} IS NOT NULL THEN {bounded} END"
    if column_type.endswith("[]"):
        return f"(r->{index})::{column_type}"
    return f"(r->>{index})::{column_type}"
