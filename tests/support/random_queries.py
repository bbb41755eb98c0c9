"""Random statements over the views and macros, many of which name runs, labels and keys. Most of them are valid."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.narrowed_database import KEYS, LABELS, PHASES, RUNS, SAMPLED

# How often each is read. Those that take 50 ms and more are rare.
VIEWS = dict.fromkeys(("metrics",), 24) | dict.fromkeys(("phases", "texts", "console", "labels"), 10)
VIEWS |= dict.fromkeys(("system",), 16) | dict.fromkeys(("histograms", "runs", "keys", "system_samples", "config"), 4)
VIEWS |= dict.fromkeys(("summary", "step_skew", "reads.phase_values", "reads.console", "reads.points"), 2)
VIEWS |= dict.fromkeys(("events", "completeness", "media", "stragglers", "data_wait", "phase_times", "goodput"), 1)
VIEWS |= dict.fromkeys(("reads.series", "reads.logged_texts", "base.series", "base.metric_facts", "base.console"), 1)
SLOW = ("straggler_windows", "throttle_cost", "gpu_events", "restarts", "first_failure")
# By macro: its parameters, and the columns that it has.
MACROS: dict[str, tuple[tuple[str, ...], str]] = {
    "history": (("run", "key"), "label attempt rank step seq ts value"),
    "ema": (("run", "key", "half"), "label rank step ts value ema"),
    "downsample": (("run", "keys", "points"), "run_id label attempt rank key step ts n min mean max"),
    "pivot_steps": (("run", "keys"), "label rank step metrics"),
    "compare": (("run_a", "run_b"), "kind key step a b change"),
    "config_history": (("run",), "key value previous ts label attempt"),
    "stragglers_between": (("run", "low", "high"), "phase label rank n_steps n_slowest"),
    "data_wait_between": (("run", "low", "high"), "label attempt rank n_steps wait_s"),
    "excess_between": (("run", "phase", "low", "high"), "label rank step seconds"),
    "base.data_wait_in": (("low", "high"), "run_id label attempt rank n_steps wait_s"),
    "reads.compared": (("low", "high"), "run_id step place seconds"),
    "reads.node_steps": (("run", "level"), "node ts step"),
    "reads.labels_with_phase": (("run", "number"), "place label rank"),
}
_TEXT_COLUMNS = {
    "run_id": RUNS,
    "label": LABELS,
    "key": KEYS,
    "metric": KEYS,
    "phase": PHASES,
    "name": (*SAMPLED, *KEYS),
    "node": ("node0", "node1"),
    "stream": ("stdout",),
    "state": ("failed", "running"),
    "kind": ("metric", "config", "alert"),
}
_NUMBERS = ("step", "seq", "rank", "attempt", "line_no", "place", "producer")
_SHADOWS = ("metrics", "texts", "phases", "c1")
_Seen = tuple[str, list[str]]  # a relation in sight: the name by which it is called, and its columns
_ALIASES = ("m", "t", "x", "run_id", "texts", "Metrics", "it", "labels")


class Query:
    """A statement with its parameters."""

    def __init__(self, sql: str, params: list[Any] | dict[str, Any] | None) -> None:
        self.sql = sql
        self.params = params


class QueryWriter:
    """Writes one statement. columns: of each view. names: what columns have, if not what a NarrowedDatabase has."""

    def __init__(
        self, seed: int, columns: Mapping[str, Sequence[str]], names: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._chance = random.Random(seed)
        self._columns = columns
        self._names = {**_TEXT_COLUMNS, **(names or {})}
        self._views = {view: n for view, n in VIEWS.items() if view in columns}
        self._values: list[Any] = []
        self._number = 0
        self._slow = self._chance.random() < 0.03

    def write(self) -> Query:
        """Return the statement."""
        text, columns = self._query({}, 0)
        form = self._chance.random()
        if form < 0.01:
            text = f"DESCRIBE {text}"
        elif form < 0.03:
            summarized = f"SUMMARIZE SELECT {self._name(self._chance.choice(columns))} FROM ({text})"
            text = f"SELECT min, max, count FROM ({summarized})"  # its deviation depends on the order of the rows
        style = self._chance.choice(("?", "$1", "$name"))
        places = re.findall("\0(\\d+)\0", text)
        values = {place: self._values[int(place)] for place in places}
        if style == "?":
            return Query(re.sub("\0\\d+\0", "?", text), [values[place] for place in places] or None)
        if style == "$1":
            for number, place in enumerate(values, 1):
                text = text.replace(f"\0{place}\0", f"${number}")
            return Query(text, list(values.values()) or None)
        text = re.sub("\0(\\d+)\0", lambda found: f"${self._case(f'value_{found[1]}')}", text)
        return Query(text, {f"value_{place}": value for place, value in values.items()} or None)

    # -- names and values ----------------------------------------------------------------------------------------------

    def _is(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _case(self, name: str) -> str:
        """Write a name in other letters: DuckDB does not tell them apart."""
        return self._chance.choice((name, name, name, name.upper(), name.title()))

    def _name(self, name: str) -> str:
        name = self._case(name)
        return f'"{name}"' if " " in name or self._is(0.15) else name

    def _parameter(self, value: Any) -> str:
        self._values.append(value)
        return f"\0{len(self._values) - 1}\0"

    def _text(self, value: str) -> str:
        """Write a text: as a constant, or as a parameter."""
        quoted = "'" + value.replace("'", "''") + "'"
        form = self._chance.random()
        if form < 0.25:
            return self._parameter(value)
        if form < 0.30:
            return f"$${value}$$"
        if form < 0.34:
            return f"{quoted}::{self._chance.choice(('VARCHAR', 'text'))}"
        if form < 0.36:
            return f"lower({quoted})"
        if form < 0.38:
            return f"{quoted} COLLATE NOCASE"
        return quoted

    def _texts(self, values: Sequence[str]) -> list[str]:
        return [
            self._text(value) for value in self._chance.sample(values, self._chance.randint(1, min(2, len(values))))
        ]

    def _list(self, values: Sequence[str]) -> str:
        if self._is(0.4):
            listed = self._parameter(self._chance.sample(values, self._chance.randint(1, min(2, len(values)))))
            return f"{listed}::VARCHAR[]" if self._is(0.7) else listed
        return f"[{', '.join(self._texts(values))}]"

    # -- relations -----------------------------------------------------------------------------------------------------

    def _leaf(self, scope: Mapping[str, Sequence[str]], depth: int) -> tuple[str, str, list[str]]:
        """Return a relation, the name by which it is called, and its columns."""
        form = self._chance.random()
        if scope and form < 0.3:
            name = self._chance.choice(list(scope))
            return self._called(self._name(name), name, list(scope[name]))
        if form < 0.37 and depth < 3:
            text, columns = self._query(scope, depth + 1)
            return self._called(f"({text})", "", columns)
        if form < 0.52:
            return self._macro()
        if form < 0.55:
            run_id = self._chance.choice(self._names["run_id"]).replace("'", "''")
            text = f"(VALUES ('{run_id}', 'loss'), ('A', 'acc/1')) AS v(run_id, key)"
            return text, "v", ["run_id", "key"]
        view = self._chance.choice(SLOW) if self._slow and self._is(0.5) else self._view()
        if view in scope:
            return self._called(self._name(view), view, list(scope[view]))
        schema, _, short = view.rpartition(".")
        text = f"{self._name(schema)}.{self._name(short)}" if schema else self._name(short)
        if not schema and self._is(0.2):
            text = f"{self._chance.choice(('main', 'Main', 'memory.main', 'memory'))}.{text}"
        return self._called(text, short, list(self._columns[view]))

    def _view(self) -> str:
        return self._chance.choices(list(self._views), list(self._views.values()))[0]

    def _called(self, text: str, name: str, columns: list[str]) -> tuple[str, str, list[str]]:
        """Give a relation an alias, or none."""
        if not name or self._is(0.6):
            name = self._chance.choice(_ALIASES) if self._is(0.15) else f"r{self._number}"
            self._number += 1
            text = f"{text} AS {self._name(name)}" if self._is(0.5) else f"{text} {self._name(name)}"
            if self._is(0.03) and len(columns) > 1:  # columns under the names of others
                columns = [columns[1], columns[0], *columns[2:]]
                text = f"{text}({', '.join(columns[:2])})"
        elif self._is(0.02):
            text = f"{text} TABLESAMPLE reservoir(1000 ROWS)"
        return text, name, columns

    def _macro(self) -> tuple[str, str, list[str]]:
        name = self._chance.choice(list(MACROS))
        parameters, columns = MACROS[name]
        arguments = []
        is_named = False
        for parameter in parameters:
            if parameter == "points" and self._is(0.5):
                continue
            given = self._argument(name, parameter)
            known = {"half": "alpha", "number": "phase", "low": "first_step", "high": "last_step", "level": "at_level"}
            # Only what has a default, or follows one that is named, may be named in any order.
            is_named = is_named or (self._is(0.15) and "." not in name) or parameter == "points"
            arguments.append(f"{self._case(known.get(parameter, parameter))} := {given}" if is_named else given)
        if is_named and self._is(0.3) and all(":=" in one for one in arguments):
            self._chance.shuffle(arguments)
        text = f"{self._name(name) if '.' not in name else name}({', '.join(arguments)})"
        return self._called(text, "", columns.split())

    def _argument(self, macro: str, parameter: str) -> str:
        if parameter.startswith("run"):
            return self._text(self._chance.choice(self._names["run_id"]))
        if parameter in ("key", "phase"):
            return self._text(self._chance.choice(self._names[parameter]))
        if parameter == "keys":
            keys = self._names["key"]
            return (
                self._list(keys) if macro == "pivot_steps" or self._is(0.7) else self._text(self._chance.choice(keys))
            )
        return {"half": "0.5", "low": "0", "high": "9", "level": "1", "points": "4", "number": "-1"}[parameter]

    def _source(self, scope: Mapping[str, Sequence[str]], depth: int) -> tuple[str, list[_Seen]]:
        """Return what a SELECT reads, and the relations with their columns that are in sight."""
        text, name, columns = self._leaf(scope, depth)
        seen = [(name, columns)]
        is_wide = False  # then another join could have millions of rows
        while self._is(0.24) and len(seen) < 3 and not is_wide:
            other, name, columns = self._leaf(scope, depth)
            form = self._chance.random()
            if form < 0.12:
                run = self._condition(seen, scope, 3)
                name = f"l{self._number}"
                self._number += 1
                text = f"{text}, LATERAL (SELECT * FROM {other} WHERE {run}) AS {name}"
                seen.append((name, columns))
                break
            kind = self._chance.choice(("", "", "LEFT ", "RIGHT ", "FULL ", "SEMI ", "ANTI ")) + "JOIN"
            is_in_sight = kind not in ("SEMI JOIN", "ANTI JOIN")
            both = [one for one in seen[0][1] if one in columns and one in (*self._names, *_NUMBERS)]
            if form < 0.55 and both:
                using = self._chance.sample(both, self._chance.randint(1, min(3, len(both))))
                is_wide = len(using) == 1
                text = f"{text} {kind} {other} USING ({', '.join(map(self._name, using))})"
            elif form < 0.62 and both and "." not in text + other:
                text = f"{text} NATURAL {kind} {other}"
            elif form < 0.75 or not both:
                text = f"{text}, {other}" if self._is(0.5) else f"{text} CROSS JOIN {other}"
                is_in_sight = is_wide = True
            else:
                on = self._chance.choice(both)
                is_wide = True
                pair = [self._qualified(place, on) for place in (seen[0][0], name)]
                text = f"{text} {kind} {other} ON {' = '.join(pair)}"
                if self._is(0.3):
                    text = f"{text} AND {self._predicate([(name, columns)], scope, 3)}"
            if is_in_sight:
                seen.append((name, columns))
        return text, seen

    def _qualified(self, name: str, column: str) -> str:
        return f"{self._name(name)}.{self._name(column)}"

    def _column(self, seen: Sequence[_Seen], column: str, one: _Seen | None = None) -> str:
        """Write a column of one of the relations that have it, mostly so that it is not ambiguous."""
        holders = [name for name, columns in seen if column in columns]
        if (len(holders) == 1 and self._is(0.5)) or self._is(0.02):
            return self._name(column)
        return self._qualified(one[0] if one else self._chance.choice(holders), column)

    # -- conditions ----------------------------------------------------------------------------------------------------

    def _condition(self, seen: Sequence[_Seen], scope: Mapping[str, Sequence[str]], depth: int) -> str:
        form = self._chance.random()
        if depth > 3 or form < 0.5:
            return self._predicate(seen, scope, depth)
        parts = [self._condition(seen, scope, depth + 1) for _ in range(2)]
        if form < 0.85:
            return (
                f"{parts[0]} AND {parts[1]}"
                if "OR" not in "".join(parts) or self._is(0.5)
                else f"({parts[0]}) AND ({parts[1]})"
            )
        return f"({parts[0]} OR {parts[1]})" if form < 0.95 else f"NOT ({parts[0]})"

    def _predicate(self, seen: Sequence[_Seen], scope: Mapping[str, Sequence[str]], depth: int) -> str:
        named = [(one, column) for one in seen for column in one[1] if column in self._names]
        wanted = [found for found in named if found[1] in ("run_id", "label", "key", "phase", "metric", "name")]
        if not named or self._is(0.1):
            return self._of_number(seen)
        one, column = self._chance.choice(wanted if wanted and self._is(0.9) else named)
        values = self._names[column]
        written = self._column(seen, column, one)
        value = self._text(self._chance.choice(values))
        form = self._chance.random()
        if form < 0.42:
            return f"{written} {self._chance.choice(('=', '=='))} {value}" if self._is(0.8) else f"{value} = {written}"
        if form < 0.55:
            return f"{written} IN ({', '.join(self._texts(values))})"
        if form < 0.62:
            listed = self._list(values)
            return f"{written} IN {listed}" if self._is(0.3) else f"list_contains({listed}, {written})"
        if form < 0.80:
            return self._chance.choice(
                (
                    f"{written} LIKE '%o%'",
                    f"{written} <> {value}",
                    f"{written} NOT IN ({value})",
                    f"{written} IS NOT NULL",
                    f"lower({written}) = {value}",
                    f"{written} COLLATE NOCASE = {value}",
                    f"{written} BETWEEN {value} AND 'z'",
                    f"({written} = {value}) IS TRUE",
                    f"({written} = {value}) IS NOT TRUE",
                    f"coalesce({written}, 'x') = {value}",
                    f"CASE WHEN {written} = {value} THEN true ELSE {written} > 'm' END",
                    f"{written} IS NOT DISTINCT FROM {value}",
                    f"({written}, 1) = ({value}, 1)",
                    f"{written} = {self._parameter(5 if self._is(0.1) else value.strip(chr(39)))}",
                    f"{written} = ANY([{value}])",
                    f"contains({written}, {value})",
                    f"{written} || '' = {value}",
                )
            )
        if form < 0.84 or depth > 2:
            return self._of_number(seen)
        return self._with_query(written, column, seen, scope, depth)

    def _of_number(self, seen: Sequence[_Seen]) -> str:
        found = [(one, column) for one in seen for column in one[1] if column in _NUMBERS]
        if not found:
            return "true"
        one, column = self._chance.choice(found)
        return f"{self._column(seen, column, one)} {self._chance.choice(('<', '>=', '='))} {self._chance.randint(0, 4)}"

    def _with_query(
        self,
        written: str,
        column: str,
        seen: Sequence[_Seen],
        scope: Mapping[str, Sequence[str]],
        depth: int,
    ) -> str:
        """Write a condition with a query that may refer to the relations around it."""
        text, name, columns = self._leaf(scope, 3)
        inner = [(name, columns)]
        where = self._condition(inner, scope, 3)
        if self._is(0.3):
            where = f"{where} AND {self._condition([*inner, *seen], scope, 4)}"
        form = self._chance.random()
        if column in columns and form < 0.5:
            found = self._column(inner, column)
            if form < 0.3:
                return f"{written} {self._chance.choice(('IN', 'NOT IN'))} (SELECT {found} FROM {text} WHERE {where})"
            return f"{written} = (SELECT max({found}) FROM {text} WHERE {where})"
        if form < 0.8:
            return f"{self._chance.choice(('', 'NOT '))}EXISTS (SELECT 1 FROM {text} WHERE {where})"
        return f"(SELECT count(*) FROM {text} WHERE {where}) > {self._chance.randint(0, 9)}"

    # -- queries -------------------------------------------------------------------------------------------------------

    def _query(self, scope: Mapping[str, Sequence[str]], depth: int) -> tuple[str, list[str]]:
        """Return a query and the names of its columns."""
        form = self._chance.random()
        if depth < 2 and form < 0.18:
            text = ""
            inner = dict(scope)
            for name in self._chance.sample(_SHADOWS, self._chance.randint(1, 2)):
                query, columns = self._query(inner, depth + 1)
                kind = self._chance.choice(("AS", "AS", "AS MATERIALIZED", "AS NOT MATERIALIZED"))
                text += f"{', ' if text else 'WITH '}{self._name(name)} {kind} ({query})"
                inner = {key: found for key, found in inner.items() if key.lower() != name.lower()} | {name: columns}
            query, columns = self._select(inner, depth)
            return f"{text} {query}", columns
        if depth < 3 and form < 0.26:
            column = self._chance.choice(("label", "label", "run_id", "step"))
            parts = [self._select(scope, depth + 1, column)[0] for _ in range(2)]
            kind = self._chance.choice(("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "UNION BY NAME"))
            return f"{parts[0]} {kind} {parts[1]}", [column]
        if form < 0.28:
            view = self._chance.choice(("metrics", "texts", "phases"))
            on = "phase" if view == "phases" else "key"
            listed = ", ".join("'" + value.replace("'", "''") + "'" for value in self._names[on][:2])
            text = f"PIVOT {self._name(view)} ON {on} IN ({listed}) USING count(*) GROUP BY run_id, label"
            return (
                f"SELECT run_id, label FROM ({text}) p WHERE {self._condition([('p', ['run_id', 'label'])], scope, 3)}",
                ["run_id", "label"],
            )
        return self._select(scope, depth)

    def _select(
        self, scope: Mapping[str, Sequence[str]], depth: int, column: str | None = None
    ) -> tuple[str, list[str]]:
        for _ in range(20):
            source, seen = self._source(scope, depth)
            if column is None or any(column in columns for _, columns in seen):
                break
        else:
            source, seen = "metrics", [("metrics", list(self._columns["metrics"]))]
        where = f" WHERE {self._condition(seen, scope, depth)}" if self._is(0.88) else ""
        known = [(one, name) for one in seen for name in one[1] if name in (*self._names, *_NUMBERS)]
        form = self._chance.random()
        if column is not None:
            return f"SELECT {self._column(seen, column)} FROM {source}{where}", [column]
        if not known or form < 0.12:
            return f"SELECT count(*) AS n FROM {source}{where}", ["n"]
        if form < 0.22 and len(seen) == 1:
            text = f"FROM {source}{where}" if self._is(0.5) else f"SELECT * FROM {source}{where}"
            return text, list(seen[0][1])
        one, name = self._chance.choice(known)
        chosen = self._column(seen, name, one)
        if form < 0.45:
            other, more = self._chance.choice(known)
            maximum = f"max({self._column(seen, more, other)})"
            having = (
                f" HAVING {self._chance.choice(('count(*) > 1', f'{maximum} IS NOT NULL'))}" if self._is(0.3) else ""
            )
            return (
                f"SELECT {chosen} AS {name}, count(*) AS n, {maximum} AS x FROM {source}{where} GROUP BY ALL{having}",
                [name, "n"],
            )
        if form < 0.52:
            return (
                f"SELECT {chosen} AS {name}, count(*) OVER w AS n FROM {source}{where} "
                f"WINDOW w AS (PARTITION BY {chosen}) QUALIFY n > 1",
                [name, "n"],
            )
        if form < 0.58 and depth < 2:
            scalar, _ = self._select(scope, 3)
            return f"SELECT {chosen} AS {name}, (SELECT count(*) FROM ({scalar})) AS n FROM {source}{where}", [
                name,
                "n",
            ]
        names, parts = [], []
        for one, name in self._chance.sample(known, min(len(known), self._chance.randint(1, 4))):
            called = name
            if self._is(0.08):  # one column under the name of another
                called = self._chance.choice(("run_id", "label", "key"))
            if called not in names:
                names.append(called)
                written = self._column(seen, name, one)
                if self._is(0.04):
                    written, called = f"upper({written}::VARCHAR)", "run_id"
                parts.append(f"{written} AS {self._name(called)}" if called != name or self._is(0.3) else written)
        distinct = "DISTINCT " if self._is(0.2) else ""
        ordered = f" ORDER BY ALL LIMIT {self._chance.randint(0, 9)}" if self._is(0.1) and depth == 0 else ""
        return f"SELECT {distinct}{', '.join(parts)} FROM {source}{where}{ordered}", names
