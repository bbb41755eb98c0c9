"""Runs beside each other: a table for each kind of values, with a row per key and a column per run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

from chiplog_cli.tables.fitted_table import Sheet
from chiplog_cli.tables.plain_table import NAME_WIDTH_MAX, Column
from chiplog_cli.tables.tables import plain_cell

VALUE_COLUMNS = ("kind", "key", "step", "run_id", "value")
VALUE_TYPES = {"key": "VARCHAR", "step": "BIGINT"}
_NONE = "(none)"


class Section(NamedTuple):
    """Entries of one kind, as of `chiplog_client.reads.comparison.side_by_side`, and how their values are shown."""

    kind: str  # in formats for programs
    title: str
    heading: str  # of the column of keys
    entries: Sequence[dict[str, Any]]
    text_of: Callable[[dict[str, Any], Any], str]
    is_number: bool = True
    hides_same: bool = False


def run_letters(n_runs: int) -> str:
    """Return the letters that head the columns of runs."""
    return ascii_uppercase[:n_runs]


def section_sheet(section: Section, n_runs: int, shown: int | None) -> Sheet | None:
    """Lay out a section; None if it has no entries. shown: rows at most; None for all, also those with equal values."""
    if not section.entries:
        return None
    hides_same = section.hides_same and shown is not None
    entries = [entry for entry in section.entries if not (hides_same and entry["is_same"])]
    has_steps = any(entry.get("step") is not None for entry in entries)
    columns = [Column(section.heading, is_name=True, width_max=NAME_WIDTH_MAX)]
    columns += [Column("step", is_number=True, drop=1)] * has_steps
    columns += [Column(letter, is_number=section.is_number) for letter in run_letters(n_runs)]
    differ = f": {len(entries)} of {len(section.entries)} differ" if hides_same else ""
    sheet = Sheet(columns, f"{section.title}{differ}")
    for entry in entries[:shown]:
        step = [] if not has_steps else ["" if entry["step"] is None else str(entry["step"])]
        values = (None if value is None else section.text_of(entry, value) for value in entry["values"])
        cells = (plain_cell(_NONE, "dim") if text is None else plain_cell(text) for text in values)
        sheet.add(plain_cell(entry["key"]), *step, *cells)
    if (more := len(entries) - len(sheet.rows)) > 0:
        sheet.caption, sheet.is_partial = f"{more} more; --all shows them", True
    return sheet


def value_rows(sections: Iterable[Section], run_ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield a row of VALUE_COLUMNS for each value that a run has."""
    for section in sections:
        for entry in section.entries:
            for run_id, value in zip(run_ids, entry["values"], strict=True):
                if value is not None:
                    yield section.kind, entry["key"], entry.get("step"), run_id, value
