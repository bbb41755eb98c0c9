"""Sample runs that are written straight into the tables of an index, in the words of a run.

    build = RunBuilder(database)
    build.run("slow", project="gpt")
    build.ranks("slow", 8, node=Sql("'node' || rank // 4"), ended_s=1000, state="finished", exit_code=0)
    build.metrics({"loss": "2 / (1 + step) + rank / 50"}, steps=1000, where="rank <> 3")

Numbers of facts are SQL: a sample of a million rows takes a moment. An expression sees the columns of the producer, its
`run_id`, and `step`, which counts `steps`. Where a text is meant otherwise, Sql("…") is an expression.
"""

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import duckdb

BEGUN = "TIMESTAMP '2026-01-02 03:00:00'"
NOW = "now()::TIMESTAMP"
PRODUCERS = "(SELECT p.*, r.run_id FROM base.producers p LEFT JOIN base.runs r ON r.run = p.run) p"
_RANKS = "role = 'rank'"  # an agent is chosen by "role = 'agent'"

Number = int | float | str  # a text is SQL
Steps = int | Sequence[int]  # how many, or which


class Sql(str):
    """A text that is an SQL expression."""


class RunBuilder:
    """Write runs, their labels and what these logged.

    `where` chooses the labels, all of them unless given; `at` is the time in seconds since the beginning.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, begun: str = BEGUN) -> None:
        self._database = database
        self._begun = begun

    # -- runs and labels -----------------------------------------------------------------------------------------------

    def run(
        self, run_id: str, *, tags: Sequence[str] | None = (), primary_label: str | None = "rank0", **columns: Any
    ) -> None:
        """Add a run without labels."""
        named = {"run_id": run_id, "tags": tags, "primary_label": primary_label}
        self._insert("runs", "", run=self._next("runs", "run"), **named, **columns)

    def runs(self, *run_ids: str, **columns: Any) -> None:
        """Add several runs with the same columns."""
        for run_id in run_ids:
            self.run(run_id, **columns)

    def many_runs(self, n: int, columns: Mapping[str, Any], **of_label: Any) -> None:
        """Add runs 1 to n with `rank0` each; expressions see the number `run`."""
        named = {"primary_label": "rank0", **columns}
        self._insert("runs", f"FROM range(1, {n} + 1) t(run)", run=Sql("run"), **named)
        label = self._times({"started_s": 0, "attempt": 0, "label": "rank0", "rank": 0, "is_primary": True, **of_label})
        number = {"producer": Sql("run"), "role": "rank", "run": Sql("run")}
        self._insert("producers", "FROM base.runs", **number, **label)

    def ranks(self, run_id: str, ranks: Steps = 1, **columns: Any) -> None:
        """Add ranks of a run: labels `rank0`, …, of which rank 0 is the primary."""
        named = {"label": Sql("'rank' || rank"), "is_primary": Sql("rank = 0"), "rank": Sql("rank"), **columns}
        self._labels(run_id, _counted(ranks, "rank"), named)

    def label(self, run_id: str, label: str, **columns: Any) -> None:
        """Add a label, or another attempt of one; a primary, if `is_primary` says so."""
        named = {"label": label, "is_primary": False, **columns}
        self._labels(run_id, "(SELECT 0 AS rank) t", named)

    def agents(self, where: str = _RANKS) -> None:
        """Add an agent for each node of labels that has none yet."""
        nodes = f"SELECT DISTINCT node FROM {PRODUCERS} WHERE node IS NOT NULL AND ({where})"
        known = "SELECT node FROM base.producers WHERE role = 'agent'"
        number = Sql(f"{self._next('producers', 'producer')} + row_number() OVER (ORDER BY node)")
        source = f"FROM ({nodes}) WHERE node NOT IN ({known})"
        self._insert("producers", source, producer=number, role="agent", label="agent", attempt=0, node=Sql("node"))

    def update(self, where: str, **columns: Any) -> None:
        """Change columns of labels, their end for example."""
        changes = ", ".join(f"{name} = {_literal(value)}" for name, value in self._times(columns).items())
        chosen = f"producer IN (SELECT producer FROM {PRODUCERS} WHERE {where})"
        self._database.execute(f"UPDATE base.producers SET {changes} WHERE {chosen}")

    def received(self, first: Number, last: Number, *, at: Number = 0, where: str = _RANKS) -> None:
        """The collector has these events of labels; `at` is when it got the newest."""
        of = Sql(str(first)), Sql(str(last)), self._at(at)
        self._facts("intervals", 1, where, first_seq=of[0], last_seq=of[1], seen_at=of[2])

    def lost(self, first: int, last: int, reason: str, *, where: str = _RANKS) -> None:
        """These events of labels are lost."""
        self._facts("losses", 1, where, first_seq=first, last_seq=last, reason=reason)

    def position(self, number: int = 1, **columns: Any) -> None:
        """The index has read the log up to a record."""
        self._insert("position", "", next_number=number, **columns)

    # -- what labels log -----------------------------------------------------------------------------------------------

    def metrics(self, values: Mapping[str, Number], **series: Any) -> None:
        """Log values of keys. `recent`: they are among the rows that no level has yet."""
        self._series("metrics", values, **series)

    def metrics_of_all(self, value: Number, **series: Any) -> None:
        """Log a value of each known name; the expression sees its `number`."""
        self._series("metrics", {"": value}, **series)

    def phases(self, values: Mapping[str, Number], **series: Any) -> None:
        """Log seconds of phases."""
        self._series("phases", values, **series)

    def _series(
        self,
        table: str,
        values: Mapping[str, Number],
        *,
        steps: Steps = 1,
        step: Number = "step",
        seq: Number = "step",
        at: Number = "step",
        where: str = _RANKS,
        recent: bool = False,
    ) -> None:
        for key, value in values.items():
            number, names = (self.name(key), "") if key else (Sql("number"), ", base.names n(number, name)")
            columns = {"step": Sql(str(step)), "seq": Sql(str(seq)), "ts": self._at(at), "value": Sql(str(value))}
            self._facts(f"{table}_recent" if recent else table, steps, where, names, key=number, **columns)

    def texts(self, values: Mapping[str, str], *, steps: Steps = 1, seq: Number = "step", **chosen: Any) -> None:
        """Log texts of keys."""
        for key, value in values.items():
            self._event("texts", steps, seq, key=self.name(key), step=Sql("step"), value=value, **chosen)

    def histogram(
        self, key: str, edges: str, counts: str, *, steps: Steps = 1, seq: Number = "step", **at: Any
    ) -> None:
        """Log histograms of a key: SQL lists."""
        parts = {"edges": Sql(edges), "counts": Sql(counts)}
        self._event("histograms", steps, seq, key=self.name(key), step=Sql("step"), **parts, **at)

    def media(
        self, key: str, kind: str, sha256: str, size: int, metadata: Any, *, step: int, seq: int, **at: Any
    ) -> None:
        """Log a medium; `store` has its content."""
        content = {"kind": kind, "sha256": sha256, "bytes": size, "metadata": json.dumps(metadata)}
        self._event("media", 1, seq, key=self.name(key), step=step, **content, **at)

    def console(self, line: str, *, steps: Steps = 1, seq: Number = "step", **columns: Any) -> None:
        """Print lines, a step each."""
        self._event("console", steps, seq, **{"stream": "stdout", "line_no": Sql(str(seq)), "line": line, **columns})

    def event(
        self,
        kind: str,
        message: str = "",
        *,
        level: str = "info",
        body: Any = None,
        steps: Steps = 1,
        seq: Number = 0,
        **at: Any,
    ) -> None:
        """Report events."""
        text = body if isinstance(body, str) else json.dumps(body or {})
        self._event("events", steps, seq, kind=kind, level=level, message=message, body=text, **at)

    def config(self, values: Mapping[str, Any], **at: Any) -> None:
        """Set values of the config; the primaries', unless `where` says otherwise."""
        self._settings("config", values, **at)

    def summary(self, values: Mapping[str, Any], **at: Any) -> None:
        """Set values of the summary; the primaries', unless `where` says otherwise."""
        self._settings("summary", values, **at)

    def _settings(self, table: str, values: Mapping[str, Any], where: str = "is_primary", **at: Any) -> None:
        seq = at.pop("seq", 0)
        for key, value in values.items():
            text = value if isinstance(value, Sql) else json.dumps(value)
            self._event(table, 1, seq, key=key, value=text, where=where, **at)

    def define(self, name: str, summary: str = "", step_metric: str = "", hidden: str = "", **at: Any) -> None:
        """Define a metric, or a pattern of names."""
        parts = {"name": name, "summary": summary, "step_metric": step_metric, "hidden": hidden}
        self._event("definitions", 1, at.pop("seq", 0), **parts, **at)

    # -- machines, files and artifacts ---------------------------------------------------------------------------------

    def samples(
        self, device: str, values: Mapping[str, Number], *, steps: Steps = 1, at: Number = "step", where: str = _RANKS
    ) -> None:
        """Sample a device of each chosen rank by the agent of its node: an expression for its name, '' of the node."""
        self.agents(where)
        devices = f"SELECT DISTINCT {device} AS name FROM {PRODUCERS} WHERE {where}"
        number = Sql(f"{self._next('names', 'id')} + row_number() OVER (ORDER BY name)")
        new = f"FROM ({devices}) WHERE name NOT IN (SELECT name FROM base.names)"
        self._insert("names", new, id=number, name=Sql("name"))
        agents = "(SELECT producer AS agent, node AS agents FROM base.producers WHERE role = 'agent')"
        joined = f"FROM {PRODUCERS} JOIN {agents} ON agents = p.node JOIN base.names d ON d.name = {device}"
        for key, value in values.items():
            of = {"producer": Sql("agent"), "device": Sql("d.id"), "key": self.name(key)}
            source = f"{joined}, {_counted(steps, 'step')} WHERE {where}"
            self._insert("system", source, **of, ts=self._at(at), value=Sql(str(value)))

    def file(self, path: str, content: bytes, *, seq: int = 0, is_stored: bool = True, **at: Any) -> None:
        """Save a file; the bytes have arrived, unless `is_stored` is false."""
        sha256 = hashlib.sha256(content).hexdigest()
        self.saved_file(path, len(content), sha256, seq=seq, **at)
        if is_stored:
            self.store(sha256, len(content))

    def saved_file(self, path: str, size: int, sha256: str, *, seq: int = 0, **at: Any) -> None:
        """Save a file whose bytes have not arrived."""
        self._event("files", 1, seq, path=path, bytes=size, sha256=sha256, **at)

    def store(self, sha256: str, size: int, at: Number = 0) -> None:
        """The bytes of a content have arrived."""
        self._insert("stored", "", sha256=sha256, bytes=size, ts=self._at(at))

    def artifact(
        self, name: str, digest: str, *, project: str, type: str = "model", version: int | None = None, **columns: Any
    ) -> None:
        """Log a version of an artifact: the next one of its name, unless given."""
        versions = f"SELECT count(*) FROM base.artifact_versions WHERE project = '{project}' AND name = '{name}'"
        named = {"project": project, "name": name, "digest": digest}
        self._event("artifacts", 1, 1, **named, type=type, **columns)
        self._insert("artifact_versions", "", **named, version=Sql(f"({versions})") if version is None else version)

    def artifact_file(self, digest: str, path: str, size: int, **columns: Any) -> None:
        """Log an entry of an artifact's manifest."""
        self._event("artifact_files", 1, 1, digest=digest, path=path, bytes=size, **columns)

    def artifact_alias(self, name: str, digest: str, alias: str, *, project: str, **at: Any) -> None:
        """Give a version of an artifact another name."""
        named = {"project": project, "name": name, "digest": digest}
        self._event("artifact_aliases", 1, 1, **named, alias=alias, is_set=1, **at)

    def artifact_use(self, name: str, digest: str, *, project: str, **at: Any) -> None:
        """Use a version of an artifact."""
        self._event("artifact_uses", 1, 1, project=project, name=name, digest=digest, **at)

    def config_hashes(self, hashes: Mapping[str, str], **at: Any) -> None:
        """Report the hashes of a whole config."""
        self._event("config_hashes", 1, at.pop("seq", 0), is_whole=True, hashes=json.dumps(hashes), **at)

    def saved_view(self, name: str, body: Any) -> None:
        """Keep a view of the page under a name."""
        self._insert("saved_views", "", name=name, body=json.dumps(body), ts=self._at(0))

    def name(self, name: str) -> int:
        """Return the number of a key, phase, metric of machines or device."""
        found = self._database.execute("SELECT id FROM base.names WHERE name = $1", [name]).fetchall()
        if found:
            return int(found[0][0])
        number = self._next("names", "id")
        self._insert("names", "", id=number, name=name)
        return number

    def names(self, names: Iterable[str]) -> None:
        """Add keys that are not known yet."""
        first = self._next("names", "id")
        self.rows("names", list(enumerate(names, first)))

    def delete(self, table: str, where: str) -> None:
        """Remove facts; `where` sees the columns of both the row and its label."""
        self._database.execute(
            f"DELETE FROM base.{table} f USING {PRODUCERS} WHERE f.producer = p.producer AND {where}"
        )

    def set_values(self, table: str, value: Number, where: str) -> None:
        """Change values of metrics or phases; `where` sees the text of the key as `key_name`."""
        known = f"{PRODUCERS}, (SELECT id, name AS key_name FROM base.names) n"
        joined = "f.producer = p.producer AND f.key = n.id"
        self._database.execute(f"UPDATE base.{table} f SET value = {value} FROM {known} WHERE {joined} AND {where}")

    # -- rows ----------------------------------------------------------------------------------------------------------

    def rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows as they are, by column: a parameter for each value takes ten times as long."""
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            values = ", ".join(["unnest(?)"] * len(columns))
            self._database.execute(f"INSERT INTO base.{self._target(table)} SELECT {values}", columns)

    def select(self, table: str, query: str) -> None:
        """Insert the rows of a query as they are."""
        self._database.execute(f"INSERT INTO base.{self._target(table)} {query}")

    def _target(self, table: str) -> str:
        """Return a table with its columns, unless they are given: all but `flush`, which the index fills in."""
        if "(" in table:
            return table
        of_table = f"SELECT column_name FROM (DESCRIBE base.{table}) WHERE column_name <> 'flush'"
        names = ", ".join(name for (name,) in self._database.execute(of_table).fetchall())
        return f"{table} ({names})"

    def _labels(self, run_id: str, source: str, columns: dict[str, Any]) -> None:
        [(run,)] = self._database.execute("SELECT run FROM base.runs WHERE run_id = $1", [run_id]).fetchall()
        number = Sql(f"{self._next('producers', 'producer')} + row_number() OVER (ORDER BY rank)")
        columns = self._times({"started_s": 0, "attempt": 0, **columns})
        of_run = f"FROM {source}, (SELECT {run} AS run, {_literal(run_id)} AS run_id)"
        self._insert("producers", of_run, producer=number, role="rank", run=run, **columns)

    def _times(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Write the times of a label, which are given in seconds, as the table has them."""
        times = {"started_s": "started_at", "ended_s": "ended_at"}
        return {times.get(key, key): self._at(value) if key in times else value for key, value in columns.items()}

    def _event(
        self, table: str, steps: Steps, seq: Number, *, at: Number = "step", where: str = _RANKS, **columns: Any
    ) -> None:
        self._facts(table, steps, where, seq=Sql(str(seq)), ts=self._at(at), **columns)

    def _facts(self, table: str, steps: Steps, where: str, names: str = "", **columns: Any) -> None:
        order = "ORDER BY p.producer, t.step"  # as in each piece of the index
        source = f"FROM {PRODUCERS}, {_counted(steps, 'step')}{names} WHERE {where} {order}"
        self._insert(table, source, producer=Sql("producer"), **columns)

    def _insert(self, table: str, source: str, **columns: Any) -> None:
        values = ", ".join(_literal(value) for value in columns.values())
        self._database.execute(f"INSERT INTO base.{table} ({', '.join(columns)}) SELECT {values} {source}")

    def _at(self, seconds: Number | None) -> Sql:
        if seconds is None:
            return Sql("NULL")
        return Sql(f"{self._begun} + to_microseconds(round(1e6 * ({seconds}))::BIGINT)")

    def _next(self, table: str, column: str) -> int:
        [(number,)] = self._database.execute(f"SELECT coalesce(max({column}), 0) + 1 FROM base.{table}").fetchall()
        return int(number)


def _counted(steps: Steps, name: str) -> str:
    """Return a source of the numbers."""
    if isinstance(steps, int):
        steps = range(steps)
    if isinstance(steps, range):
        return f"range({steps.start}, {steps.stop}, {steps.step}) t({name})"
    return f"(SELECT unnest({list(steps)}) AS {name}) t"


def _literal(value: Any) -> str:
    if isinstance(value, Sql):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP '{value}'"
    return "NULL" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
