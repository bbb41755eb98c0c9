"""Which files of a store a query reads: chosen by the runs, labels and keys that it names, before one is opened."""

import contextlib
import math
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from chiplog_collector.query.cold_needs import Need, Relations
from chiplog_collector.spanning.held_rows import CATALOG
from chiplog_collector.spanning.local_files import LocalFiles
from chiplog_collector.spanning.merged_views import variable_of
from chiplog_collector.store.delta_store import StoredFile, StoreError
from chiplog_schemas.query.query_messages import QueryRejected
from chiplog_schemas.sql import LARGE

GB = 1_000_000_000
_POLL_S = 0.05  # for the first look at the store
CHOICES_MAX = 1_000  # kept of one state; a page asks some 20
_ENDS = ("run_from", "run_to", "key_from", "key_to", "producer_from", "producer_to")
_NAMES = """SELECT log, published_run_id, published_label, uuid FROM merged.published
WHERE list_contains($run_ids, run_id) AND ($labels IS NULL OR list_contains($labels, label))"""
# Agents send samples; those of a label are of its node and its time, see the view `system`.
_SAMPLERS = f"""SELECT n.log, n.run_id, n.label, n.uuid, t.first_s, t.last_s
FROM (
    SELECT t.node, epoch_us(min(t.started_at)) / 1e6 AS first_s,
           coalesce(epoch_us(max(t.left_at)) / 1e6, 'infinity'::DOUBLE) AS last_s
    FROM merged.tenures t JOIN merged.runs r ON r.run = t.run
    WHERE list_contains($run_ids, r.run_id) AND ($labels IS NULL OR list_contains($labels, t.label))
      AND t.started_at <= t.left_at
    GROUP BY t.node
) t JOIN merged.producers a
    ON coalesce(a.agent_node, a.node) = t.node AND (a.role IS NULL OR a.role NOT IN ('rank', 'console'))
JOIN {CATALOG}.held.published_names n ON n.producer = a.producer"""


Needs = Mapping[str, Sequence[Need]]  # by large table; a table that is not there is not read


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of the large tables at one moment.

    Attributes:
        files: By table.
        log: The ID of the own log.
        until: The record of it up to which all of its rows are in these files; -1: none.
    """

    files: Mapping[str, Sequence[StoredFile]]
    log: str
    until: int = -1


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of a table that a query reads, and between which names its rows are; None: any.

    has_left: True if no row of these files is in the index. dropped: the record of the own log up to which none is.
    """

    files: Sequence[StoredFile]
    has_left: bool = False
    dropped: int = -1
    run_from: str | None = None
    run_to: str | None = None
    key_from: str | None = None
    key_to: str | None = None
    producer_from: str | None = None
    producer_to: str | None = None


_NOTHING = Choice([])


class _Known(NamedTuple):
    """What was chosen in one state of the index and the store: only a flush or a refresh changes it.

    choices: by table and needs.
    """

    snapshot: Snapshot
    versions: Mapping[str, int]
    choices: dict[tuple[str, tuple[Need, ...]], Choice]


class Name(NamedTuple):
    """A log, run, label and producer under which rows were published; of samples, also from when to when they count."""

    log: str
    run_id: str | None
    label: str | None
    producer: str
    first_s: float = -math.inf
    last_s: float = math.inf


Names = Collection[Name]


def choose(table: str, needs: Sequence[tuple[Need, Names | None]], snapshot: Snapshot, dropped: int) -> Choice:
    """Choose the files of a table.

    Args:
        table: The table.
        needs: What is read of it, each with the names under which these rows were published; None: any.
        snapshot: Its files.
        dropped: The record of the own log up to which its rows are in files alone; -1: none are.
    """
    wanted = [(need, None if names is None else _by_run(names)) for need, names in needs]
    files = [
        file
        for file in snapshot.files.get(table, ())
        if not _is_in_index(file, snapshot.log, dropped) and any(_may_have(file, *each) for each in wanted)
    ]
    runs = [None if names is None else {name.run_id for name in names} for _, names in needs]
    keys = [need.keys for need, _ in needs]
    producers = [None if names is None else {name.producer for name in names} for _, names in needs]
    has_left = all(_has_left(file, snapshot.log, dropped) for file in files)
    return Choice(files, has_left, dropped, *_ends(runs), *_ends(keys), *_ends(producers))


def _ends(sets: Sequence[Any]) -> tuple[str | None, str | None]:
    """Return the least and the greatest name of all sets; None if one may be anything."""
    if any(names is None or None in names for names in sets):  # safeguard: rows-of-renamed-run-read
        return None, None
    together = set().union(*sets)
    return (min(together), max(together)) if together else (None, None)


def _is_in_index(file: StoredFile, log: str, dropped: int) -> bool:
    """Return True if all rows of a file are still in the index."""
    return file.log == log and "number" in file.ranges and file.ranges["number"][0] > dropped


def _has_left(file: StoredFile, log: str, dropped: int) -> bool:
    """Return True if no row of a file is in the index."""
    return file.log not in ("", log) or (file.log == log and file.ranges.get("number", (0, dropped + 1))[1] <= dropped)


def _by_run(names: Names) -> list[tuple[Name, list[Name]]]:
    """Return names by log and run, each after one that spans the time of all: a run of many labels is many names."""
    groups: dict[tuple[str, str | None], list[Name]] = defaultdict(list)
    for name in names:
        groups[name.log, name.run_id].append(name)
    return [
        (Name(*run, None, "", min(name.first_s for name in of_run), max(name.last_s for name in of_run)), of_run)
        for run, of_run in groups.items()
    ]


def _may_have(file: StoredFile, need: Need, groups: list[tuple[Name, list[Name]]] | None) -> bool:
    if need.keys is not None and not any(file.may_have("key", key) for key in need.keys):
        return False
    return groups is None or any(
        file.may_have("log", run.log)
        and file.may_have("run_id", run.run_id)
        and _is_during(file, run)
        and any(
            file.may_have("label", name.label) and file.may_have("producer", name.producer) and _is_during(file, name)
            for name in names
        )
        for run, names in groups
    )


def _is_during(file: StoredFile, name: Name) -> bool:
    """Return False only if all rows of a file are before or after the time of a name."""
    times = file.ranges.get("ts")
    return times is None or (times[0].timestamp() <= name.last_s and times[1].timestamp() >= name.first_s)


class ColdFiles:
    """Gives each query its files. Another thread keeps `snapshot` new.

    Args:
        files: Makes files of the store readable.
        empty: By large table, a file with its columns and without rows.
        snapshot: The first one.
        gb_max: That one query may read.
        relations: The views that may read them.
        contents: The directory of saved contents, which gets what the store has of others.
        is_alone: True if there are no other rows: queries then wait for the first look at the store.
    """

    def __init__(
        self,
        files: LocalFiles,
        empty: Mapping[str, Path],
        snapshot: Snapshot,
        gb_max: float,
        relations: Relations,
        contents: Path,
        *,
        is_alone: bool = False,
    ) -> None:
        self.snapshot = snapshot
        self.relations = relations
        self.trouble = ""  # why the store cannot be read
        self.seen = threading.Event()  # set after the first look
        self._files = files
        self._empty = empty
        self._gb_max = gb_max
        self._contents = contents
        self._is_alone = is_alone
        self._known = _Known(snapshot, {}, {})
        # By cursor and table: the value of its variable.
        self._values: weakref.WeakKeyDictionary[duckdb.DuckDBPyConnection, dict[str, tuple[list[str], Choice]]]
        self._values = weakref.WeakKeyDictionary()

    def prepare(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Make a cursor see the merged views, without any file."""
        cursor.execute(f"USE {CATALOG}")
        self._values[cursor] = {}
        for table in LARGE:
            self._set(cursor, table, [], _NOTHING)

    @contextlib.contextmanager
    def opened(self, cursor: duckdb.DuckDBPyConnection, needed: Needs, deadline: float) -> Iterator[None]:
        """Have the files that a query reads at hand for as long as the block runs, which is within its transaction.

        Raises:
            QueryRejected: It would read too much, or the store does not give a file.
        """
        while self._is_alone and not self.seen.wait(_POLL_S):
            if self.trouble or time.monotonic() > deadline:
                raise QueryRejected(
                    f"the store cannot be read: {self.trouble or 'it has not answered yet'}; ask again later"
                )
        with self.chosen(cursor, needed, deadline):
            yield

    @contextlib.contextmanager
    def chosen(self, cursor: duckdb.DuckDBPyConnection, needed: Needs, deadline: float = math.inf) -> Iterator[None]:
        """Set the variables of what a query needs for as long as the block runs."""
        if not needed:
            self._set_all(cursor, {}, {})  # safeguard: files-of-last-query-not-opened
            yield
            return
        snapshot = self.snapshot
        versions = dict(cursor.execute("SELECT name, n FROM merged.versions").fetchall())
        dropped = versions.get("dropped", -1)
        if dropped > snapshot.until:  # safeguard: dropped-rows-are-read
            why = self.trouble or "its files are not known yet"
            raise QueryRejected(f"rows that the query reads are in the store alone, and {why}; ask again later")
        # safeguard: unseen-store-is-not-empty
        if not snapshot.files and any(  # before the first look
            self._is_elsewhere(cursor, need) for wants in needed.values() for need in wants
        ):
            why = self.trouble or "it has not answered yet"
            raise QueryRejected(f"the query reads rows of other collectors, and the store cannot be read: {why}")
        known = self._known
        if known.snapshot is not snapshot or known.versions != versions:  # safeguard: choice-of-older-rows-forgotten
            known = self._known = _Known(snapshot, versions, {})
        choices = {}
        for table, wanted in needed.items():
            choice = known.choices.get((table, tuple(wanted)))
            if choice is None:
                choice = self._choice(cursor, table, wanted, snapshot, dropped)
                if len(known.choices) < CHOICES_MAX:
                    known.choices[table, tuple(wanted)] = choice
            choices[table] = choice
        n_bytes = sum(file.size_bytes for choice in choices.values() for file in choice.files)
        if n_bytes > self._gb_max * GB:
            raise QueryRejected(
                f"query would read {n_bytes / GB:.1f} GB of the store, and {self._gb_max:g} are allowed; add a "
                "condition on run_id, such as WHERE run_id = '…', or set CHIPLOG_COLD_GB"
            )
        with contextlib.ExitStack() as stack:
            try:
                paths = {
                    table: stack.enter_context(self._files.opened(table, choice.files, deadline))
                    for table, choice in choices.items()
                    if choice.files
                }
            except (StoreError, OSError) as error:
                raise QueryRejected(
                    f"the store does not give what the query reads: {error}; ask again later"
                ) from error
            self._set_all(cursor, paths, choices)
            yield

    def fetch_content(self, digest: str) -> None:
        """Copy a saved content of another collector to the directory of contents. Raises FileNotFoundError, OSError."""
        self._files.fetch_content(digest, self._contents)

    def _choice(
        self, cursor: duckdb.DuckDBPyConnection, table: str, wanted: Sequence[Need], snapshot: Snapshot, dropped: int
    ) -> Choice:
        if all(_is_in_index(file, snapshot.log, dropped) for file in snapshot.files.get(table, ())):
            return _NOTHING
        return choose(table, [(need, self._names(cursor, table, need)) for need in wanted], snapshot, dropped)

    def _set_all(
        self, cursor: duckdb.DuckDBPyConnection, paths: Mapping[str, list[str]], choices: Mapping[str, Choice]
    ) -> None:
        """Set the variables of all tables, as far as the last query left others."""
        for table in LARGE:
            value = paths.get(table, []), choices.get(table, _NOTHING)
            if self._values[cursor].get(table) != value:
                self._set(cursor, table, *value)

    def _set(self, cursor: duckdb.DuckDBPyConnection, table: str, paths: list[str], choice: Choice) -> None:
        self._values[cursor].pop(table, None)  # not known if this is interrupted
        value: dict[str, Any] = {"files": list(paths) or [str(self._empty[table])]}
        value |= {name: getattr(choice, name) for name in ("has_left", "dropped", *_ENDS)}
        cursor.execute(f"SET VARIABLE {variable_of(table)} = $value", {"value": value})
        self._values[cursor][table] = paths, choice

    def _is_elsewhere(self, cursor: duckdb.DuckDBPyConnection, need: Need) -> bool:
        """Return True if rows of a need may be in other logs than the own one."""
        query = f"""SELECT exists(FROM merged.identified i JOIN {CATALOG}.held.published_names n USING (producer)
            WHERE n.log <> $log AND ($run_ids IS NULL OR list_contains($run_ids, i.run_id)))"""
        run_ids = None if need.run_ids is None else sorted(need.run_ids)
        return bool(cursor.execute(query, {"log": self.snapshot.log, "run_ids": run_ids}).fetchall() == [(True,)])

    @staticmethod
    def _names(cursor: duckdb.DuckDBPyConnection, table: str, need: Need) -> Names | None:
        """Return the logs, runs, labels and producers under which the rows of a need were published."""
        if need.run_ids is None:
            return None
        given = {"run_ids": sorted(need.run_ids), "labels": None if need.labels is None else sorted(need.labels)}
        rows = cursor.execute(_SAMPLERS if table == "system" else _NAMES, given).fetchall()
        return {Name(*row) for row in rows}
