"""Which rows of a store's large tables a query needs, from the relations that it reads.

A view or macro restricts the facts of a large table by a column if its rows with a value of the column follow from the
facts with that value alone, and from small tables. Then a query that binds the column needs no other facts. That is
stated in RESTRICTIONS, and tested for each relation with facts of several runs, labels and keys. A relation without an
entry, or without a column in it, needs all facts of each large table that it reads:

| Not restricted | Because |
|---|---|
| `system_samples`, by run or label | samples belong to nodes, and the agent that took them has no run |
| `step_skew`, `stragglers`, `restarts`, `goodput` …, by label | a row compares the labels of a run |
| `phase_times`, `straggler_windows`, `restarts` …, by key | a row compares several phases or metrics |
| `base.compared`, `reads.outside` …, by key | the phase is an integer there |
| `base.metric_facts`, `reads.points`, `reads.logged_metrics` … | runs and keys are integers there |
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chiplog_collector.query.query_references import (
    Argument,
    Parameter,
    Reference,
    References,
    Values,
    folded,
    references,
)
from chiplog_schemas.sql import LARGE, WITH_RECENT

_RECENT = "_recent"
_BASE = ("base", "merged")  # schemas with the same relations

_Params = list[Any] | dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Need:
    """What one reading of a table needs at most. None: any.

    Samples of `system` belong to nodes: they are of the runs and labels that were on their node at their time.

    Attributes:
        run_ids: Of these runs.
        labels: Of these labels.
        keys: With these keys, which are the names of metrics, phases, texts, histograms and system metrics.
    """

    run_ids: frozenset[str] | None = None
    labels: frozenset[str] | None = None
    keys: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """A parameter of a macro.

    Attributes:
        name: In lower case.
        kind: The field of `Need` that it restricts; '' for none.
        is_list: Whether it takes a list of texts; None: a text or a list.
    """

    name: str
    kind: str = ""
    is_list: bool | None = False


@dataclass(frozen=True, slots=True)
class Restriction:
    """By what a relation restricts the facts that it reads.

    Attributes:
        columns: Its columns, each with the field of `Need`.
        parameters: Of a macro, in order.
        keys: The only keys that it reads; None: any.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    parameters: tuple[Taken, ...] = ()
    keys: frozenset[str] | None = None


_RUN = {"run_id": "run_ids"}
_RUN_LABEL = {**_RUN, "label": "labels"}
_ALL = {**_RUN_LABEL, "key": "keys"}
_LABEL = {"label": "labels"}
_OF_RUN = Restriction(_RUN)
_TAKES_RUN, _TAKES_KEY = Taken("run", "run_ids"), Taken("key", "keys")
_TAKES_RUN_AND_STEPS = (_TAKES_RUN, Taken("first_step"), Taken("last_step"))
_WAITS = frozenset({"data", "step"})
_THROTTLING = frozenset(
    {
        "hw.gpu.throttle.reasons",
        "hw.gpu.clock.sm",
        *(
            f"hw.gpu.throttle.time.{reason}"
            for reason in ("sw_power", "sync_boost", "sw_thermal", "hw_thermal", "hw_brake")
        ),
    }
)

RESTRICTIONS: dict[str, Restriction | Mapping[str, Restriction]] = {
    # views of users
    "main.metrics": Restriction(_ALL),
    "main.texts": Restriction(_ALL),
    "main.histograms": Restriction(_ALL),
    "main.phases": Restriction({**_RUN_LABEL, "phase": "keys"}),
    "main.console": Restriction(_RUN_LABEL),
    "main.system": Restriction({**_RUN_LABEL, "name": "keys"}),
    "main.system_samples": Restriction({"name": "keys"}),
    "main.step_skew": Restriction({**_RUN, "key": "keys"}),
    "main.stragglers": Restriction({**_RUN, "phase": "keys"}),
    "main.straggler_windows": _OF_RUN,
    "main.phase_times": Restriction(_RUN_LABEL),
    "main.data_wait": Restriction(_RUN_LABEL, keys=_WAITS),
    "main.goodput": Restriction(_RUN, keys=frozenset({"step"})),
    "main.throttle_cost": {
        "phases": Restriction(_RUN_LABEL, keys=frozenset({"step"})),
        "system": Restriction(_RUN_LABEL, keys=_THROTTLING),
    },
    "main.gpu_events": Restriction(_RUN_LABEL),
    "main.restarts": _OF_RUN,
    # macros of users
    "main.history": Restriction(_LABEL, (_TAKES_RUN, _TAKES_KEY)),
    "main.ema": Restriction(_LABEL, (_TAKES_RUN, _TAKES_KEY, Taken("alpha"))),
    "main.downsample": Restriction(_ALL, (_TAKES_RUN, Taken("keys", "keys", None), Taken("points"))),
    "main.pivot_steps": Restriction(_LABEL, (_TAKES_RUN, Taken("keys", "keys", True))),
    "main.compare": Restriction({"key": "keys"}, (Taken("run_a", "run_ids"), Taken("run_b", "run_ids"))),
    "main.stragglers_between": Restriction({"phase": "keys"}, _TAKES_RUN_AND_STEPS),
    "main.data_wait_between": Restriction(_LABEL, _TAKES_RUN_AND_STEPS, _WAITS),
    "main.excess_between": Restriction({}, (_TAKES_RUN, Taken("phase"), Taken("first_step"), Taken("last_step"))),
    # chiplog's own
    "base.series": Restriction({**_RUN_LABEL, "metric": "keys"}),
    "base.compared": _OF_RUN,
    "base.outside": _OF_RUN,
    "base.compared_with_outside": _OF_RUN,
    "base.stragglers_in": Restriction({**_RUN, "phase": "keys"}),
    "base.straggler_windows_until": _OF_RUN,
    "base.data_wait_in": Restriction(_RUN_LABEL, keys=_WAITS),
    "reads.phase_values": Restriction(_RUN_LABEL),
    "reads.compared": _OF_RUN,
    "reads.outside": _OF_RUN,
    "reads.straggler_windows": _OF_RUN,
    "reads.step_after_failure": Restriction({}, (_TAKES_RUN, Taken("failed_labels"), Taken("end_step"))),
    "reads.console": Restriction(_RUN_LABEL),
    "reads.node_steps": Restriction({}, (_TAKES_RUN, Taken("at_level"))),
    # of these, a SELECT promises what it uses
    "reads.points": Restriction({"of_runs": "run_ids", "of_keys": "keys"}),
    "reads.logged_metrics": Restriction({"of_runs": "run_ids"}),
    "reads.logged_phases": Restriction({"of_runs": "run_ids"}),
    "reads.logged_texts": Restriction({"of_runs": "run_ids"}),
    "reads.logged_histograms": Restriction({"of_runs": "run_ids"}),
    "reads.logged_console": Restriction({"of_runs": "run_ids"}),
}
_UNRESTRICTED = Restriction()

# Table functions of DuckDB that read no relation. Others may: query_table() and histogram() read one by its name.
_HARMLESS = frozenset(
    {
        *("range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "summary", "glob"),
        *("test_all_types", "test_vector_types", "pg_timezone_names", "icu_calendar_names"),
    }
)
_HARMLESS_STARTS = ("duckdb_", "pragma_", "read_", "parquet_")

_DEFINITION = re.compile(
    r"CREATE OR REPLACE (?P<kind>VIEW|MACRO) (?P<name>[\w.]+)\s*(?P<parameters>\([^)]*\))?\s+AS\s+(?P<table>TABLE\b)?",
)


@dataclass(frozen=True, slots=True)
class Relations:
    """The views and table macros of a database, by schema and name: which large tables each reads in the end."""

    cold: Mapping[str, frozenset[str]]
    macros: frozenset[str]

    @classmethod
    def of(cls, sql: str, parse: Callable[[str], str]) -> "Relations":
        """Read the statements that make the views and macros.

        Args:
            sql: As of `views_sql()`.
            parse: Returns the tree of a SELECT, as of DuckDB's json_serialize_sql().
        """
        cold = {f"base.{table}": frozenset({table}) for table in LARGE}
        cold |= {f"base.{table}{_RECENT}": frozenset({table}) for table in WITH_RECENT}
        macros = set()
        for statement in re.split(r"^(?=CREATE )", sql, flags=re.MULTILINE):
            definition = _DEFINITION.match(statement)
            if definition is None or (definition["kind"] == "MACRO" and not definition["table"]):
                continue  # a schema, or a macro that is an expression
            name = definition["name"] if "." in definition["name"] else f"main.{definition['name']}"
            name = re.sub(rf"^({'|'.join(_BASE)})\.", "base.", name)
            if definition["kind"] == "MACRO":
                macros.add(name)
            read = cls(cold, frozenset(macros)).read_by_all(references(parse(statement[definition.end() :])))
            cold[name] = frozenset(LARGE) if read is None else read
        return cls(cold, frozenset(macros))

    def read_by(self, reference: Reference) -> list[str]:
        """Return the relations that a reference may mean."""
        known = [name for name in _names_of(reference) if name in self.cold]
        return [name for name in known if (name in self.macros) == (reference.arguments is not None)]

    def read_by_all(self, found: References) -> frozenset[str] | None:
        """Return the large tables that references read in the end; None if that is not known."""
        tables: frozenset[str] = frozenset()
        for reference in found:
            names = self.read_by(reference)
            if not names and not _is_harmless(reference):
                return None
            tables = tables.union(*(self.cold[name] for name in names))
        return tables


_relations_of: dict[str, Relations] = {}  # by the text; to parse it takes 100 ms


def read_relations(connection: Any, sql: str) -> Relations:
    """Return the views and macros of `views_sql()`. connection: of DuckDB, which parses the text, once in a process."""

    def parse(text: str) -> str:
        [(parsed,)] = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [text]).fetchall()
        return str(parsed)

    if sql not in _relations_of:
        _relations_of[sql] = Relations.of(sql, parse)
    return _relations_of[sql]


def needs(found: References, params: _Params, relations: Relations) -> dict[str, list[Need]]:
    """Return what a query needs of each large table; of a table that is not there, nothing.

    Args:
        found: What the query reads.
        params: Its parameters.
        relations: The views and macros that it may read.
    """
    needed: dict[str, dict[Need, None]] = {}
    for reference in found:
        for table, need in _needs_of(reference, params, relations):
            if frozenset() not in (need.run_ids, need.labels, need.keys):
                needed.setdefault(table, {})[need] = None
    return {table: [Need()] if Need() in wanted else list(wanted) for table, wanted in needed.items()}


def _needs_of(reference: Reference, params: _Params, relations: Relations) -> Iterable[tuple[str, Need]]:
    names = relations.read_by(reference)
    if not names and not _is_harmless(reference):  # safeguard: unknown-function-reads-everything
        yield from ((table, Need()) for table in LARGE)
    for name in names:
        restricted = RESTRICTIONS.get(name, _UNRESTRICTED)
        for table in relations.cold[name]:
            by = restricted if isinstance(restricted, Restriction) else restricted.get(table, _UNRESTRICTED)
            yield table, _need_of(by, reference, params)


def _is_harmless(reference: Reference) -> bool:
    """Return True if something that is no view or macro of chiplog reads no large table."""
    if reference.arguments is None:
        return reference.name != ""
    return reference.name in _HARMLESS or reference.name.startswith(_HARMLESS_STARTS)


def _need_of(by: Restriction, reference: Reference, params: _Params) -> Need:
    found = [] if by.keys is None else [("keys", by.keys)]
    for condition in reference.conditions:
        kind = by.columns.get(condition.column)
        if kind is not None and (values := _resolved(condition.values, params)) is not None:
            found.append((kind, values[0]))
    for kind in {parameter.kind for parameter in by.parameters if parameter.kind}:
        parts = [
            _argument(place, parameter, reference.arguments or (), params)
            for place, parameter in enumerate(by.parameters)
            if parameter.kind == kind
        ]
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            found.append((kind, frozenset().union(*known)))
    restricted: dict[str, frozenset[str]] = {}
    for kind, texts in found:
        restricted[kind] = restricted[kind] & texts if kind in restricted else texts
    return Need(**restricted)


def _argument(place: int, parameter: Taken, arguments: tuple[Argument, ...], params: _Params) -> frozenset[str] | None:
    """Return the texts that a macro gets for a parameter, None if they are not known."""
    given = [one for one in arguments if one.name == parameter.name]
    if not given and place < len(arguments) and not any(one.name for one in arguments[: place + 1]):
        given = [arguments[place]]
    if len(given) != 1 or given[0].values is None:
        return None
    found = _resolved(given[0].values, params)
    return None if found is None or parameter.is_list not in (None, found[1]) else found[0]


def _resolved(values: Values, params: _Params) -> tuple[frozenset[str], bool] | None:
    """Return texts, and whether they are a list; None if one is no text."""
    texts: list[str] = []
    is_list = bool(values.is_list)
    for item in values.items:
        if isinstance(item, str):
            texts.append(item)
            continue
        value = _value_of(item, params)
        if isinstance(value, str) and not item.is_list:
            texts.append(value)
        elif _is_texts(value) and (item.is_list or values.is_list is None):
            texts += value
            is_list = True
        else:
            return None  # safeguard: texts-alone-bind
    return frozenset(texts), is_list


def _value_of(parameter: Parameter, params: _Params) -> Any:
    if isinstance(params, dict):  # DuckDB does not tell names apart by case
        values = [value for name, value in params.items() if folded(name) == folded(parameter.name)]
        return values[0] if len(values) == 1 else None
    place = int(parameter.name) - 1 if parameter.name.isascii() and parameter.name.isdigit() else -1
    return params[place] if params and 0 <= place < len(params) else None


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _names_of(reference: Reference) -> list[str]:
    """Return the names of relations that a reference may mean, with their schemas."""
    schema, name = reference.schema, reference.name
    if schema in ("", "main"):
        return [f"main.{name}"]
    if schema == "reads":
        return [f"reads.{name}"]
    if schema in _BASE:
        return [f"base.{name}"]
    return [f"{schema}.{name}" for schema in ("main", "reads", "base")]  # it may be the name of a database
