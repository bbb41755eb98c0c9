"""The options of `chiplog runs`: names of columns, what to sort by, since when, and a view that the page saved."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import click

from chiplog_cli.suggestions import require_known
from chiplog_client.client import Client
from chiplog_client.nearest_names import nearest
from chiplog_client.reads.runs.runs_query import DURATION, MAPS, PLACES, VIEW_COLUMNS, keyed
from chiplog_client.reads.runs.saved_views import RUNS, read_saved_views

# Columns whose names are shorter than in the view `runs`.
_OF_VIEW = {"labels": "n_labels", "attempts": "n_attempts", "failed": "n_failed", "running": "n_running"}
_SHORT = {column: name for name, column in _OF_VIEW.items()}
_COUNTED = {
    "complete": ("pending", "lost", "is_over"),
    **{name: (name,) for name in ("pending", "lost", *PLACES)},
}
_STORED = tuple(_SHORT.get(column, column) for column in VIEW_COLUMNS)
COLUMNS = (*_STORED, DURATION, *_COUNTED)
# The headings of the table name columns, too.
ALIASES = {"run": "run_id", "group": "run_group", "tries": "attempts", "started": "created_at", "took": "duration_s"}
_KNOWN = ", ".join([*COLUMNS, *(f"{prefix}.KEY" for prefix in MAPS)])
# Beside the keys of a view that chooses no columns: a terminal is narrower than the page.
_BESIDE_KEYS = ("name", "state", "duration")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def asked_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns of `read_runs` that columns of the command need."""
    return list(dict.fromkeys(name for column in columns for name in _COUNTED.get(column, (of_view(column),))))


def of_view(column: str) -> str:
    """Return the name of a column in `read_runs`."""
    return _OF_VIEW.get(column, column)


def parse_columns(text: str) -> list[str]:
    """Return the columns of `run_id,state,config.lr`. Raises UsageError with the nearest columns."""
    if not (names := [column_name(name.strip()) for name in text.split(",") if name.strip()]):
        raise click.UsageError(f"--columns {text!r} names no column; use {', '.join(COLUMNS)}")
    return names


def column_name(name: str) -> str:
    """Return the name of a column; a heading of the table names one, too. Raises UsageError."""
    name = ALIASES.get(name, name)
    found = keyed(name)
    if name not in COLUMNS and (found is None or not found[1]):
        near = nearest(name, COLUMNS)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"use {_KNOWN}"
        if name and "." not in name:
            keyed_names = f"'config.{name}' or 'summary.{name}'"
            hint = (
                f"{hint} For a key write {keyed_names}"
                if near
                else f"for a key write {keyed_names}; columns are {_KNOWN}"
            )
        raise click.UsageError(f"column {name!r} is unknown; {hint}")
    return name


def parse_sort(text: str) -> tuple[str, bool]:
    """Return the column, and True for the largest first, which a hyphen before it asks for. Raises UsageError."""
    column = column_name(text.removeprefix("-"))
    if column in _COUNTED:
        raise click.UsageError(f"--sort {text}: {column} is counted for the listed runs only; sort by another column")
    return column, text.startswith("-")


def parse_since(text: str, now: datetime, is_local: bool, option: str = "--since") -> datetime:
    """Return the time that `2d`, `90m` or an ISO time means, in naive UTC. Raises UsageError."""
    try:
        if text[-1:] in _UNITS:
            return now - timedelta(**{_UNITS[text[-1]]: float(text[:-1])})
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.astimezone() if is_local else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError) as error:
        example = "write a time as 2026-01-02 or 2026-01-02T15:00, or an age as 90m, 12h, 7d"
        raise click.UsageError(f"{option} {text!r} is no time; {example}") from error


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the table of runs shows. columns: None for those of the table. The texts are those of the options."""

    columns: list[str] | None = None
    sort: str | None = None
    filter: str = ""
    sparkline: str | None = None

    def or_of(self, view: "TableOptions") -> "TableOptions":
        """Return these options, with those of a view in place of missing ones. Both filters hold."""
        return TableOptions(
            self.columns if self.columns is not None else view.columns,
            self.sort or view.sort,
            f"{view.filter} {self.filter}".strip(),
            self.sparkline or view.sparkline,
        )


def options_of_view(client: Client, name: str) -> TableOptions:
    """Return the options of a view of the table of runs that the page saved. Raises UsageError, QueryError."""
    name = name.removeprefix(f"{RUNS}/")
    found = {row["name"].removeprefix(f"{RUNS}/"): row["view"] for row in read_saved_views(client, f"{RUNS}/")}
    require_known("view of the runs", name, found, "chiplog views lists all")
    values = parse_qs(str(found[name].get("query", "")) if isinstance(found[name], dict) else "")
    keys = [f"{kind}.{key}" for kind in MAPS for key in values.get(kind, ())]
    columns = [_of_page(column) for column in values.get("column", _BESIDE_KEYS if keys else ())]
    columns = [column for column in columns if column in COLUMNS]
    if "name" in columns:
        columns.insert(columns.index("name"), "run_id")
    [sort] = values.get("sort", [""])[:1]
    by = _of_page(sort.removeprefix("-"))
    is_known = (by in COLUMNS and by not in _COUNTED) or keyed(by) is not None
    return TableOptions(
        columns=[*columns, *keys] or None,
        sort=("-" if sort.startswith("-") else "") + by if is_known else None,
        filter=values.get("filter", [""])[0],
        sparkline=values.get("curve", [None])[0],
    )


def _of_page(column: str) -> str:
    return DURATION if column == "duration" else _SHORT.get(column, column)
