"""Filters and orders of `wandb.Api().runs()` as SQL. Every name and value of the caller is a bound parameter."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from chiplog.safety.text import short_repr

NAME = "coalesce(nullif(r.name, ''), r.run_id)"
_TEXTS = {
    "state": "r.state",
    "group": "r.run_group",
    **dict.fromkeys(("jobType", "job_type"), "r.job_type"),
    **dict.fromkeys(("display_name", "displayName"), NAME),
}
_TIMES = dict.fromkeys(("created_at", "createdAt"), "r.created_at")
_MAPS = {"config": "c.config", "summary_metrics": "s.summary"}
_COMPARED = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_NUMBERS = "('BIGINT', 'UBIGINT', 'HUGEINT', 'DOUBLE')"
_NEGATED = {"$ne": "$eq", "$nin": "$in"}
_KNOWN = "config.*, summary_metrics.*, state, tags, group, jobType, display_name, created_at"


class Conditions:
    """Builds SQL over runs `r`, their configs `c` and summaries `s`; `params` has what it binds."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self._names: dict[tuple[type, Any], str] = {}

    def bind(self, value: Any) -> str:
        """Return the name of a parameter with a value."""
        name = self._names.setdefault((type(value), value), f"p{len(self.params)}")
        self.params[name] = value
        return f"${name}"

    def where(self, filters: Any) -> str:
        """Return the condition of W&B's filters, which are those of MongoDB. Raises ValueError."""
        if not isinstance(filters, Mapping):
            raise ValueError(f"a filter is a dict, not {short_repr(filters)}")
        return _all(self._entry(name, value) for name, value in filters.items())

    def order(self, order: str) -> str:
        """Return the terms of an order: a field, with + or - in front. Raises ValueError."""
        direction = "DESC" if order.startswith("-") else "ASC"
        name = order.lstrip("+-")
        kind, field = self._field(name)
        if kind == "tags":
            raise ValueError(f"order={order!r}: runs have no order by tags")
        terms = [_number(field), f"{field} ->> '$'"] if kind == "json" else [field]
        return ", ".join(f"{term} {direction} NULLS LAST" for term in (*terms, "r.created_at", "r.run_id"))

    def _entry(self, name: Any, value: Any) -> str:
        if name in ("$and", "$or"):
            if not isinstance(value, list | tuple) or not value:
                raise ValueError(f"{name} takes a list of filters, not {short_repr(value)}")
            parts = [self.where(each) for each in value]
            return _all(parts) if name == "$and" else f"({' OR '.join(parts)})"
        if name == "$not":
            return _not(self.where(value))
        kind, field = self._field(name)
        return self._tests(kind, field, value)

    def _tests(self, kind: str, field: str, value: Any) -> str:
        if not isinstance(value, Mapping):
            return self._test(kind, field, "$eq", value)
        if not value:
            raise ValueError("a field is compared with {}; name an operator such as $gt")
        return _all(self._test(kind, field, operator, operand) for operator, operand in value.items())

    def _test(self, kind: str, field: str, operator: Any, operand: Any) -> str:
        if operator in _NEGATED:
            return _not(self._test(kind, field, _NEGATED[operator], operand))
        if operator == "$not":
            return _not(self._tests(kind, field, operand))
        if operator == "$exists":
            found = f"len({field}) > 0" if kind == "tags" else f"{field} IS NOT NULL"
            return found if operand else _not(found)
        if kind == "tags":
            if operand is None:
                return _not(f"len({field}) > 0")
            of_one = self._test("text", "t.tag", operator, operand)
            return f"EXISTS (SELECT 1 FROM unnest({field}) AS t(tag) WHERE {of_one})"
        if operator == "$in":
            if not isinstance(operand, list | tuple | set | frozenset):
                raise ValueError(f"$in and $nin take a list, not {short_repr(operand)}")
            never = f"({field} IS NULL AND FALSE)"  # it names the field, whose parameters are bound
            return f"({' OR '.join([never, *(self._equal(kind, field, each) for each in operand)])})"
        if operator == "$eq":
            return self._equal(kind, field, operand)
        if operator in _COMPARED:
            return self._compared(kind, field, _COMPARED[operator], operand)
        if operator == "$regex" and kind != "time":
            return self._matched(kind, field, operand)
        raise ValueError(f"filter operator {short_repr(operator)} is unknown; $eq, $ne, $gt, $in, $regex … are known")

    def _equal(self, kind: str, field: str, value: Any) -> str:
        if value is not None:
            return self._compared(kind, field, "=", value)
        return f"({field} IS NULL OR json_type({field}) = 'NULL')" if kind == "json" else f"{field} IS NULL"

    def _compared(self, kind: str, field: str, sign: str, value: Any) -> str:
        """Compare values of one type: others are different, and none is greater."""
        if kind == "time":
            return f"{field} {sign} {self.bind(_time(value))}::TIMESTAMP"
        if isinstance(value, str):
            return f"{_text(kind, field)} {sign} {self.bind(value)}"
        if isinstance(value, bool):
            is_bool = f"json_type({field}) = 'BOOLEAN'"
            return f"({is_bool} AND ({field} ->> '$') {sign} '{str(value).lower()}')" if kind == "json" else "FALSE"
        if not isinstance(value, int | float):
            raise ValueError(f"a filter compares with {short_repr(value)}; give a number, a text, a bool or None")
        return f"{_number(field)} {sign} {self.bind(float(value))}" if kind == "json" else "FALSE"

    def _matched(self, kind: str, field: str, pattern: Any) -> str:
        text = getattr(pattern, "pattern", pattern)
        if not isinstance(text, str):
            raise ValueError(f"$regex takes a text, not {short_repr(pattern)}")
        return f"regexp_matches({_text(kind, field)}, {self.bind(text)})"

    def _field(self, name: Any) -> tuple[str, str]:
        """Return the kind of a field, and its SQL."""
        if name in _TEXTS:
            return "text", _TEXTS[name]
        if name in _TIMES:
            return "time", _TIMES[name]
        if name == "tags":
            return "tags", "r.tags"
        place, _, key = str(name).partition(".")
        if place not in _MAPS or not key:
            raise ValueError(f"runs have no filter {short_repr(name)}; they have {_KNOWN}")
        bind: Callable[[Any], str] = self.bind
        found = [
            f"{_MAPS[place]}[{bind(entry)}]"
            if not path
            else f"json_extract({_MAPS[place]}[{bind(entry)}], {bind(path)})"
            for entry, path in _places(place, key)
        ]
        return "json", f"coalesce({', '.join(found)})"


def _places(place: str, key: str) -> list[tuple[str, str]]:
    """Return where a dotted key may be: entries, and JSON pointers into them. W&B also writes config.KEY.value."""
    found = [(key, "")]
    if place == "summary_metrics":
        found.append((key.replace(".", "/"), ""))
    parts = key.split(".")
    for n in range(len(parts) - 1, 0, -1):
        pointer = "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in parts[n:])
        found.append((".".join(parts[:n]), pointer))
    if place == "config" and key.endswith(".value") and key != ".value":
        found += _places(place, key.removesuffix(".value"))
    return list(dict.fromkeys(found))


def _number(field: str) -> str:
    return f"CASE WHEN json_type({field}) IN {_NUMBERS} THEN TRY_CAST({field} ->> '$' AS DOUBLE) END"


def _text(kind: str, field: str) -> str:
    return f"CASE WHEN json_type({field}) = 'VARCHAR' THEN {field} ->> '$' END" if kind == "json" else field


def _time(value: Any) -> str:
    """Return a time as UTC. Raises ValueError."""
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except TypeError:
        raise ValueError(f"created_at is compared with {short_repr(value)}; give an ISO time") from None
    return (time if time.tzinfo is None else time.astimezone(UTC).replace(tzinfo=None)).isoformat()


def _all(parts: Iterable[str]) -> str:
    return f"({' AND '.join(['TRUE', *parts])})"


def _not(condition: str) -> str:
    return f"NOT coalesce({condition}, FALSE)"
