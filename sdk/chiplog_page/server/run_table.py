"""The table of runs, kept between requests: a page that has it gets only the runs that have changed since."""

import asyncio
import secrets
from collections import OrderedDict
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.runs.runs_query import MAPS, RunsRequest, read_runs
from chiplog_client.results.json_texts import json_number
from chiplog_page.server.source import Source

RUNS_MAX = 20_000  # the newest
TABLES_MAX = 8  # choices of columns that are kept
_COLUMNS = [
    *("run_id", "project", "name", "run_group", "job_type", "tags", "notes", "state", "created_at"),
    *("ended_at", "primary_label", "n_labels", "n_attempts", "n_failed", "n_running"),
]
_Chosen = dict[str, list[str]]


class RunTable:
    """One choice of columns. Each version has the runs that changed with it, and those that were deleted."""

    def __init__(self, source: Source, chosen: _Chosen) -> None:
        self._source = source
        self._chosen = chosen
        self._id = secrets.token_hex(4)  # of another server: another table
        self._lock = asyncio.Lock()
        self._state: dict[str, object] | None = None
        self._version = 0
        self._rows: dict[str, list[Any]] = {}
        self._changed: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        self._columns = [*_COLUMNS, *(f"{name}.{key}" for name in MAPS for key in chosen[name])]
        self._columns += ["pending", "lost", "collectors"]
        self._seen: dict[str, Any] = {}  # of each other collector, up to when its rows are known

    async def read(self, since: str) -> dict[str, Any]:
        """Return what has changed since a version; everything if it is unknown."""
        async with self._lock:  # pages that ask at the same time cost one query
            state = await self._source.state()
            if state != self._state:
                self._keep(await self._read_rows())
                self._seen = await self._source.call(_read_seen)
                self._state = state
            table, _, version = since.partition(".")
            is_known = table == self._id and version.isdecimal()
            first = int(version) if is_known else -1
            return {
                "version": f"{self._id}.{self._version}",
                "is_whole": not is_known,
                "columns": self._columns,
                "rows": [self._rows[run] for run, changed in self._changed.items() if changed > first],
                "seen": self._seen,
                "deleted": [run for run, deleted in self._deleted.items() if is_known and deleted > first],
            }

    def _keep(self, rows: dict[str, list[Any]]) -> None:
        self._version += 1
        for run, row in rows.items():
            if self._rows.get(run) != row:
                self._changed[run] = self._version
                self._deleted.pop(run, None)
        for run in self._rows.keys() - rows.keys():
            del self._changed[run]
            self._deleted[run] = self._version
        self._rows = rows

    async def _read_rows(self) -> dict[str, list[Any]]:
        request = RunsRequest(self._columns, limit=RUNS_MAX)
        runs = await self._source.call(lambda client: read_runs(client, request))
        return {run["run_id"]: [json_number(run[name]) for name in self._columns] for run in runs}


def _read_seen(client: Client) -> dict[str, Any]:
    query = "SELECT DISTINCT collector, seen_at FROM run_places WHERE NOT is_here"
    return {row["collector"]: row["seen_at"] for row in client.sql(query)}


class RunTables:
    """The tables of the choices of columns that were asked for last.

    Args:
        source: The data.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tables: OrderedDict[str, RunTable] = OrderedDict()

    def table(self, config: list[str], summary: list[str]) -> RunTable:
        """Return the table with these keys as columns."""
        name = repr((config, summary))
        table = self._tables.pop(name, None) or RunTable(self._source, {"config": config, "summary": summary})
        self._tables[name] = table
        while len(self._tables) > TABLES_MAX:
            self._tables.popitem(last=False)
        return table
