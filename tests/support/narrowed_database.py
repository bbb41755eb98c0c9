"""A small database whose large tables can be narrowed to what a query needs, as if no other file had been opened."""

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

from chiplog_collector.query.cold_needs import Need, Relations, needs, read_relations
from chiplog_collector.query.query_references import folded
from chiplog_collector.query.sql_guard import check_query
from chiplog_schemas.query.query_messages import disable_faulty_optimizers
from chiplog_schemas.sql import LARGE, rollups_sql, tables_sql, views_sql
from tests.support.run_builder import RunBuilder, Sql

RUNS = ("A", "a", "b b", "it's")
LABELS = ("w0", "W0", "w 2")
KEYS = ("loss", "Loss", "acc/1", "it's")
PHASES = ("data", "step", "forward", "barrier")
SAMPLED = ("hw.gpu.throttle.reasons", "hw.gpu.clock.sm", "hw.power", "hw.gpu.throttle.time.sw_power")
ROWS_MAX = 100_000  # of one query: a random join of joins has billions
_Params = list[Any] | dict[str, Any] | None
# Dyadic fractions: their sums do not depend on the order of the rows.
_VALUE = "((step * 37 + producer * 101 + length('{name}') * 11) % 64) / 32.0"


class NarrowedDatabase:
    """Runs with the same labels and keys, several attempts, and machines that they share."""

    def __init__(self) -> None:
        self.connection = connection = duckdb.connect(config={"threads": 1, "memory_limit": "1GB"})
        connection.execute("SET TimeZone = 'UTC'")
        disable_faulty_optimizers(connection)
        connection.execute(tables_sql())
        _fill(RunBuilder(connection))
        connection.execute(rollups_sql())
        self._tables = {f"{table}{ending}": table for table in LARGE for ending in ("", "_recent")}
        self._admit(dict.fromkeys(LARGE))
        known = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        self._tables = {name: table for name, table in self._tables.items() if name in known}
        for name, table in self._tables.items():
            connection.execute(f"ALTER TABLE base.{name} RENAME TO all_{name}")
            connection.execute(f"""CREATE VIEW base.{name} AS SELECT *, f.rowid AS "rowid" FROM base.all_{name} f
                WHERE getvariable('read').{table} IS NULL
                OR list_contains(getvariable('read').{table}, {_number(table)})""")
        connection.execute(views_sql())
        self.relations: Relations = read_relations(connection, views_sql())
        of_time = """(SELECT t.producer, r.run_id, t.label, t.node, t.started_at, t.left_at
            FROM base.tenures t JOIN base.runs r ON r.run = t.run) i
            ON i.node = coalesce(p.agent_node, p.node) AND f.ts BETWEEN i.started_at AND i.left_at"""
        of_producer = "base.identified i ON i.producer = f.producer"
        self._groups = {
            table: connection.execute(f"""SELECT DISTINCT i.run_id, i.label, n.name, f.number
                FROM ({facts}) f JOIN base.producers p ON p.producer = f.producer
                LEFT JOIN {of_time if table == "system" else of_producer}
                JOIN (SELECT id, name FROM base.names UNION ALL SELECT 0, NULL) n ON n.id = f.key""").fetchall()
            for table, facts in self._facts().items()
        }

    def close(self) -> None:
        self.connection.close()

    def columns(self, relation: str) -> list[str]:
        """Return the columns of a relation, without integers of keys: whether `'a' = 5` fails depends on the plan."""
        described = self.connection.execute(f"DESCRIBE FROM {relation}").fetchall()
        return [name for name, kind, *_ in described if (name, kind) != ("key", "INTEGER")]

    def rows(self, sql: str, params: _Params = None, wanted: Mapping[str, Sequence[Need]] | None = None) -> list[str]:
        """Return the rows of a query in no order, of those facts alone that are wanted."""
        if wanted is not None:
            self._admit({table: self._admitted(table, wanted.get(table, ())) for table in LARGE})
        try:
            rows = self.connection.execute(sql, params).fetchmany(ROWS_MAX + 1)
        finally:
            if wanted is not None:
                self._admit(dict.fromkeys(LARGE))
        if len(rows) > ROWS_MAX:
            raise duckdb.OutOfRangeException(f"more than {ROWS_MAX} rows")
        return sorted(repr(tuple(map(_plain, row))) for row in rows)

    def needs(self, sql: str, params: _Params = None) -> dict[str, list[Need]]:
        """Return what a query needs."""
        return needs(check_query(sql, self.connection), params, self.relations)

    def is_whole(self, wanted: Mapping[str, Sequence[Need]]) -> bool:
        """Return True if no row is left out."""
        return all(self._admitted(table, wanted.get(table, ())) == self._admitted(table, [Need()]) for table in LARGE)

    def _admit(self, admitted: Mapping[str, list[int] | None]) -> None:
        parts = [f"{table}: {'NULL' if numbers is None else numbers}::BIGINT[]" for table, numbers in admitted.items()]
        self.connection.execute(f"SET VARIABLE read = {{{', '.join(parts)}}}")

    def _admitted(self, table: str, wanted: Sequence[Need]) -> list[int]:
        found = {
            number
            for run_id, label, key, number in self._groups[table]
            if any(
                (need.run_ids is None or run_id in need.run_ids)
                and (need.labels is None or label in need.labels)
                and (need.keys is None or key in need.keys)
                for need in wanted
            )
        }
        return sorted(found)

    def _facts(self) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        for name, table in self._tables.items():
            key = "0" if table == "console" else "key"
            found.setdefault(table, []).append(
                f"SELECT producer, {key} AS key, ts, {_number(table)} AS number FROM base.all_{name} f"
            )
        return {table: " UNION ALL ".join(parts) for table, parts in found.items()}


def _number(table: str) -> str:
    """Return the number by which rows of a table are admitted together: those of a series, and each sample alone."""
    if table == "system":
        return "f.rowid"
    key = "0" if table == "console" else "f.key"  # a bare name would be a macro's parameter of that name
    return f"f.producer * 1000::BIGINT + {key}"


def _plain(value: Any) -> Any:
    """Round a float: sums of some views depend on their order."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, list):
        return list(map(_plain, value))
    return {name: _plain(part) for name, part in value.items()} if isinstance(value, dict) else value


def _fill(build: RunBuilder) -> None:
    for run_id in RUNS:
        build.run(run_id, primary_label=LABELS[0], project=folded(run_id))
        for rank, label in enumerate(LABELS[: 2 + (run_id != "a")]):
            node = f"node{rank % 2 if run_id != 'b b' else rank}"  # one has a node of one run alone
            where = {"rank": rank, "node": node, "agent_node": node, "gpus": [f"GPU-{RUNS.index(run_id)}-{rank}"]}
            first: dict[str, Any] = {"ended_s": 6, "state": "failed", "exit_code": 1}
            build.label(run_id, label, is_primary=not rank, started_s=0, **where, **first)
            build.label(run_id, label, is_primary=not rank, started_s=10, attempt=1, launch="two", **where)
    build.label(RUNS[0], "no run", rank=7)
    build.update("label = 'no run'", run=Sql("NULL"))
    at = "step + 10 * attempt + rank / 8.0"
    for recent in (False, True):
        when: dict[str, Any] = {"steps": range(5, 8) if recent else range(5), "at": at, "recent": recent}
        build.metrics({key: _VALUE.format(name=key) for key in ("loss", "acc/1")}, **when)
        build.metrics({"Loss": "step", "it's": "rank"}, where="run_id <> 'b b'", **when)
        build.phases({phase: f"{_VALUE.format(name=phase)} / 8" for phase in PHASES}, **when)
    build.texts({"note": "one", "it's": "two"}, steps=3)
    build.texts({"loss": "three"}, steps=1, where="run_id = 'A'")
    build.histogram("weights", "[0.0, 1.0]", "[step::DOUBLE]", steps=3)
    build.histogram("loss", "[0.0, 2.0]", "[1.0]", steps=2, where="rank = 1")
    build.console("a line", steps=4)
    build.config({"lr": 0.5, "loss": "x"})
    build.event("alert", "high", seq=3)
    samples = {
        "hw.gpu.throttle.reasons": "64 * (step % 2)",
        "hw.gpu.clock.sm": "1000 + step",
        "hw.power": "step",
        "hw.gpu.throttle.time.sw_power": "step // 3 / 4",
    }
    build.samples("p.gpus[1]", samples, steps=30, where="attempt = 0 AND run_id IS NOT NULL")
    for run, rank in ((0, 0), (0, 1), (1, 0), (2, 1), (3, 0)):
        of_agent = f"role = 'agent' AND node = 'node{rank}'"
        body = {"device": f"GPU-{run}-{rank}", "code": 31}
        build.event("gpu.xid", "a fault", body=body, steps=range(20), seq=f"{100 * run} + step", where=of_agent)
    build.received(0, 30)
