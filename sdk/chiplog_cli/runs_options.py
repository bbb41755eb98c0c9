"""The options of `chiplog runs`: names of columns, what to sort by, and since when."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import click

from chiplog_client.nearest_names import nearest
from chiplog_client.reads.runs.runs_query import DURATION, MAPS, VIEW_COLUMNS, keyed

# Columns whose names are shorter than in the view `runs`.
_OF_VIEW = {"labels": "n_labels", "attempts": "n_attempts", "failed": "n_failed", "running": "n_running"}
_SHORT = {column: name for name, column in _OF_VIEW.items()}
_COUNTED = {"complete": ("pending", "lost", "is_over"), "pending": ("pending",), "lost": ("lost",)}
_STORED = tuple(_SHORT.get(column, column) for column in VIEW_COLUMNS)
COLUMNS = (*_STORED, DURATION, *_COUNTED)
# The headings of the table name columns, too.
ALIASES = {"run": "run_id", "group": "run_group", "tries": "attempts", "started": "created_at", "took": "duration_s"}
_KNOWN = ", ".join([*COLUMNS, *(f"{prefix}.KEY" for prefix in MAPS)])
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def asked_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns of `read_runs` that columns of the command need."""
    return list(dict.fromkeys(name for column in columns for name in _COUNTED.get(column, (of_view(column),))))


def of_view(column: str) -> str:
    """Return the name of a column in `read_runs`."""
    return _OF_VIEW.get(column, column)


def parse_columns(text: str) -> list[str]:
    """Return the columns of `run_id,state,config.lr`. Raises UsageError with the nearest columns."""
    return [column_name(name.strip()) for name in text.split(",") if name.strip()]


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
