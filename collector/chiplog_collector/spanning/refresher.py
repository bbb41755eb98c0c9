"""Keeps what a reader has of a store new: a thread that looks for commits, and takes the rows of new files."""

import contextlib
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb

from chiplog_collector.priority import lower_thread
from chiplog_collector.query.change_request import Edit, Elsewhere, edit_of
from chiplog_collector.query.cold_needs import Need, read_relations
from chiplog_collector.spanning.cold_files import ColdFiles, Snapshot
from chiplog_collector.spanning.held_rows import CATALOG, HeldRows, quoted, small_tables
from chiplog_collector.spanning.local_files import LocalFiles
from chiplog_collector.spanning.merged_views import Shape, doubled_facts, make_views
from chiplog_collector.store.delta_store import GONE_S, DeltaStore, Heartbeat, StoredFile, StoreError
from chiplog_collector.store.heartbeat import SILENT_S
from chiplog_collector.store.published_tables import COMPLETE, DELETIONS, ORDERS
from chiplog_collector.transaction import transaction
from chiplog_schemas.query.query_messages import QueryRejected
from chiplog_schemas.sql import LARGE, SERIES, series_sql, views_sql

# Between two looks. A row is to be seen within 15 s: a piece takes up to 10 s to be cut, and some 2 s to be published.
REFRESH_S = 2.0  # at a directory
BUCKET_REFRESH_S = 3.0  # at a bucket, where each look is paid for
LOOK_S = 60.0
_UNSEEN = -2  # no version of a table
LIST_S = 6 * 3600.0
_CLOSE_S = 1.0  # for a look at the end, and again for what it then does in DuckDB
_log = logging.getLogger("chiplog.index")


class StoreReader:
    """A store beside a DuckDB that answers queries.

    Args:
        connection: That DuckDB, before it is locked down. Its own database has the schema `base`.
        url: The store.
        log: The ID of the log in `base`, 32 hex digits.
        directory: For the cache and for copies of files.
        gb_max: That one query may read of the store.
        contents: The directory of saved contents.
        is_alone: True if `base` has no rows: queries then wait for the first look at the store.
        former: The ID of the log in `base` before it was renewed, and its last record.

    Raises:
        duckdb.Error, OSError: From the constructor: the cache cannot be made.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        url: str,
        log: str,
        directory: Path,
        gb_max: float,
        contents: Path,
        *,
        is_alone: bool = False,
        former: tuple[bytes, int] | None = None,
    ) -> None:
        self.store = DeltaStore(url, log)
        self._log_id = log
        self._former, self._former_end = ("", -1) if former is None else (former[0].hex(), former[1])
        self._directory = directory
        self.note_deletions: Callable[[], None] = lambda: None  # called when another log may have deleted something
        self.note_edits: Callable[[], None] = lambda: None  # called when another log may have edited a run
        directory.mkdir(parents=True, exist_ok=True)
        self._refused = directory / "refused"  # see `Paths.store_refused`
        self._refused.unlink(missing_ok=True)
        [(self._main,)] = connection.execute("SELECT current_database()").fetchall()
        _attach(connection, directory / "cache.duckdb")
        connection.execute("SET GLOBAL parquet_metadata_cache = true")  # no file of a store is written twice
        self._cursor = connection.cursor()
        self._asked = connection.cursor()  # by another thread, see `elsewhere`
        self._is_alone = is_alone
        self._held = HeldRows(self._cursor, self._main, log, self.store.url)
        self._files = LocalFiles(self.store, directory / "copies")
        relations = read_relations(self._cursor, views_sql())
        self.cold = ColdFiles(
            self._files, self._empty_files(), Snapshot({}, log), gb_max, relations, contents, is_alone=is_alone
        )
        self._doubled: list[tuple[int, str, int, int]] = []
        self._doubled_trouble = ""  # why events that two logs have could not be read
        self._shape: Shape | None = None  # None: the views may be others
        with transaction(self._cursor):
            self._make_views()
        self._seen = _UNSEEN  # the version of the table that is committed last
        self._faults: set[str] = set()  # files that cannot be read
        self._beats: list[Heartbeat] = []
        self._listed: dict[str, list[StoredFile]] = {}  # by table: its files; empty if they must be listed again
        self._ahead: set[tuple[str, int]] = set()  # logs and their last pieces, which no heartbeat names
        self._silent: list[tuple[str, str, datetime]] | None = None
        self._heard: list[tuple[str, str, datetime]] | None = None
        self._list_at = 0.0  # the files of all tables, whether there is a new piece or not
        self._look_at = 0.0  # at the commits, whether there is a sign of news or not
        self._passed_marks: set[str] = set()
        self._live: set[str] = set()
        self._retired: set[str] = set()  # logs, as far as that was looked up
        self._is_away = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chiplog-store-reader", daemon=True)

    @property
    def directories(self) -> list[Path]:
        """The directories whose files queries read."""
        kept = [self._directory / name for name in ("copies", "new", "empty")]
        return kept + [Path(self.store.path) / table for table in LARGE if self.store.is_disk]

    def elsewhere(self, run_id: str) -> Elsewhere | None:
        """Return a run of other logs, as far as it is known here; None if they have none of that ID."""
        query = f"""SELECT list(DISTINCT c.host ORDER BY c.host), list(DISTINCT p.label ORDER BY p.label)
                FILTER (p.label IS NOT NULL AND p.role = 'rank' AND p.state IS NULL)
            FROM {CATALOG}.held.runs r JOIN {CATALOG}.held.collectors c ON c.log = r.log
            LEFT JOIN {CATALOG}.held.newest_producers p ON p.run_id_of = r.run_id
            WHERE r.run_id = $run_id AND r.log <> $log"""
        [(hosts, running)] = self._asked.execute(query, {"run_id": run_id, "log": self._log_id}).fetchall()
        return Elsewhere(run_id, tuple(hosts), tuple(running or ()), not self._is_alone) if hosts else None

    def edits(self) -> list[Edit]:
        """Return the edits of runs that are rows of `events`, of all logs. Raises duckdb.Error."""
        query = f"""SELECT epoch_us(ts), body FROM (
                SELECT ts, kind, body FROM {CATALOG}.held.events WHERE log <> ?
                UNION ALL SELECT ts, kind, body FROM "{self._main}".base.events)
            WHERE kind = 'run_edited'"""
        rows = self._asked.execute(query, [self._log_id]).fetchall()
        return [edit for row in rows if (edit := edit_of(*row)) is not None]

    def start(self) -> None:
        """Start the thread. Its first look is right away."""
        self._thread.start()

    def close(self) -> None:
        """End the thread. One that waits for a store that does not answer is left: it finds its cursor closed."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)  # safeguard: silent-store-delays-no-index
            if self._thread.is_alive():
                self._cursor.interrupt()
                self._thread.join(_CLOSE_S)
        for cursor in (self._cursor, self._asked):
            cursor.close()

    def _run(self) -> None:
        if not self._is_alone:  # else there is nothing that could go first
            lower_thread()
        while not self._closing.is_set():
            try:
                self.turn()
            except Exception:  # a bug must not leave readers with what was known at this moment
                _log.exception("the store %s cannot be read; trying again", self.store.url)
            self._closing.wait(REFRESH_S if self.store.is_disk else BUCKET_REFRESH_S)

    def turn(self) -> None:
        """Look once. A store that is away leaves everything as it was."""
        was_away, trouble = self._is_away, ""
        try:
            self.refresh()
            if was_away:
                _log.info("the store %s can be read again", self.store.url)
        except (StoreError, OSError, duckdb.Error) as error:  # safeguard: unreadable-store-stops-nothing
            trouble = str(error).partition("\n")[0] or repr(error)
            if not was_away and not self._closing.is_set():  # else the end has interrupted it
                _log.warning("the store %s cannot be read: %s; trying again", self.store.url, trouble)
            self._listed = {}  # the sign of news is not lost
            self._shape = None
        self._is_away = bool(trouble)
        if self._is_alone and self._is_away != was_away:
            self._note_refusal()
        self.cold.trouble = trouble  # last: a client that gets it may start a reader in place of this one

    def _note_refusal(self) -> None:
        with contextlib.suppress(OSError):  # of the disk of the cache
            if self._is_away:
                self._refused.write_text(str(os.getpid()))
            else:
                self._refused.unlink(missing_ok=True)

    def refresh(self) -> bool:
        """Take what has been committed since the last time. Return False if that is nothing."""
        is_new = self._take_news()
        self._note_heard(self._beats)
        self.cold.seen.set()  # last: an answer has each collector's name, and each event once
        if not self._faults:
            self._note_passed()  # after the rows that were published up to then
        return is_new

    def _take_news(self) -> bool:
        beats = self.store.heartbeats(self._beats)
        known = {beat.mark for beat in self._beats}
        news = [beat for beat in beats if beat.mark not in known]
        self._beats = beats
        self._note_silent(beats)
        self._note_live(beats)
        # safeguard: unreadable-heartbeat-is-news
        is_all = not self._listed or any(not isinstance(beat.content.get("tables"), dict) for beat in news)
        if not is_all and not self._moved():
            # A publisher that is killed between a commit and its heartbeat has news without a sign of them.
            if time.monotonic() < self._look_at:
                return False
            self._look_at = time.monotonic() + LOOK_S
            # Files that were merged or rewritten since are removed after 7 days, whether pieces come or not.
            if self.store.version(COMPLETE) == self._seen and time.monotonic() < self._list_at:
                return False
            is_all = True
        is_renumbered = self._held.is_renumbered()  # safeguard: moved-producer-is-one
        is_all = is_all or is_renumbered or time.monotonic() >= self._list_at
        if is_all:
            self._look_at, self._list_at = time.monotonic() + LOOK_S, time.monotonic() + LIST_S
        files, self._listed = self._listed, {}
        looked = self._look(files, is_all=is_all)
        ends = _ends(files[COMPLETE])
        until = max(ends.get(self._log_id, -1), min(ends.get(self._former, -1), self._former_end))
        new: dict[str, list[StoredFile]] = {}
        replaced = set()
        for table in set(small_tables()) & looked:
            loaded, found = self._held.loaded(table), {file.path: file for file in files[table]}
            if is_renumbered or loaded - found.keys():  # the latter: merged into others, or rewritten
                replaced.add(table)
                loaded = set()
            new[table] = [file for path, file in found.items() if path not in loaded]
        if any(file.log != self._log_id for file in new.get(DELETIONS, ())):
            self.note_deletions()
        copies = self._directory / "new"
        shutil.rmtree(copies, ignore_errors=True)
        copies.mkdir()
        try:
            self._held.load(self._copies(new, copies), replaced, renumbers=is_renumbered, finish=self._follow_shape)
        finally:
            shutil.rmtree(copies, ignore_errors=True)
        if any(file.log != self._log_id for file in new.get("events", ())):
            self.note_edits()
        self.cold.snapshot = Snapshot({table: files[table] for table in LARGE}, self._log_id, until)
        if is_renumbered:
            self._doubled = []
        self._leave_out_doubled()
        self._seen = self.store.versions.get(COMPLETE, -1)
        self._listed = files
        if self._faults or self._doubled_trouble:
            self._look_at = self._list_at = time.monotonic() + LOOK_S  # they may be whole again, or replaced
        return True

    def _note_passed(self) -> None:
        """Note up to when each log that lives has published all that it cut, if versions of artifacts wait for it."""
        marks = {beat.mark for beat in self._beats}
        if marks == self._passed_marks or not self._held.has_open_versions():
            return
        self._retired = self.store.retired()
        self._live = self._living(self._beats)
        self._held.note_passed(
            {beat.log: _micros(beat.content.get("idle_at")) for beat in self._beats if beat.log in self._live}
        )
        self._passed_marks = marks

    def _note_live(self, beats: Sequence[Heartbeat]) -> None:
        """Have versions of artifacts wait also for a log that nothing is known of yet."""
        live = self._living(beats)
        if live != self._live:
            self._held.note_live(live, finish=self._follow_shape)  # safeguard: version-waits-for-new-log
            self._live = live

    def _living(self, beats: Sequence[Heartbeat]) -> set[str]:
        now = self._newest(beats)
        former = {log for beat in beats for log in _former(beat)}
        left = {beat.log for beat in beats if (now - beat.written_at).total_seconds() > SILENT_S} & former
        # safeguard: gone-log-holds-no-version
        gone = {beat.log for beat in beats if (now - beat.written_at).total_seconds() > GONE_S} | self._retired | left
        return {beat.log for beat in beats} - gone

    def _moved(self) -> dict[str, int]:
        """Return the tables that have a newer commit than was seen here, as the heartbeats name it."""
        named: dict[str, int] = {}
        for beat in self._beats:
            tables = beat.content.get("tables")
            for table, version in tables.items() if isinstance(tables, dict) else ():
                if table in ORDERS and isinstance(version, int) and version > self.store.versions.get(table, -1):
                    named[table] = max(version, named.get(table, -1))
        return named

    def _look(self, files: dict[str, list[StoredFile]], *, is_all: bool) -> set[str]:
        """List the files of the tables that have news, or of all. Return which were listed.

        From the table that is committed last to the first one: whatever is found refers to what is found later.
        """
        moved, looked = self._moved(), set()
        for table in reversed(ORDERS):
            if not is_all and table not in moved:
                continue
            files[table] = self.store.snapshot(table)
            looked.add(table)
            # What was committed since may refer to what the tables before it got since.
            # safeguard: later-commit-opens-the-rest
            is_all = is_all or self.store.versions.get(table, -1) > moved[table]
            if table == COMPLETE:
                named = {(beat.log, beat.content.get("number")) for beat in self._beats}
                ahead = {end for end in _ends(files[COMPLETE]).items() if end not in named}
                is_all, self._ahead = is_all or not ahead <= self._ahead, ahead
        return looked

    def _note_heard(self, beats: Sequence[Heartbeat]) -> None:
        """Note up to when the rows of each collector are here: those that a heartbeat has as published were read."""
        own = (self._log_id, socket.gethostname(), datetime.now(UTC).replace(tzinfo=None))
        known_at = _newest_of(beats, lambda beat: beat.written_at - timedelta(seconds=_waiting_s(beat)))
        heard = [(beat.log, _host_of(beat), _utc(known_at[beat.log])) for beat in beats if beat.log != self._log_id]
        if heard != self._heard:
            self._held.note_heard([own, *heard])
            self._heard = heard

    def _copies(
        self, new: Mapping[str, Sequence[StoredFile]], directory: Path
    ) -> dict[str, list[tuple[StoredFile, Path]]]:
        """Copy new files of small tables, and return those that can be read, by table.

        Raises:
            StoreError: None can: the store is away.
        """
        read: dict[str, list[tuple[StoredFile, Path]]] = {table: [] for table in new}
        faults: dict[str, str] = {}
        for table, files in new.items():
            for number, file in enumerate(files):
                copy = directory / f"{table}-{number}.parquet"
                try:
                    self.store.fetch(table, file, copy)
                    self._cursor.execute("SELECT count(*) FROM parquet_file_metadata(?)", [str(copy)]).fetchall()
                except (StoreError, duckdb.Error) as error:  # safeguard: damaged-file-hides-no-other
                    faults[f"{table}/{file.path}"] = str(error).partition("\n")[0]
                else:
                    read[table].append((file, copy))
        new_faults = sorted(faults.keys() - self._faults)
        if new_faults and not any(read.values()):
            raise StoreError(faults[new_faults[0]])
        for path in new_faults:
            _log.warning("%s/%s cannot be read, the rest can: %s", self.store.url, path, faults[path])
        self._faults = set(faults)
        return read

    def _newest(self, beats: Sequence[Heartbeat]) -> datetime:
        """Return the time by the clock of the store, where a heartbeat of the own log tells it."""
        return max([beat.written_at for beat in beats if beat.log == self._log_id] or [datetime.now(UTC)])

    def _note_silent(self, beats: Sequence[Heartbeat]) -> None:
        """Note which other collectors have not been heard of, by the clock of the store where that is known."""
        now, heard_at = self._newest(beats), _newest_of(beats, lambda beat: beat.written_at)
        silent = [
            (beat.log, _host_of(beat), _utc(heard_at[beat.log]))
            for beat in beats
            if beat.log != self._log_id and (now - heard_at[beat.log]).total_seconds() > SILENT_S
        ]
        if silent != self._silent:
            self._held.note_silent(silent)
            self._silent = silent

    def _follow_shape(self) -> None:
        """Make the views again once they have to join something else."""
        if self._shape != self._found_shape():
            self._make_views()

    def _make_views(self) -> None:
        self.cold.prepare(self._cursor)  # files that were read before may be gone
        self._shape = self._found_shape()
        make_views(self._cursor, self._main, self._log_id, self._shape)

    def _found_shape(self) -> Shape:
        return Shape(
            has_own=not self._is_alone,
            has_others=not self._is_alone and self._held.has_others(),
            has_spread=self._held.is_spread(),
            has_doubled=bool(self._held.doubled()),
            has_deleted=self._held.has_deleted(),
        )

    def _leave_out_doubled(self) -> None:
        """Leave out events that two logs have, in rows and in what was summed up of them."""
        doubled = self._held.doubled()
        trouble, self._doubled_trouble = self._doubled_trouble, ""
        if doubled == self._doubled:
            return
        execute, held = self._cursor.execute, f"{CATALOG}.held"
        query = f"SELECT DISTINCT run_id FROM merged.identified JOIN {held}.doubled USING (producer)"
        runs = frozenset(run_id for (run_id,) in execute(query).fetchall() if run_id is not None)
        needed = {table: [Need(run_ids=runs)] for table in ("metrics", "phases")}
        deadline = time.monotonic() + LOOK_S
        try:
            with transaction(self._cursor), self.cold.chosen(self._cursor, needed, deadline):
                for table, series in SERIES.items():
                    facts = series_sql(doubled_facts(table, f'"{self._main}"', self._log_id))
                    execute(f"DELETE FROM {held}.doubled_{series}")
                    execute(
                        f"INSERT INTO {held}.doubled_{series} BY NAME SELECT producer, key, -n AS n, "
                        f"-n_numbers AS n_numbers, -sum AS sum FROM ({facts})"
                    )
        except (QueryRejected, duckdb.Error) as error:  # safeguard: unread-doubled-events-stop-nothing
            self._doubled_trouble = str(error).partition("\n")[0]
            if not trouble and not self._closing.is_set():
                _log.warning(
                    "%s: sums count events twice that two logs have, whose files cannot be read: %s; trying again",
                    self.store.url,
                    self._doubled_trouble,
                )
        else:
            self._doubled = doubled

    def _empty_files(self) -> Mapping[str, Path]:
        """Write a file without rows for each large table: DuckDB refuses to read none."""
        directory = self._directory / "empty"
        directory.mkdir(exist_ok=True)
        found = {}
        for table, columns in _COLUMNS.items():
            found[table] = directory / f"{table}.parquet"
            selected = ", ".join(f"NULL::{kind} AS {name}" for name, kind in columns.items())
            self._cursor.execute(f"COPY (SELECT {selected} LIMIT 0) TO {quoted(str(found[table]))} (FORMAT parquet)")
        return found


def _ends(files: Sequence[StoredFile]) -> dict[str, int]:
    """Return by log the record that ends its last piece. files: of the table COMPLETE."""
    found: dict[str, int] = {}
    for file in files:
        if file.log and "number" in file.ranges:
            found[file.log] = max(file.ranges["number"][1], found.get(file.log, -1))
    return found


def _newest_of(beats: Sequence[Heartbeat], time_of: Callable[[Heartbeat], datetime]) -> dict[str, datetime]:
    """Return a time of each log: that of its heartbeat, or of one that has the log as a former ID."""
    found = {beat.log: time_of(beat) for beat in beats}
    for beat in beats:
        for log in found.keys() & _former(beat):
            found[log] = max(found[log], time_of(beat))  # safeguard: former-log-not-silent
    return found


def _former(beat: Heartbeat) -> set[str]:
    former = beat.content.get("former")
    return {log for log in former if isinstance(log, str)} if isinstance(former, list) else set()


def _host_of(beat: Heartbeat) -> str:
    return str(beat.content.get("host", "an unknown host"))


def _waiting_s(beat: Heartbeat) -> float:
    """Return for how long the oldest piece that was not published had been waiting."""
    lag_s = beat.content.get("lag_s")
    return float(lag_s) if isinstance(lag_s, int | float) and 0 <= lag_s < 1e9 else 0.0


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


def _micros(text: Any) -> int:
    """Return a time in µs since 1970; 0 if there is none, or another version wrote it."""
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000_000)
    except (TypeError, ValueError):
        return 0


def _attach(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Attach the cache; one that cannot be opened is made again, since the store has all of it."""
    statement = f"ATTACH {quoted(str(path))} AS {CATALOG}"
    try:
        connection.execute(statement)
    except duckdb.Error as error:  # safeguard: damaged-cache-made-again
        _log.warning("%s is made again: %s", path, str(error).partition("\n")[0])
        for name in (path, Path(f"{path}.wal")):
            name.unlink(missing_ok=True)
        connection.execute(statement)


_OF_EVENT = {
    **dict.fromkeys(("log", "run_id", "label", "producer"), "VARCHAR"),
    **dict.fromkeys(("number", "seq"), "BIGINT"),
    "ts": "TIMESTAMPTZ",
}
_OF_POINT = _OF_EVENT | {"key": "VARCHAR", "step": "BIGINT"}
_COLUMNS = {
    "metrics": _OF_POINT | {"value": "DOUBLE"},
    "phases": _OF_POINT | {"value": "DOUBLE"},
    "texts": _OF_POINT | {"value": "VARCHAR"},
    "histograms": _OF_POINT | {"edges": "DOUBLE[]", "counts": "DOUBLE[]"},
    "system": _OF_EVENT | {"device": "VARCHAR", "key": "VARCHAR", "value": "DOUBLE"},
    "console": _OF_EVENT | {"place": "BIGINT", "stream": "VARCHAR", "line_no": "BIGINT", "line": "VARCHAR"},
}
