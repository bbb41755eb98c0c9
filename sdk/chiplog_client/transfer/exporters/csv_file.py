"""A run as a CSV file: a row for each call of `log()`, a column for each metric."""

import csv
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from chiplog_client.transfer.exporters.run_rows import RunRows

TABLES = ("metrics", "texts")
FILE = "metrics.csv"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS = ("run", "label", "attempt", "step", "time")
_ATTEMPT = 2


def write_csv(rows: RunRows, run: str, directory: Path) -> Counter[str]:
    """Write the numbers and texts of a run. Return their numbers by noun.

    The columns are run, label, step and time, and attempt in a run that restarted. An import reads them.
    """
    keys = rows.keys(*TABLES)
    has_attempts = rows.has_restarts()
    written = Counter(points=0, texts=0)
    with open(directory / FILE, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*_lead(_COLUMNS, has_attempts), *map(column_of, keys)])
        places = {key: place for place, key in enumerate(keys)}
        empty = [""] * len(keys)
        for call in rows.calls(*TABLES):
            cells: list[object] = [*empty]
            for key, value in call.values:
                written["points" if isinstance(value, float) else "texts"] += 1
                cells[places[key]] = repr(value) if isinstance(value, float) else value
            lead = (run, call.label, call.attempt, call.step, _time_text(call.us))
            table.writerow([*_lead(lead, has_attempts), *cells])
    return written


def column_of(key: str) -> str:
    """Return the column of a metric: its name, which must not be that of another column."""
    return f"metrics/{key}" if key in _COLUMNS else key


def _lead(cells: Iterable[object], has_attempts: bool) -> list[object]:
    return [cell for place, cell in enumerate(cells) if has_attempts or place != _ATTEMPT]


def _time_text(us: int) -> str:
    """Return a time as ISO 8601, to the microsecond."""
    return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
