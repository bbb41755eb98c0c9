"""Query the database: through the collector while one runs, else from its file.

`connect()` finds out which. A client for a directory checks with every query, because an embedded collector starts and
stops on demand. The file is opened for one query at a time, so that a client never blocks the start of a collector.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from chiplog_client import daemons, database_file, read_model
from chiplog_client.connection import CollectorConnection
from chiplog_client.pending_delivery import PendingDelivery
from chiplog_client.query_parameters import Params, plain_params
from chiplog_client.result_source import MemoryResult, RemoteResult, ResultSource
from chiplog_client.result_stream import ResultStream
from chiplog_client.results.result import QueryError, Result
from chiplog_client.store_reader import check_readable, reader_places, start_reader
from chiplog_schemas.addresses import is_store, query_address_of
from chiplog_schemas.limits import MIB, QUERY_TIMEOUT_S
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.file_lock import lock_holder_pid
from chiplog_schemas.process.log_owner import served_elsewhere
from chiplog_schemas.process.recording_dir import recording_dir
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.duckdb_errors import foreign_path_reason
from chiplog_schemas.query.query_messages import FILE_PART_BYTES_MAX, QueryMessageKind
from chiplog_schemas.security.curve import ClientCurve, client_curve
from chiplog_schemas.security.key_files import Keys, keys_dir
from chiplog_schemas.security.permissions import Role
from chiplog_schemas.storage.content_files import DIGEST_BYTES, read_content

if TYPE_CHECKING:
    import duckdb

__all__ = ["Client", "NoDataError", "QueryError", "Result", "ResultStream", "connect"]

CONNECT_WAIT_S = 5.0  # a starting collector answers within this
POLL_AGAIN_S = 0.25  # between two checks of which process holds the database
SMALL_RESULT_BYTES = 16 * MIB  # of a result that `stream` receives in one message
_LIVING_PLACES = """
SELECT DISTINCT collector FROM run_places
WHERE list_contains($runs::VARCHAR[], run_id) AND NOT is_silent AND collector IS NOT NULL ORDER BY collector
"""

_log = logging.getLogger("chiplog")


class NoDataError(RuntimeError):
    """Nothing has been recorded here yet."""


def connect(url: str | None = None, *, dir: str | os.PathLike[str] | None = None, start: bool = True) -> "Client":
    """Return a client for the collector at `url`, or for the data under `dir`.

    With neither it uses the variable CHIPLOG_COLLECTOR, else CHIPLOG_DIR, else ~/.chiplog; in a child of a process with
    an open run the directory of that run.

    Args:
        url: The collector's address as agents have it: tcp://HOST:PORT (SQL is answered at the next port) or
            ipc:///PATH. Or a store of Delta tables, s3://BUCKET/FOLDER or file:///DIRECTORY: a process of this host
            then reads it, and ends when no client asks. That needs `chiplog[lake]`.
        dir: A CHIPLOG_DIR.
        start: True starts the embedded daemons if no agent runs, and journals of ended processes or a spool with events
            of ranks wait. If an embedded collector of this host was killed, it also applies the rest of its log. One
            line on stderr reports each.
            Nothing is started with `url`, with CHIPLOG_AGENT or CHIPLOG_COLLECTOR set, or in a directory that this
            user cannot write. The call waits for a collector that is starting.

    Returns:
        A client; close it, or use it as a context manager.

    Raises:
        NoDataError: Nothing has been recorded there.
        QueryError: The collector does not answer within 5 s, or refuses this host's key; `kind` is unreachable.
        ValueError: The address is malformed, or its keys are missing (`chiplog keys`): a collector on another host
            needs a reader's key.
    """
    if url is None and dir is None:
        url = os.environ.get("CHIPLOG_COLLECTOR") or None
    if url is not None and dir is not None:
        raise ValueError(f"both url={url!r} and dir={os.fspath(dir)!r} are given; give one of them")
    if url is not None and is_store(url):
        store = check_readable(url)
        client = Client(None, reader_places(store), store=store)
    elif url is not None:
        client = _remote_client(query_address_of(url))
    else:
        where = paths_for_root(recording_dir(dir))
        if reason := foreign_path_reason(where.index):
            raise QueryError("refused", f"{reason}; move it, and set CHIPLOG_DIR or --dir to its new place")
        if start and (elsewhere := served_elsewhere(where)):
            print(f"chiplog: {elsewhere}", file=sys.stderr)
        client = Client(None, where)
    client._may_start = start and not any(os.environ.get(name) for name in ("CHIPLOG_AGENT", "CHIPLOG_COLLECTOR"))
    try:
        recorded = client._where if client._store is None else None
        delivery = PendingDelivery(recorded, client.sql) if recorded is not None else None
        # safeguard: waiting-journals-delivered
        waiting = delivery.start_daemons() if delivery is not None and client._may_start else []
        client._locate()
        if delivery is not None:
            delivery.wait_for_spool()
            delivery.wait_for_ends(waiting)
            if start:
                delivery.wait_for_finished()
    except BaseException:
        client.close()
        raise
    return client


def _remote_client(address: str) -> "Client":
    """Return the client of an address, with the keys of this host if it needs some. Raises ValueError."""
    keys = Keys(keys_dir(None, os.environ, recording_dir(None)))
    return Client(address, None, client_curve(keys, address, Role.READER, Role.COLLECTOR))


def _reopen(address: str | None, where: Paths | None, needs_keys: bool, store: str | None = None) -> "Client":
    """Return the client of a pickle."""
    return _remote_client(address) if address is not None and needs_keys else Client(address, where, store=store)


class Client:
    """Runs SQL; returned by `connect`. Thread-safe, one query at a time. A forked child has a connection of its own."""

    def __init__(
        self,
        address: str | None,
        where: Paths | None,
        curve: ClientCurve | None = None,
        *,
        store: str | None = None,
    ) -> None:
        self._address = address
        self._store = store  # that `where` reads
        self._curve = curve
        self._where = where
        self._connection: CollectorConnection | None = None
        self._own_lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._warned_stale = False
        self._may_start = False
        self._cancelled: threading.Event | None = None  # of queries that are given none; of the page's server

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by address or directory, without keys: the copy opens a connection of its own when it is used."""
        return _reopen, (self._address, self._where, self._curve is not None, self._store)

    @property
    def _lock(self) -> threading.Lock:
        """The lock of this process: in a forked child, a thread that is not there may hold the parent's."""
        if self._pid != os.getpid():  # safeguard: fork-renews-client-lock
            self._own_lock, self._pid = threading.Lock(), os.getpid()
        return self._own_lock

    def sql(
        self,
        query: str,
        params: Params = None,
        timeout_s: float | None = None,
        time_zone: str = "UTC",
        *,
        cancelled: threading.Event | None = None,
    ) -> "Result":
        """Run one SELECT and return its whole result.

        Args:
            query: The SELECT. Times of the views are UTC without a zone; so are literals that are compared with them.
            params: Values for `?` in order, or a mapping for `$name`.
            timeout_s: At most 30, the default.
            time_zone: IANA name of the session's zone, for expressions of the query with a zone, such as
                `now()::DATE` or `timezone('UTC', ts) > '2026-01-02 03:00'`.
            cancelled: Another thread sets it to end the query, which then raises QueryError.

        Raises:
            QueryError: The query has no result; `kind` says why. The limit of a result is 256 MiB of Arrow data,
                compressed: `stream` has none.
        """
        return Result(self._open_result(query, params, timeout_s, time_zone, cancelled=cancelled).read())

    def stream(
        self,
        query: str,
        params: Params = None,
        timeout_s: float | None = None,
        time_zone: str = "UTC",
        *,
        cancelled: threading.Event | None = None,
    ) -> "ResultStream":
        """Run one SELECT and return its result batch by batch, in bounded memory here and at the collector.

        The query runs at once and as a whole; no transaction is open while you read. Other queries of this client work
        in the meantime. The collector drops a result of which nothing was read for 10 minutes.

        Args:
            query: As of `sql`.
            params: As of `sql`.
            timeout_s: Of the query, without the reading; at most 30, the default.
            time_zone: As of `sql`.
            cancelled: As of `sql`.

        Returns:
            An iterator of Arrow record batches; close it, or use it as a context manager.

        Raises:
            QueryError: The query has no result; `kind` says why.

        Examples:
            >>> with client.stream("FROM metrics") as stream:
            ...     for batch in stream:
            ...         print(batch.num_rows)
        """
        return ResultStream(self._open_result(query, params, timeout_s, time_zone, SMALL_RESULT_BYTES, cancelled))

    def _open_result(
        self,
        query: str,
        params: Params,
        timeout_s: float | None,
        time_zone: str,
        bytes_max: int = 0,
        cancelled: threading.Event | None = None,
    ) -> ResultSource:
        """Run a query. cancelled: as of `stream`."""
        plain = plain_params(params)
        timeout_s = QUERY_TIMEOUT_S if timeout_s is None else float(timeout_s)
        if not 0 < timeout_s <= QUERY_TIMEOUT_S:
            raise QueryError("refused", f"timeout of {timeout_s:g} s is not within 0 and {QUERY_TIMEOUT_S:g} s")
        with self._lock:
            if self._closed:
                raise QueryError("refused", "this client is closed; connect again")
            zone = "" if time_zone == "UTC" else time_zone
            return self._execute(query, plain, timeout_s, zone, bytes_max, cancelled or self._cancelled)

    def read_file(self, sha256: str, offset: int = 0) -> Iterator[bytes]:
        """Yield a stored content, in parts of up to 1 MiB. The caller compares its digest.

        Args:
            sha256: Its digest in 64 hex digits, as in the views `files` and `media`.
            offset: Bytes at its start that are left out.

        Raises:
            QueryError: The content is not stored there, or the collector does not answer.
            ValueError: `sha256` is not a digest.
        """
        digest = bytes.fromhex(sha256)
        if len(digest) != DIGEST_BYTES:
            raise ValueError(f"sha256 {sha256!r:.80} is not {2 * DIGEST_BYTES} hex digits; the view files has it")
        n_bytes = offset + 1
        while offset < n_bytes:
            with self._lock:
                n_bytes, part = self._read_part(digest, offset)
            if not part and offset < n_bytes:
                raise QueryError("internal", f"the file {sha256} ends after {offset} of {n_bytes} bytes")
            offset += len(part)
            yield bytes(part)

    def _read_part(self, digest: bytes, offset: int) -> tuple[int, bytes | memoryview]:
        if self._closed:
            raise QueryError("refused", "this client is closed; connect again")
        if self._where is not None and not self._collector_lives():
            self._disconnect()
            try:
                return read_content(self._where.files, digest, offset, FILE_PART_BYTES_MAX)
            except FileNotFoundError:
                raise QueryError("refused", f"content {digest.hex()} is not stored in {self._where.files}") from None
            except OSError as error:
                raise QueryError("internal", f"a saved file cannot be read: {error}") from error
        if self._connection is None or self._connection.is_broken:
            self._disconnect()
            self._locate()
        if self._connection is None:  # the collector has just ended
            return self._read_part(digest, offset)
        try:
            return self._connection.read_file(digest, offset, self._collector_lives)
        except QueryError as error:
            # safeguard: file-read-without-collector
            if error.kind != "unreachable" or self._where is None or self._collector_lives():
                raise
            return self._read_part(digest, offset)  # from the directory: an embedded collector has ended

    def delete_runs(self, run_ids: Sequence[str], *, force: bool = False, why: str = "") -> dict[str, Any]:
        """Delete runs: their rows, and with time their records in the log and their saved files.

        What still arrives of their processes is ignored. A new run may have the same ID. If no collector runs for a
        directory of this host, one is started for it.

        Args:
            run_ids: The runs. All are deleted, or none.
            force: Also runs with a label that has not ended.
            why: A text for the row in `events`.

        Returns:
            The numbers of `runs`, and of `labels` that are deleted now. Of runs that only other collectors of a store
            have, also the hosts that were `asked`: they carry it out within a minute.

        Raises:
            QueryError: Nothing was deleted: a run is unknown or runs (`kind` is refused), this client may not, or the
                collector does not answer.
        """
        return self._change("delete", {"runs": list(run_ids), "force": force, "why": why})

    def edit_run(self, run_id: str, **fields: Any) -> dict[str, Any]:
        """Change what describes a run. An edited field no longer follows what its processes report.

        Args:
            run_id: The run.
            **fields: `name`, `notes`, `project`, `group`, `job_type`: texts; `tags`: a list of texts. None clears one.

        Returns:
            The `run_id`. Of a run that only other collectors of a store have, also the hosts that were `asked`: they
            carry it out within a minute.

        Raises:
            QueryError: Nothing was changed; `kind` says why.
        """
        return self._change("edit", {"run": run_id, "fields": fields})

    def restore_producers(self, producers: Sequence[bytes]) -> dict[str, Any]:
        """Let what these processes recorded be stored again after a deletion, for an import. Raises QueryError.

        Args:
            producers: 16 bytes each.
        """
        return self._change("restore", {"producers": list(producers)})

    def save_view(self, name: str, view: str | None) -> dict[str, Any]:
        """Keep a JSON text under a name, for the view `saved_views`; None removes it. Raises QueryError."""
        return self._change("save_view", {"name": name, "view": view})

    def _living_places(self, arguments: dict[str, Any]) -> str:
        """Return the collectors that have the runs of a change, for a message."""
        runs = arguments.get("runs") or [run for run in [arguments.get("run")] if run]
        try:
            rows = self.sql(_LIVING_PLACES, {"runs": runs}).rows() if runs else []
        except QueryError:
            rows = []  # the refusal is the answer
        names = " or ".join(row["collector"] for row in rows)
        return f"a collector that has it: {names}" if names else "a collector of this store for a change"

    def _change(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._store is not None:
            raise QueryError("refused", f"{self._store} can only be read here; ask {self._living_places(arguments)}")
        id = os.urandom(query_messages.ID_BYTES)
        with self._lock:
            for last in (False, True):
                if self._closed:
                    raise QueryError("refused", "this client is closed; connect again")
                if self._where is not None and not self._collector_lives():
                    self._disconnect()
                    _start_collector(self._where)
                if self._connection is None or self._connection.is_broken:
                    self._disconnect()
                    self._locate()
                try:
                    if self._connection is not None:
                        return self._connection.change(id, action, arguments, self._collector_lives)
                except QueryError as error:
                    # safeguard: change-survives-idle-exit
                    if error.kind not in ("unreachable", "stopping") or last or self._where is None:
                        raise
                    self._disconnect()
            raise QueryError("unreachable", "the collector ends whenever it is asked; see chiplog status")

    def close(self) -> None:
        """Close the connection. May be called twice."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _execute(
        self,
        query: str,
        params: "list[Any] | dict[str, Any] | None",
        timeout_s: float,
        time_zone: str,
        bytes_max: int,
        cancelled: threading.Event | None,
    ) -> ResultSource:
        for last in (False, True):
            if self._connection is not None and (self._connection.is_broken or not self._collector_lives()):
                self._disconnect()
            if self._connection is None:
                opened = self._locate(keep_file=True)
                if opened is not None:
                    database_file.require_read_model(self._where, opened, query)
                    self._warn_stale(opened)
                    space = database_file.result_space(self._where) if bytes_max and self._where is not None else None
                    return database_file.ask(opened, query, params, timeout_s, time_zone, space, cancelled)
            assert self._connection is not None
            try:
                lives = self._collector_lives
                answer = self._connection.execute(query, params, timeout_s, lives, time_zone, bytes_max, cancelled)
                if answer.kind == QueryMessageKind.RESULT:
                    return MemoryResult(answer.payload, answer.n_rows)
                # The rest of the result is read through this connection; the next query opens another one.
                remote, self._connection = self._connection, None
                return RemoteResult(remote, answer, lives, cancelled)
            except QueryError as error:
                # An embedded collector exits when it is idle, and aborts queries: its file is free then.
                # safeguard: cut-query-asked-again
                if error.kind not in ("unreachable", "stopping") or last or self._where is None:
                    raise
                self._disconnect()
            except (
                BaseException
            ):  # of a signal handler: a collector that knows no CANCEL drops the query of a closed connection
                self._disconnect()
                raise
        raise AssertionError("the second try returns or raises")

    def _open_file(self, where: Paths) -> "duckdb.DuckDBPyConnection | str":
        """Open the database; before that apply, once, the rest of the log of an embedded collector that was killed.

        The same replaces the views of an older version.

        Returns one line with the reason if the database cannot be opened now. Raises NoDataError.
        """
        may_apply, is_outdated = self._may_start and daemons.may_apply_log(where), False
        if where.index.exists():
            opened = database_file.open_file(where)
            if isinstance(opened, str) or not may_apply:
                return opened
            is_outdated = read_model.is_outdated(opened)
            if not is_outdated and database_file.unapplied_records(where, opened) == 0:
                return opened
            database_file.close_file(opened)
        elif not may_apply:
            raise _no_data(where)
        self._may_start = False
        if is_outdated:
            what = f"the database {where.index} has the views of an older version of chiplog"
            print(f"chiplog: {what}; they are replaced now", file=sys.stderr)
        else:
            what = f"the log in {where.collector} has records that are not in the database"
            print(f"chiplog: {what}; they are applied now", file=sys.stderr)
        try:
            daemons.apply_log(where)  # safeguard: reader-applies-log
        except OSError as error:
            print(f"chiplog: {what}: {error}", file=sys.stderr)
        return database_file.open_file(where) if where.index.exists() else what

    def _warn_stale(self, opened: "duckdb.DuckDBPyConnection") -> None:
        """Warn once if daemons were killed before all acknowledged records were in the file."""
        assert self._where is not None
        n_records = 0 if self._warned_stale else database_file.unapplied_records(self._where, opened)
        if n_records > 0:
            self._warned_stale = True
            _log.warning(
                "chiplog: %d records of the log are not in the database yet; start the collector (chiplog up) "
                "to apply them",
                n_records,
            )

    def _awaits_daemons(self, where: Paths) -> bool:
        """Return True if a process records here whose agent, and with it the first collector, is about to start."""
        if where.index.exists() or daemons.has_log(where) or daemons.daemon_pid(where, daemons.AGENT):
            return False
        return daemons.has_live_journal(where)

    def _starts_collector(self, where: Paths) -> bool:
        """Return True if an agent was started a short time ago that starts a collector here if none runs."""
        # safeguard: collector-elsewhere-not-awaited
        return daemons.is_coming_up(where, daemons.AGENT) and not daemons.goes_elsewhere(where)

    def _collector_lives(self) -> bool:
        """Return True if the collector may still answer, as is assumed of a collector on another machine."""
        return self._where is None or lock_holder_pid(self._where.collector / "lock") != 0

    def _locate(self, keep_file: bool = False) -> "duckdb.DuckDBPyConnection | None":
        """Find the collector or the file. Sets _remote, or returns the open file if `keep_file`."""
        if self._address is not None:
            self._connection = CollectorConnection(self._address, self._curve)
            if not self._connection.ping(CONNECT_WAIT_S):
                remedy = "check that it runs there (chiplog status) and that CHIPLOG_COLLECTOR is its address"
                remedy = self._connection.handshake_error or remedy
                self._disconnect()
                raise QueryError(
                    "unreachable", f"no collector answers at {self._address} within {CONNECT_WAIT_S:g} s; {remedy}"
                )
            return None
        assert self._where is not None
        if self._store is not None:
            start_reader(self._store)  # it may have ended since
        where, begun = self._where, time.monotonic()
        deadline = begun + CONNECT_WAIT_S
        while True:
            pid = lock_holder_pid(where.collector / "lock")
            if pid:
                self._connection = CollectorConnection(where.query_address)
                # In slices: it may be exiting instead of starting.
                if self._connection.ping(min(1.0, max(0.05, deadline - time.monotonic()))):
                    return None
                self._disconnect()
                reason = f"the collector of {where.root} (process {pid}) does not answer; see chiplog status"
            # safeguard: connect-waits-for-collector
            elif not where.index.exists() and self._starts_collector(where):
                reason = f"the agent of {where.root} has not started a collector yet; see chiplog status"
            # safeguard: live-journals-count
            elif self._awaits_daemons(where):
                reason = f"processes record in {where.root}, and no agent has started yet; see chiplog status"
                deadline = max(deadline, begun + daemons.START_WAIT_S)
            else:
                opened = self._open_file(where)
                if not isinstance(opened, str):
                    if keep_file:
                        return opened
                    database_file.close_file(opened)
                    return None
                reason = opened
            if time.monotonic() > deadline + daemons.start_wait_s(where):
                raise QueryError("unreachable", reason)
            time.sleep(POLL_AGAIN_S)


def _start_collector(where: Paths) -> None:
    """Start the embedded collector of a directory, for a change. Raises QueryError."""
    if elsewhere := daemons.goes_elsewhere(where):  # safeguard: change-starts-no-second-collector
        raise QueryError("refused", f"no collector runs for {where.root}; {elsewhere}")
    if not daemons.may_apply_log(where):
        remedy = f"start it (chiplog up --dir {where.root}), or name its address with --url"
        raise QueryError("refused", f"no collector runs for {where.root}, and only it can change data; {remedy}")
    try:
        daemons.start(where, daemons.COLLECTOR, ["--embedded"])
    except OSError as error:
        raise QueryError("unreachable", f"no collector can be started for {where.root}: {error}") from error


def _no_data(where: Paths) -> NoDataError:
    if elsewhere := daemons.goes_elsewhere(where):
        return NoDataError(elsewhere)
    if daemons.has_log(where):
        return NoDataError(f"no database has the log in {where.collector} yet; start the collector (chiplog up)")
    return NoDataError(
        f"nothing has been recorded under {where.root} yet; run a training with chiplog.init() first, "
        "or point CHIPLOG_DIR or --dir at the right directory"
    )
