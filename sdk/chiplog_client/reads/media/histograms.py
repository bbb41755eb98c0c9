"""Histograms of a run as a picture: steps by values, each cell with the largest count of its steps.

A picture has fewer pixels than there are steps. A column of several steps has the maximum of each row, so that values
in a single step stay visible. Where all histograms have the same bins, the rows are these bins. Else the rows are
equally high, and a bin that covers several of them counts in each by its share of the bin's width.
"""

from dataclasses import dataclass, replace
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.curves import bucket_width, shorten
from chiplog_client.reads.parameters import CHOSEN_LABELS, STEP_MAX, STEP_MIN

ROWS_MAX = 256
COLUMNS_MAX = 600
_QUANTILES = {"q05": 0.05, "median": 0.5, "q95": 0.95}
# Of several attempts of a label the newest one counts.
_FOUND = f"""
WITH found AS MATERIALIZED (
    SELECT label, step, edges, counts FROM histograms
    WHERE run_id = $run AND key = $key AND {CHOSEN_LABELS} AND step BETWEEN $first AND $last
    QUALIFY row_number() OVER (PARTITION BY label, step ORDER BY attempt DESC, seq DESC) = 1
)"""
_SPAN = (
    _FOUND
    + """
SELECT count(*) AS n, count(DISTINCT label) AS n_labels, min(step) AS first_step, max(step) AS last_step,
       count(DISTINCT edges) AS n_edges, any_value(edges) AS edges,
       min(list_min(list_filter(edges, lambda edge: isfinite(edge)))) AS low,
       max(list_max(list_filter(edges, lambda edge: isfinite(edge)))) AS high
FROM found
"""
)
# Halves, because the difference of two numbers may be infinite. An infinite edge is the end of all finite ones.
# safeguard: histogram-cell-is-the-maximum
_CELLS = (
    _FOUND
    + """
, bins AS (
    SELECT label, step, least(greatest(unnest(edges[1:len(counts)]), $least), $most) AS low,
           least(greatest(unnest(edges[2:]), $least), $most) AS high, unnest(counts) AS n
    FROM found
), placed AS (
    SELECT label, step, n, (low / 2 - $low / 2) / $height AS bottom, (high / 2 - $low / 2) / $height AS top
    FROM bins WHERE n <> 0 AND isfinite(n) AND high >= $low AND low <= $high
), shared AS (
    SELECT step, n, bottom, top, unnest(range(
        greatest(least(floor(bottom), $rows - 1), 0)::BIGINT,
        least(greatest(ceil(top), floor(bottom) + 1), $rows)::BIGINT
    )) AS row
    FROM placed
), summed AS (
    SELECT step, row, sum(CASE WHEN top > bottom
        THEN n * (least(top, row + 1) - greatest(bottom, row)) / (top - bottom) ELSE n END) AS n
    FROM shared GROUP BY step, row
)
SELECT step - (step % {width} + {width}) % {width} AS place, row, max(n) AS n, arg_max(step, n) AS step
FROM summed GROUP BY ALL HAVING max(n) > 0
"""
)
_SAME_BINS = (
    _FOUND
    + """
, summed AS (
    SELECT step, unnest(range(len(counts))) AS row, unnest(counts) AS n FROM found
), of_step AS (
    SELECT step, row, sum(n) FILTER (isfinite(n)) AS n FROM summed GROUP BY step, row
)
SELECT step - (step % {width} + {width}) % {width} AS place, row, max(n) AS n, arg_max(step, n) AS step
FROM of_step GROUP BY ALL HAVING max(n) > 0
"""
)
_COLUMNS = (
    _FOUND
    + """
SELECT step - (step % {width} + {width}) % {width} AS place, min(step) AS step, count(DISTINCT step) AS n
FROM found GROUP BY place ORDER BY place
"""
)


@dataclass(frozen=True)
class HistogramsRequest:
    """What to read. labels: only these, all if empty; several are summed. Bounds: of steps, and of values."""

    run: str
    key: str
    labels: tuple[str, ...] = ()
    first: int | None = None
    last: int | None = None
    low: float | None = None
    high: float | None = None
    rows: int = ROWS_MAX
    columns: int = COLUMNS_MAX


def read_histograms(client: Client, request: HistogramsRequest) -> dict[str, Any]:
    """Return the histograms of a key in rows of values and columns of steps.

    Returns:
        `n` histograms of `n_labels` labels; `first_step` and `last_step`; `edges`, the bounds of the rows from below;
        `is_exact`, whether the rows are the bins; `width`, steps in a column at most; `step`, the first step of each
        column, and `n_steps`, how many have a histogram; `counts`, row by row, 0 without a value; `at`, the step with
        this count, None where each column has a single step; `largest`, of the counts. Without a histogram `n` is 0.

    Raises:
        QueryError: A query has no result.
    """
    named: dict[str, Any] = {
        "run": request.run,
        "key": request.key,
        "labels": list(request.labels),
        "first": STEP_MIN if request.first is None else request.first,
        "last": STEP_MAX if request.last is None else request.last,
    }
    [span] = client.sql(_SPAN, named).rows()
    n_edges, bins = span.pop("n_edges"), span.pop("edges")
    least, most = span.pop("low"), span.pop("high")
    if not span["n"] or least is None:
        return {**span, "n": 0}
    width = bucket_width(span["last_step"] - span["first_step"] + 1, request.columns - 1)
    is_exact = n_edges == 1 and len(bins) <= request.rows + 1 and request.low is None and request.high is None
    if is_exact:
        edges = [float(edge) for edge in bins]
        cells = client.sql(_SAME_BINS.format(width=width), named).tuples()
    else:
        low = least if request.low is None else request.low
        high = max(most if request.high is None else request.high, low)
        height = (high / 2 - low / 2) / request.rows or 1.0
        rows = request.rows if high > low else 1
        edges = [low + 2 * height * row for row in range(rows)] + [high]
        bounds = {"least": least, "most": most, "low": low, "high": high, "height": height, "rows": rows}
        cells = client.sql(_CELLS.format(width=width), {**named, **bounds}).tuples()
    columns = client.sql(_COLUMNS.format(width=width), named).rows()
    return {
        **span,
        "edges": edges,
        "is_exact": is_exact,
        "width": width,
        "step": [column["step"] for column in columns],
        "n_steps": [column["n"] for column in columns],
        **_matrix(cells, [column["place"] for column in columns], len(edges) - 1, width > 1),
    }


def read_quantiles(client: Client, request: HistogramsRequest, step: int) -> dict[str, Any] | None:
    """Return how the values of a key were distributed at one step; None without a histogram there.

    Returns:
        `step`; `n`, the sum of the counts; `min` and `max`, the bounds of the bins with values; `q05`, `median` and
        `q95`, as if the values were spread evenly in a bin.

    Raises:
        QueryError: A query has no result.
    """
    found = read_histograms(client, replace(request, first=step, last=step, rows=ROWS_MAX))
    if not found["n"] or not found["largest"]:
        return None
    edges, counts = found["edges"], found["counts"]
    filled = [row for row, count in enumerate(counts) if count]
    ends = {"min": edges[filled[0]], "max": edges[filled[-1] + 1]}
    quantiles = {name: _quantile(edges, counts, share) for name, share in _QUANTILES.items()}
    return {"step": step, "n": sum(counts), **ends, **quantiles}


def _quantile(edges: list[float], counts: list[float], share: float) -> float:
    left = share * sum(counts)
    for row, count in enumerate(counts):
        if count and count >= left:
            return edges[row] + (edges[row + 1] - edges[row]) * left / count
        left -= count
    return edges[-1]


def _matrix(cells: list[tuple[Any, ...]], places: list[int], n_rows: int, has_steps: bool) -> dict[str, Any]:
    counts: list[float] = [0] * (n_rows * len(places))
    at: list[int | None] | None = [None] * len(counts) if has_steps else None
    column_of = {place: column for column, place in enumerate(places)}
    for place, row, count, step in cells:
        column = column_of.get(place)
        if column is None or row >= n_rows:  # deleted, or with more bins, since the query before
            continue
        cell = row * len(places) + column
        # Whole counts are kept.
        counts[cell] = int(count) if count == int(count) and count < 1 << 53 else shorten(count)
        if at is not None:
            at[cell] = step
    return {"counts": counts, "at": at, "largest": max(counts, default=0)}
