"""What the prompt knows of SQL: where a query ends, and which words may come next. Pure: the catalog is given."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SHOWN_MAX = 200  # suggestions at once: more are not readable
KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN", "USING", "ON", "AS", "WITH"),
    *("AND", "OR", "NOT", "IN", "IS NULL", "IS NOT NULL", "BETWEEN", "LIKE", "DESC", "ASC", "NULLS LAST", "DISTINCT"),
    *("HAVING", "QUALIFY", "UNION ALL", "OVER", "PARTITION BY", "CASE WHEN", "THEN", "ELSE", "END", "FILTER"),
    *("count(*)", "min(", "max(", "avg(", "sum(", "median(", "arg_max(", "arg_min(", "DESCRIBE", "SHOW TABLES"),
)
# Strings, quoted names, comments: complete ones, and those that the end of the text leaves open.
_TOKEN = re.compile(
    r"""(?P<string>'(?:[^']|'')*'(?!'))|(?P<name>"(?:[^"]|"")*"(?!"))|(?P<comment>--[^\n]*\n|/\*.*?\*/)"""
    r"""|(?P<open_string>'(?:[^']|'')*\Z)|(?P<open_name>"(?:[^"]|"")*\Z)|(?P<open_comment>--[^\n]*\Z|/\*.*\Z)""",
    re.DOTALL,
)
_WORD = re.compile(r"[\w]*\Z")
_IS_RELATION_NEXT = re.compile(
    r"\b(?:from|join|describe|summarize)\s+\w*\Z|\bfrom\s+(?:\w+\s*,\s*)+\w*\Z", re.IGNORECASE
)
_OWNER_OF_STRING = re.compile(r"(\w+)\s*(?:=|<>|!=|\bin\s*\((?:\s*'[^']*'\s*,)*|\blike\b)\s*\Z", re.IGNORECASE)
_MACRO_OF_STRING = re.compile(r"(\w+)\s*\(([^()]*)\Z")


@dataclass(frozen=True, slots=True)
class Catalog:
    """Names that a query may use."""

    views: Mapping[str, Sequence[str]] = field(default_factory=dict)  # with their columns
    macros: Mapping[str, Sequence[str]] = field(default_factory=dict)  # with their parameters
    runs: Sequence[str] = ()
    keys: Sequence[str] = ()


class Suggestion(NamedTuple):
    """A text to put in the place of the last `replaced` characters, and what it is."""

    text: str
    replaced: int
    what: str


def is_complete(text: str) -> bool:
    """Return True if a query ends here: with a semicolon that is in no string or comment."""
    bare = _without_texts(text)
    return bare is not None and bare.rstrip().endswith(";")


def _without_texts(text: str) -> str | None:
    """Return a query with strings and comments blanked out; None if one of them is open, but for a line comment."""
    pieces, at = [], 0
    for token in _TOKEN.finditer(text):
        is_block = token.lastgroup == "open_comment" and token[0].startswith("/*")
        if is_block or token.lastgroup in ("open_string", "open_name"):
            return None
        pieces += [text[at : token.start()], " " if "comment" in (token.lastgroup or "") else "''"]
        at = token.end()
    return "".join([*pieces, text[at:]])


def suggestions(text: str, catalog: Catalog) -> list[Suggestion]:
    """Return what may follow `text`, the beginning of a query up to the cursor."""
    last = next(reversed(list(_TOKEN.finditer(text))), None)
    if last is not None and last.end() == len(text) and last.lastgroup == "open_comment":
        return []
    if last is not None and last.lastgroup == "open_string":
        found = _values(text[: last.start()], last[0][1:].replace("''", "'"), catalog)
    else:
        found = _words(text, catalog)
    return [suggestion for suggestion, _ in zip(found, range(SHOWN_MAX), strict=False)]


def _values(before: str, begun: str, catalog: Catalog) -> Iterator[Suggestion]:
    """Yield values for a string: runs or keys, by the column or the parameter of the macro; else both."""
    owner = _OWNER_OF_STRING.search(before)
    name = owner[1].lower() if owner else _parameter(before, catalog)
    wanted = [(catalog.runs, "run")] if "run" in name else [(catalog.keys, "key")] if "key" in name else []
    for values, what in wanted or [(catalog.keys, "key"), (catalog.runs, "run")]:
        if owner and not wanted and name not in ("", "value"):
            return
        for value in _matching(values, begun):
            yield Suggestion(value.replace("'", "''") + "'", len(begun) + begun.count("'"), what)


def _parameter(before: str, catalog: Catalog) -> str:
    """Return the name of the macro's parameter that comes next; empty if no macro of the catalog is called."""
    call = _MACRO_OF_STRING.search(before)
    parameters = catalog.macros.get(call[1].lower(), ()) if call else ()
    place = call[2].count(",") if call else 0
    return str(parameters[place]).lower() if place < len(parameters) else ""


def _words(text: str, catalog: Catalog) -> Iterator[Suggestion]:
    word = _WORD.search(text)
    begun = word[0] if word else ""
    bare = _without_texts(text) or text
    macros = {f"{name}(": "macro" for name in catalog.macros}
    if _IS_RELATION_NEXT.search(bare):
        groups = [(dict.fromkeys(catalog.views, "view"), True), (macros, True)]
    else:
        used = {name.lower() for name in re.findall(r"\w+", bare)} & set(catalog.views)
        chosen = sorted(used) or list(catalog.views)
        columns = {column: "column" for view in chosen for column in catalog.views[view]}
        after_dot = text[: len(text) - len(begun)].endswith(".")
        groups = [(columns, bool(used) or bool(begun) or after_dot)]
        if not after_dot:
            groups += [(macros, bool(begun)), (dict.fromkeys(catalog.views, "view"), bool(begun))]
            groups += [(dict.fromkeys(KEYWORDS, ""), bool(begun))]
    for names, is_wanted in groups:
        for name in _matching(list(names), begun) if is_wanted else ():
            yield Suggestion(name, len(begun), names[name])


def _matching(names: Sequence[str], begun: str) -> list[str]:
    """Return the names that begin with a text, then those that contain it; case does not matter."""
    wanted = begun.casefold()
    first = [name for name in names if name.casefold().startswith(wanted)]
    return first + (
        [name for name in names if wanted in name.casefold()[1:] and name not in set(first)] if wanted else []
    )
