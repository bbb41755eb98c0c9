"""The heat map of a run: by how much each label exceeds the median of each step, in one phase.

A picture has fewer pixels than there are labels and steps. Each of its cells has the largest excess of its labels and
steps, so that one slow rank of a thousand, in a single step, is still in the picture.
"""

from dataclasses import dataclass
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.curves import bucket_width, shorten
from chiplog_client.reads.parameters import BadRequestError
from chiplog_client.reads.run_phases import read_labels, read_phases
from chiplog_client.reads.verdict import OUTSIDE

ROWS_MAX = 256
COLUMNS_MAX = 600
UNITS = 1_000  # of the largest excess: a cell is an integer, which takes less room than a number of seconds
# A label that is not chosen, or that came after the names were read, has no number.
# safeguard: heat-cell-is-the-maximum
_CELLS = """
WITH cells AS (
    SELECT list_position($places::INTEGER[], c.place) - 1 AS number, c.step, c.typical,
           greatest(c.seconds - c.typical, 0) AS excess
    FROM reads.compared({first}, {last}) c
    WHERE c.run_id = $run AND c.key = {key}
)
SELECT number // {per_row} AS row, (step - {start}) // {width} AS column,
       max(excess) AS excess,
       arg_max(number, excess) % {per_row} AS label, (arg_max(step, excess) - {start}) % {width} AS step,
       median(typical) AS typical
FROM cells WHERE number IS NOT NULL GROUP BY ALL
"""


@dataclass(frozen=True)
class HeatRequest:
    """What to read. phase: None for `step`. first, last: bounds of steps; None for those of the phase.

    labels: only their rows, all if empty; the median is that of all labels.
    """

    run: str
    phase: str | None = None
    first: int | None = None
    last: int | None = None
    since: int | None = None  # only columns from this step on, in the columns of the whole
    rows: int = ROWS_MAX
    columns: int = COLUMNS_MAX
    labels: tuple[str, ...] = ()


def read_heat(client: Client, request: HeatRequest) -> dict[str, Any]:
    """Return the excess of each label in each step, reduced to rows and columns.

    The last phase is the time outside of phases, as in straggler_windows.

    Returns:
        `phases` to choose from, `phase`, `labels` in the order of the rows, `first_step` and `last_step` of the phase;
        `start`, the first step of the first column; `width`, steps in a column; `per_row`, labels in a row; `n_rows`,
        `n_columns`; `unit_s`, seconds; `excess`, integers in this unit row by row, None without data; `label` and
        `step`, what has the largest excess of a cell, counted from its first one, None where cells have a single one;
        `typical_s`, the median of each column.

    Raises:
        QueryError: A query has no result.
        BadRequestError: The run has no such phase.
    """
    phases = {row["name"]: row for row in read_phases(client, request.run)}
    if phases and OUTSIDE not in phases:
        first = min(row["first_step"] for row in phases.values())
        phases[OUTSIDE] = {"id": -1, "first_step": first, "last_step": max(row["last_step"] for row in phases.values())}
    head: dict[str, Any] = {"phases": list(phases), "phase": request.phase or next(iter(phases), None)}
    if not phases:
        return head | {"labels": [], "n_rows": 0, "n_columns": 0}
    if head["phase"] not in phases:
        raise BadRequestError(
            f"run {request.run!r:.200} has no phase {request.phase!r:.200}; it has {', '.join(phases)}"
        )
    found = phases[head["phase"]]
    first = found["first_step"] if request.first is None else request.first
    last = max(first, found["last_step"] if request.last is None else request.last)
    labels = read_labels(client, request.run, found["id"])
    if request.labels:
        labels = {place: label for place, label in labels.items() if label in request.labels}
    if not labels:
        return head | {"labels": [], "n_rows": 0, "n_columns": 0}
    width = bucket_width(last - first + 1, request.columns)
    if last // width - first // width + 1 > request.columns:
        width *= 2  # the bounds are within a column each
    start = first - first % width
    if request.since is not None:
        start = max(start, request.since - request.since % width)
    per_row = -(-len(labels) // request.rows)
    n_rows, n_columns = -(-len(labels) // per_row), (last - start) // width + 1
    bounds = {"first": max(first, start), "last": last, "start": start, "width": width, "per_row": per_row}
    text = _CELLS.format(key=found["id"], **bounds)
    rows = client.sql(text, {"run": request.run, "places": list(labels)}).tuples()
    return head | {
        "labels": list(labels.values()),
        "first_step": found["first_step"],
        "last_step": found["last_step"],
        "start": start,
        "width": width,
        "per_row": per_row,
        "n_rows": n_rows,
        "n_columns": n_columns,
        **_matrix(rows, n_rows, n_columns, per_row > 1, width > 1),
    }


def _matrix(
    cells: list[tuple[Any, ...]], n_rows: int, n_columns: int, has_labels: bool, has_steps: bool
) -> dict[str, Any]:
    excess: list[int | None] = [None] * (n_rows * n_columns)
    label = [0] * len(excess) if has_labels else None
    step = [0] * len(excess) if has_steps else None
    typical: list[float | None] = [None] * n_columns
    unit = max((cell[2] for cell in cells), default=0.0) / UNITS or 1.0
    for row, column, seconds, number, offset, usual in cells:
        place = row * n_columns + column
        excess[place] = round(seconds / unit)
        if label is not None:
            label[place] = number
        if step is not None:
            step[place] = offset
        if typical[column] is None:
            typical[column] = shorten(usual)
    return {"unit_s": unit, "excess": excess, "label": label, "step": step, "typical_s": typical}
