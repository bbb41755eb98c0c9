"""Writes to `store.held` what counts where a run is in several logs: see spread_runs."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import duckdb

from chiplog_collector.spanning.spread_runs import (
    DESCRIBING,
    Ranges,
    SeenProducer,
    SeenRun,
    parted,
    spread_runs,
)
from chiplog_collector.spanning.spread_versions import SeenVersion, numbered


def newest_rows(table: str, key: str, log: str) -> str:
    """Return the query of the newest row of each producer or run in each log but that of `base`.

    Args:
        table: The table of `held`, whose later rows replace earlier ones.
        key: The column of the producer or run.
        log: The SQL of the ID of the log in `base`.
    """
    return f"""SELECT * FROM store.held.{table} WHERE log <> {log}
        QUALIFY row_number() OVER (PARTITION BY log, {key} ORDER BY flush DESC) = 1"""


# The newest row of each producer and run in each log.
_PRODUCERS = f"""SELECT * EXCLUDE (run_id_of), run_id_of AS run_id FROM ({newest_rows("producers", "producer", "$log")})
    UNION ALL BY NAME
    SELECT p.*, $log AS log, r.run_id FROM {{main}}.base.producers p LEFT JOIN {{main}}.base.runs r ON r.run = p.run"""
_RUNS = f"""{newest_rows("runs", "run_id", "$log")}
    UNION ALL BY NAME SELECT *, $log AS log FROM {{main}}.base.runs"""
_INTERVALS = """SELECT producer, log, first_seq, last_seq, seen_at FROM store.held.intervals
    UNION ALL SELECT producer, $log, first_seq, last_seq, seen_at FROM {main}.base.intervals"""
TABLES = (
    "placed (producer INTEGER, log VARCHAR, attempt INTEGER, is_primary BOOLEAN)",
    "spread_runs (run_id VARCHAR, project VARCHAR, name VARCHAR, run_group VARCHAR, job_type VARCHAR, "
    "tags VARCHAR[], notes VARCHAR, primary_label VARCHAR, primary_launch VARCHAR, primary_restart BIGINT)",
    "doubled (producer INTEGER, log VARCHAR, first_seq BIGINT, last_seq BIGINT)",
    "kept_intervals (producer INTEGER, log VARCHAR, first_seq BIGINT, last_seq BIGINT, seen_at TIMESTAMP)",
)
# Of artifacts that several logs have, and of those that another log may have before a version that is published.
VERSIONS = "spread_versions (project VARCHAR, name VARCHAR, digest VARCHAR, version BIGINT)"


class SpreadTables:
    """The tables of `store.held` for runs in several logs. Call `write` within a transaction.

    Args:
        connection: A cursor of the DuckDB that answers queries.
        main: The quoted name of its own database.
        log: The ID of the log in `base`.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, main: str, log: str) -> None:
        self._connection = connection
        self._main = main
        self._log_id = log

    def write(self) -> None:
        """Decide again about all runs that are in several logs."""
        for table in TABLES:
            self._connection.execute(f"DELETE FROM store.held.{table.partition(' ')[0]}")
        intervals = self._doubled_producers()
        self._write_places(intervals)
        for number, by_log in intervals.items():
            self._write_ranges(number, by_log)

    def write_versions(self, passed: Mapping[str, int] | None) -> None:
        """Number again the versions of artifacts that are open. passed: see `numbered`; None: not known."""
        execute = self._connection.execute
        execute("DELETE FROM store.held.spread_versions")
        execute("DELETE FROM store.held.awaited")
        execute(
            "INSERT INTO store.held.awaited SELECT unnest($logs)", {"logs": [*(passed or {}).keys() - {self._log_id}]}
        )
        cut = dict(execute("SELECT log, max(epoch_us(cut_at)) FROM store.held.collectors GROUP BY log").fetchall())
        live = None if passed is None else {log: max(time_us, cut.get(log, 0)) for log, time_us in passed.items()}
        query = """WITH seen AS (
            SELECT v.log, v.project, v.name, v.digest, v.version, v.flush, epoch_us(c.cut_at) AS cut_us
            FROM store.held.artifact_versions v
            LEFT JOIN store.held.collectors c ON c.log = v.log AND c.flush = v.flush
        ), bounds AS (SELECT unnest($logs) AS log, unnest($bounds) AS bound)
        SELECT s.* FROM seen s WHERE (project, name) IN (
            SELECT (project, name) FROM seen LEFT JOIN bounds USING (log) GROUP BY project, name
            HAVING count(DISTINCT log) > 1 OR bool_or(coalesce(cut_us, bound) >= bound))"""
        others = {log: [at for other, at in (live or {}).items() if other != log] for log in cut.keys() | (live or {})}
        bounds = {log: min(times) for log, times in others.items() if times}  # by log: how far all others are
        given = {"logs": list(bounds.keys()), "bounds": list(bounds.values())}
        seen = [
            SeenVersion(log, (project, name, digest), cut_us, flush, version)
            for log, project, name, digest, version, flush, cut_us in execute(query, given).fetchall()
        ]
        if not seen:
            return
        rows = [(*digest, number) for digest, number in numbered(seen, live).items()]
        self._connection.executemany("INSERT INTO store.held.spread_versions VALUES (?, ?, ?, ?)", rows)

    def _rows(self, query: str) -> list[dict[str, Any]]:
        cursor = self._connection.execute(query.replace("{main}", self._main), {"log": self._log_id})
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _doubled_producers(self) -> dict[int, dict[str, tuple[Ranges, Any]]]:
        """Return the ranges by log, and the time of the last of them, of producers that several logs have."""
        found: dict[int, dict[str, tuple[Ranges, Any]]] = defaultdict(dict)
        query = f"""SELECT producer, log, list((first_seq, last_seq)) AS ranges, max(seen_at) AS seen_at
            FROM ({_INTERVALS}) GROUP BY producer, log QUALIFY count(*) OVER (PARTITION BY producer) > 1"""
        for row in self._rows(query):
            found[row["producer"]][row["log"]] = [tuple(pair) for pair in row["ranges"]], row["seen_at"]
        return found

    def _write_places(self, intervals: dict[int, dict[str, tuple[Ranges, Any]]]) -> None:
        spread = f"""WITH seen AS ({_PRODUCERS})
            SELECT producer, log, lower(hex(uuid)) AS uuid, run_id, label, coalesce(launch, '') AS launch,
                   coalesce(restart, 0) AS restart, attempt,
                   coalesce(is_primary, false) AS is_primary, state IS NOT NULL AS has_ended,
                   coalesce(is_presumed, false) AS is_presumed, coalesce(fallback, false) AS fallback,
                   coalesce(epoch_us(started_at), 0) AS started_us, coalesce(epoch_us(ended_at), 0) AS ended_us
            FROM seen WHERE role = 'rank' AND label IS NOT NULL AND run_id IN (
                SELECT run_id FROM ({_RUNS}) GROUP BY run_id HAVING count(*) > 1)"""
        producers, numbers = [], {}
        for row in self._rows(spread):
            numbers[row["uuid"]] = number = row.pop("producer")
            _, seen_at = intervals.get(number, {}).get(row["log"], ([], None))
            seen_us = 0 if seen_at is None else int(seen_at.timestamp() * 1e6)
            producers.append(SeenProducer(**row, seen_us=seen_us))
        if not producers:
            return
        runs = [
            SeenRun(
                row["log"],
                row["run_id"],
                row["primary_label"],
                row["primary_launch"],
                row["primary_restart"] or 0,
                {name: row[name] for name in DESCRIBING},
                tuple(row["edited"] or ()),
            )
            for row in self._rows(f"SELECT * FROM ({_RUNS}) QUALIFY count(*) OVER (PARTITION BY run_id) > 1")
        ]
        found = spread_runs(producers, runs)
        placed = [(numbers[of.uuid], of.log, of.attempt, of.is_primary) for run in found for of in run.places]
        self._connection.executemany("INSERT INTO store.held.placed VALUES (?, ?, ?, ?)", placed)
        for run in found:
            claim = (None, None, 0) if run.primary is None else _claim_of(run.primary)
            row_of_run = [run.run_id, *(run.fields[name] for name in DESCRIBING), *claim]
            self._connection.execute(f"INSERT INTO store.held.spread_runs VALUES ({', '.join('?' * 10)})", row_of_run)

    def _write_ranges(self, number: int, by_log: dict[str, tuple[Ranges, Any]]) -> None:
        found = parted({log: ranges for log, (ranges, _) in by_log.items()})
        rows = [(number, log, first, last) for log, (_, doubled) in found.items() for first, last in doubled]
        if rows:
            self._connection.executemany("INSERT INTO store.held.doubled VALUES (?, ?, ?, ?)", rows)
        kept = [(number, log, *ends, by_log[log][1]) for log, (parts, _) in found.items() for ends in parts]
        if kept:
            self._connection.executemany("INSERT INTO store.held.kept_intervals VALUES (?, ?, ?, ?, ?)", kept)


def _claim_of(run: SeenRun) -> tuple[str | None, str | None, int]:
    return run.primary_label, run.primary_launch, run.primary_restart
