"""Which relations a query reads, and the constants that restrict their rows: out of DuckDB's parse tree, pure.

A relation is bound by a conjunct of the WHERE of the SELECT that reads it: a comparison of one of its columns in BOUND
with texts or parameters. Rows that the conjunct rejects may then be missing from the relation. A conjunct that may mean
another column binds nothing: one under OR or NOT, in ON, HAVING or QUALIFY, of an ambiguous name, or with a cast or
collation. A relation on a side of a join whose absent rows would add rows to the result is never bound.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

BOUND = frozenset({"run_id", "label", "key", "metric", "phase", "name"})
TREE_CHARS_MAX = 1 << 20  # that are read as JSON, 20 ms; a query of 2,000 characters has 60,000
REFERENCES_MAX = 200  # of one query; the longest one of the page has 20
TEXTS_MAX = 2_000  # in all conditions and arguments
CHARS_MAX = 32 << 10  # of these: 256 admitted texts are kept

_SIDES_KEPT = frozenset({"INNER", "LEFT", "RIGHT", "FULL", "OUTER"})  # types of joins that bind both sides
_LEFT_KEPT = frozenset({"SEMI", "ANTI"})  # and those that bind the left one
_JOINS = frozenset({"REGULAR", "CROSS", "NATURAL"})  # of their kinds; ASOF and POSITIONAL depend on all rows
# Macros of the schema `reads` by which a SELECT promises what it uses; each is a condition of a column of its name.
_PROMISES = frozenset({"of_runs", "of_keys"})
_CONTAINS = frozenset({"list_contains", "contains"})
_TEXT_TYPES = frozenset({"varchar", "text", "string"})
# What a FROM may have, apart from joins. Any other may read what this code does not see.
_LEAVES = frozenset({"BASE_TABLE", "TABLE_FUNCTION", "SUBQUERY", "EXPRESSION_LIST", "EMPTY", "PIVOT", "SHOW_REF"})
_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE", "JOIN"})

_Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query: `1` of `$1` and the first `?`, `name` of `$name`. is_list: it is a list of texts."""

    name: str
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Values:
    """Texts, one or a list of them. is_list: None for a single parameter that may be a text or a list."""

    items: tuple[str | Parameter, ...]
    is_list: bool | None


@dataclass(frozen=True, slots=True)
class Condition:
    """A conjunct: a column has one of these values. column: in lower case."""

    column: str
    values: Values


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a table macro. name: in lower case, '' by position. values: None for any other expression."""

    name: str
    values: Values | None


@dataclass(frozen=True, slots=True)
class Reference:
    """One place in a query where a relation is read.

    Attributes:
        schema: In lower case; '' if the query has none. It may be the name of a database.
        name: Of a table, a view or a table function, in lower case; '' means all relations.
        conditions: That all rows which count fulfil.
        arguments: Of a table function or macro; None of a table or view.
    """

    schema: str
    name: str
    conditions: tuple[Condition, ...] = ()
    arguments: tuple[Argument, ...] | None = None


References = tuple[Reference, ...]
EVERYTHING: References = (Reference("", ""),)


class _UnknownTreeError(Exception):
    """A part of the tree that this code does not know."""


def references(parsed: str) -> References:
    """Return what a query reads.

    parsed: the tree of one SELECT as of DuckDB's json_serialize_sql().
    """
    if len(parsed) > TREE_CHARS_MAX:
        return EVERYTHING
    reader = _TreeReader()
    try:
        [statement] = json.loads(parsed)["statements"]
        reader.read(statement["node"], frozenset())
    except (_UnknownTreeError, RecursionError, LookupError, TypeError, ValueError, AttributeError):
        return EVERYTHING
    return _bounded(tuple(dict.fromkeys(reader.found)))


def folded(name: str) -> str:
    """Return a name as DuckDB compares it: of letters, only those of ASCII have two cases."""
    return name.lower() if name.isascii() else "".join(c.lower() if c.isascii() else c for c in name)


def to_plain(found: References) -> list[Any]:
    """Return references as lists of plain values."""
    return [
        [
            reference.schema,
            reference.name,
            [[condition.column, _plain_values(condition.values)] for condition in reference.conditions],
            None
            if reference.arguments is None
            else [[argument.name, _plain_values(argument.values)] for argument in reference.arguments],
        ]
        for reference in found
    ]


def from_plain(plain: Any) -> References:
    """Return the references of `to_plain`; EVERYTHING for anything else."""
    try:
        return tuple(
            Reference(
                _text(schema),
                _text(name),
                tuple(Condition(_text(column), _values_from(values)) for column, values in conditions),
                None
                if arguments is None
                else tuple(
                    Argument(_text(name), None if values is None else _values_from(values))
                    for name, values in arguments
                ),
            )
            for schema, name, conditions, arguments in plain
        )
    except (TypeError, ValueError):
        return EVERYTHING


def _plain_values(values: Values | None) -> list[Any] | None:
    if values is None:
        return None
    return [values.is_list, [_plain_item(item) for item in values.items]]


def _plain_item(item: str | Parameter) -> Any:
    return item if isinstance(item, str) else [item.name, item.is_list]


def _values_from(plain: Any) -> Values:
    is_list, items = plain
    if is_list not in (None, False, True):
        raise ValueError
    return Values(tuple(item if isinstance(item, str) else _parameter_from(*item) for item in items), is_list)


def _parameter_from(name: Any, is_list: Any) -> Parameter:
    return Parameter(_text(name), is_list is True)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _bounded(found: References) -> References:
    texts = [
        item if isinstance(item, str) else item.name
        for reference in found
        for values in (
            *(condition.values for condition in reference.conditions),
            *(argument.values for argument in reference.arguments or ()),
        )
        if values is not None
        for item in values.items
    ]
    n_chars = sum(map(len, texts)) + sum(len(reference.schema) + len(reference.name) for reference in found)
    if len(found) > REFERENCES_MAX or len(texts) > TEXTS_MAX or n_chars > CHARS_MAX:
        return EVERYTHING
    return found


class _TreeReader:
    """Collects the references of a tree. scope: names of the WITH queries that are in sight."""

    def __init__(self) -> None:
        self.found: list[Reference] = []

    def read(self, node: Any, scope: frozenset[str]) -> None:
        """Read any part of the tree."""
        if isinstance(node, list):
            for part in node:
                if isinstance(part, dict | list):
                    self.read(part, scope)
            return
        if any(map(_is_limit_of_none, node.get("modifiers") or ())):
            return
        if "cte_map" in node:
            scope = self._scope_with(node["cte_map"], scope)
        kind = node.get("type")
        if ("sample" in node or "modifiers" in node) and kind not in _LEAVES | _NODES:
            raise _UnknownTreeError  # safeguard: unknown-tree-reads-everything
        if kind == "SELECT_NODE":
            self._read_select(node, scope)
        elif kind in ("BASE_TABLE", "TABLE_FUNCTION", "SHOW_REF"):
            self._read_leaf(node, scope, ())
        else:
            self._read_parts(node, scope)

    def _read_parts(self, node: _Json, scope: frozenset[str], *, but: str = "cte_map") -> None:
        for name, part in node.items():
            if name not in (but, "cte_map") and isinstance(part, dict | list):
                self.read(part, scope)

    def _scope_with(self, cte_map: _Json, scope: frozenset[str]) -> frozenset[str]:
        """Read the queries of a WITH. Each sees those before it; a recursive one counts as if it did not see itself."""
        for entry in cte_map["map"]:
            self.read(entry["value"], scope)
            scope |= {folded(entry["key"])}
        return scope

    def _read_select(self, node: _Json, scope: frozenset[str]) -> None:
        self._read_parts(node, scope, but="from_table")
        source = node["from_table"]
        leaves = list(_leaves(source, is_bound=node["sample"] is None))
        conditions = _Conditions(source, [leaf for leaf, _ in leaves], node) if node["where_clause"] else None
        for leaf, is_bound in leaves:
            self._read_leaf(leaf, scope, conditions.of(leaf) if conditions and is_bound else ())
        for condition in _join_conditions(source):
            self.read(condition, scope)

    def _read_leaf(self, leaf: _Json, scope: frozenset[str], conditions: tuple[Condition, ...]) -> None:
        kind = leaf["type"]
        if kind == "BASE_TABLE":
            schema, name = folded(leaf["schema_name"]), folded(leaf["table_name"])
            if schema or leaf["catalog_name"] or name not in scope:
                self.found.append(Reference(schema, name, conditions))
        elif kind == "TABLE_FUNCTION":
            function = leaf["function"]
            arguments = tuple(
                Argument(folded(argument["name"]), _values_of(argument["expression"]))
                for argument in function["arguments"]
            )
            name = folded(function["function_name"])
            self.found.append(Reference(folded(function["schema"]), name, conditions, arguments))
            self.read(function["arguments"], scope)
        elif kind == "SHOW_REF":
            if leaf["show_type"] == "DESCRIBE":  # names and types, without a row
                return
            if leaf["query"] is not None:
                self.read(leaf["query"], scope)
            elif leaf["show_type"] == "SUMMARY":
                raise _UnknownTreeError
        else:
            self._read_parts(leaf, scope)


def _is_limit_of_none(modifier: _Json) -> bool:
    """Return True for LIMIT 0, which asks for the columns alone."""
    limit = modifier["limit"] if modifier["type"] == "LIMIT_MODIFIER" else None
    return limit is not None and limit["type"] == "VALUE_CONSTANT" and limit["literal"]["text"] == "0"


def _leaves(source: _Json, *, is_bound: bool) -> Iterator[tuple[_Json, bool]]:
    """Yield what a FROM reads, each with whether the WHERE may leave out its rows before the join."""
    if source["type"] != "JOIN":
        if source["type"] not in _LEAVES:
            raise _UnknownTreeError
        yield source, is_bound and _is_plain_leaf(source)
        return
    kind = source["join_type"]
    is_bound = is_bound and source["ref_type"] in _JOINS and source["sample"] is None
    is_bound = is_bound and source.get("ranking_expression") is None and kind in _SIDES_KEPT | _LEFT_KEPT
    yield from _leaves(source["left"], is_bound=is_bound)
    # safeguard: whole-sides-of-joins
    yield from _leaves(source["right"], is_bound=is_bound and kind in _SIDES_KEPT)


def _is_plain_leaf(leaf: _Json) -> bool:
    """Return True if a relation has all its rows, under the names of its columns."""
    return leaf["sample"] is None and not leaf.get("column_name_alias") and leaf.get("at_clause") is None


def _join_conditions(source: _Json) -> Iterator[Any]:
    if source["type"] == "JOIN":
        yield [source["condition"], source.get("ranking_expression")]
        yield from _join_conditions(source["left"])
        yield from _join_conditions(source["right"])


def _name_of(leaf: _Json) -> str:
    """Return the name by which a query calls a relation of its FROM."""
    if leaf["alias"]:
        return folded(leaf["alias"])
    if leaf["type"] == "TABLE_FUNCTION":
        return folded(leaf["function"]["function_name"])
    return folded(leaf.get("table_name", ""))


class _Conditions:
    """The conjuncts of a WHERE by the relations of its FROM."""

    def __init__(self, source: _Json, leaves: list[_Json], node: _Json) -> None:
        names = [_name_of(leaf) for leaf in leaves]
        self._source = source
        self._names = {name for name in names if names.count(name) == 1}
        # An alias of this name may be meant: `SELECT upper(run_id) AS run_id FROM … WHERE run_id = 'X'`.
        self._aliases = {
            folded(item["alias"])
            for item in node["select_list"]
            if item["type"] != "COLUMN_REF" or folded(item["alias"]) != folded(item["column_names"][-1])
        }
        conjuncts = list(_conjuncts(node["where_clause"]))
        self._promised = tuple(condition for part in conjuncts for condition in _promises(part))
        self._by_path = [
            (path, values) for part in conjuncts for path, values in _comparisons(part) if path[-1] in BOUND
        ]

    def of(self, leaf: _Json) -> tuple[Condition, ...]:
        """Return the conditions that the rows of a relation must fulfil."""
        named = (Condition(path[-1], values) for path, values in self._by_path if self._is_of(leaf, path))
        return (*named, *self._promised)

    def _is_of(self, leaf: _Json, path: tuple[str, ...]) -> bool:
        if len(path) == 1:
            return path[0] not in self._aliases and any(leaf is one for one in _meant(self._source, path[0]))
        return len(path) == 2 and path[0] in self._names and path[0] == _name_of(leaf)


def _meant(source: _Json, column: str) -> list[_Json]:
    """Return the relations whose column a name without a table may mean.

    A statement with an ambiguous name is refused. So, without USING, each relation that has the column is meant. With
    USING, those are that it merges, even if others have the column too.
    """
    merges = list(_merges(source, column))
    if len(merges) == 1:
        return _merged(merges[0], column)
    return [] if merges else [leaf for leaf, _ in _leaves(source, is_bound=True)]


def _merges(source: _Json, column: str) -> Iterator[_Json]:
    """Yield the topmost joins that merge a column, or may do so."""
    if source["type"] == "JOIN":
        if source["ref_type"] == "NATURAL" or column in map(folded, source["using_columns"]):
            yield source
        else:
            yield from _merges(source["left"], column)
            yield from _merges(source["right"], column)


def _merged(join: _Json, column: str) -> list[_Json]:
    """Return the relations that a join merges by a column; of a side where that is not sure, none."""
    if join["type"] != "JOIN":
        return [join]
    if join["ref_type"] == "NATURAL" or column not in map(folded, join["using_columns"]):
        return []
    return [*_merged(join["left"], column), *_merged(join["right"], column)]


def _conjuncts(where: _Json) -> Iterator[_Json]:
    if where["type"] == "CONJUNCTION_AND":  # safeguard: conjuncts-alone-bind
        for child in where["children"]:
            yield from _conjuncts(child)
    else:
        yield where


def _comparisons(part: _Json) -> Iterator[tuple[tuple[str, ...], Values]]:
    """Yield the column of a conjunct and the values that it may have."""
    kind = part["type"]
    if kind == "COMPARE_EQUAL":
        for column, other in ((part["left"], part["right"]), (part["right"], part["left"])):
            if column["type"] == "COLUMN_REF" and (values := _texts_of([other])):
                yield _path_of(column), values
    elif kind == "COMPARE_IN":
        column, *others = part["children"]
        if column["type"] == "COLUMN_REF" and (values := _texts_of(others)):
            yield _path_of(column), values
    elif kind == "FUNCTION" and part["function_name"] in _CONTAINS and not part["schema"] and not part["catalog"]:
        listed, column = (argument["expression"] for argument in part["arguments"])
        found = _values_of(listed)
        if column["type"] == "COLUMN_REF" and found is not None and found.is_list is not False:
            yield _path_of(column), _as_list(found)


def _promises(part: _Json) -> Iterator[Condition]:
    """Yield what a conjunct promises of all relations of its SELECT."""
    if part["type"] == "FUNCTION" and folded(part["schema"]) == "reads":
        name = folded(part["function_name"])
        if name in _PROMISES:
            [argument] = part["arguments"]
            if (values := _values_of(argument["expression"])) is not None and values.is_list is not False:
                yield Condition(name, _as_list(values))


def _path_of(column: _Json) -> tuple[str, ...]:
    return tuple(map(folded, column["column_names"]))


def _texts_of(expressions: Iterable[_Json]) -> Values | None:
    """Return single texts; None if one of the expressions is something else."""
    items: list[str | Parameter] = []
    for expression in expressions:
        values = _values_of(expression)
        if values is None or values.is_list:
            return None
        items += values.items
    return Values(tuple(items), False)


def _values_of(expression: _Json) -> Values | None:
    """Return the texts or parameters that an expression has, None if it is anything else."""
    kind = expression["type"]
    if kind == "VALUE_CONSTANT":
        literal = expression["literal"]
        return Values((literal["text"],), False) if literal["kind"] == "STRING" else None
    if kind == "VALUE_PARAMETER":
        return Values((Parameter(expression["identifier"]),), None)
    if kind == "OPERATOR_CAST" and not expression["try_cast"]:
        return _cast(_values_of(expression["child"]), expression["type_expr"])
    if kind == "ARRAY_CONSTRUCTOR":
        found = _texts_of(expression["children"])
    elif kind == "FUNCTION" and expression["function_name"] == "list_value" and not expression["schema"]:
        found = _texts_of(argument["expression"] for argument in expression["arguments"])
    else:
        return None
    return None if found is None else Values(found.items, True)


def _cast(values: Values | None, to: Mapping[str, Any]) -> Values | None:
    """Return values after a cast that changes nothing."""
    if values is None or to["catalog"] or to["schema"]:
        return None
    if _is_text_type(to):
        return None if values.is_list else Values(values.items, False)
    if folded(to["type_name"]) == "list" and len(to["children"]) == 1 and _is_text_type(to["children"][0]):
        return None if values.is_list is False else _as_list(values)
    return None


def _as_list(values: Values) -> Values:
    """Return values that are a list. A single parameter then is one."""
    if values.is_list is None:
        return Values(tuple(Parameter(item.name, True) for item in values.items if isinstance(item, Parameter)), True)
    return values


def _is_text_type(kind: Mapping[str, Any]) -> bool:
    return folded(kind["type_name"]) in _TEXT_TYPES and not kind["children"] and not kind["schema"]
