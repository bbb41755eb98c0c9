"""Curves in buckets of equally many steps: each label up to a number of labels, above that a band over all of them.

Long ranges are read from base.metric_levels, which has buckets of 16 and of 256 steps, and from the recent rows. A
bucket keeps its minimum and maximum, so that no spike is lost at any width. The widths are powers of two: a page that
asks again for the end of a growing curve gets the same buckets.
"""

from dataclasses import dataclass
from typing import Any

from chiplog.query.client import Client
from chiplog_schemas.sql import LEVELS

POINTS_MAX = 2_000
LABELS_MAX = 64  # curves in one panel
WIDTH_MAX = 1 << 40
_SPAN = """
SELECT min(first_step) AS first_step, max(last_step) AS last_step, count(*) AS n_labels FROM keys
WHERE run_id = $run AND key = $key AND (len($labels::VARCHAR[]) = 0 OR list_contains($labels::VARCHAR[], label))
"""
# Of a label with several attempts in a bucket the newest one counts.
_BUCKETS = """
WITH series AS (
    SELECT DISTINCT s.producer, s.key, i.label, i.attempt, i.rank
    FROM base.metric_series s JOIN base.identified i ON i.producer = s.producer JOIN base.names n ON n.id = s.key
    WHERE i.run_id = $run AND n.name = $key
      AND (len($labels::VARCHAR[]) = 0 OR list_contains($labels::VARCHAR[], i.label))
), parts AS (
    {parts}
), attempts AS (
    SELECT s.label, s.rank, s.attempt, p.step - (p.step % {width} + {width}) % {width} AS step, min(p.ts) AS ts,
           sum(p.n) AS n, min(p.min) AS min, max(p.max) AS max, sum(p.sum) / nullif(sum(p.n), 0) AS mean
    FROM parts p JOIN series s ON s.producer = p.producer AND s.key = p.key GROUP BY ALL
), buckets AS (
    FROM attempts QUALIFY attempt = max(attempt) OVER (PARTITION BY label, step)  -- safeguard: newest-attempt-is-drawn
)
"""
_ROWS = """
SELECT f.producer, f.key, f.step, f.ts, (NOT isnan(f.value))::BIGINT AS n, nullif(f.value, 'nan') AS sum,
       nullif(f.value, 'nan') AS min, nullif(f.value, 'nan') AS max
FROM {table} f JOIN series s ON s.producer = f.producer AND s.key = f.key
WHERE f.step >= {first} AND f.step <= {last}
"""
_LEVEL = """
SELECT l.producer, l.key, l.step, l.ts, l.n_numbers, l.sum, l.min, l.max
FROM base.metric_levels l JOIN series s ON s.producer = l.producer AND s.key = l.key
WHERE l.width = {level} AND l.step >= {first} AND l.step <= {last}
"""
_LINES = "SELECT label, rank, step, ts, min, mean, max FROM buckets ORDER BY rank NULLS LAST, label, step"
_BAND = """
SELECT step, min(ts) AS ts, count(*) AS n_labels, min(min) AS min, median(mean) AS median, max(max) AS max,
       arg_min(label, min) AS min_label, arg_max(label, max) AS max_label
FROM buckets GROUP BY step ORDER BY step
"""


@dataclass(frozen=True)
class CurveRequest:
    """What to read. first, last: bounds of steps; None for those of the key."""

    run: str
    key: str
    points: int = 400
    first: int | None = None
    last: int | None = None
    labels: tuple[str, ...] = ()
    lines_max: int = 16


def read_curve(client: Client, request: CurveRequest) -> dict[str, Any]:
    """Return one key of a run in buckets.

    Returns:
        `kind` is `lines` or `band`, `none` without values. `step` and `ts` have an entry for each bucket. `lines`: for
        each label lists of mean, min and max, with None where it has no value. `band`: n_labels, min, median, max,
        min_label and max_label for each bucket.

    Raises:
        QueryError: A query has no result.
    """
    params = {"run": request.run, "key": request.key, "labels": list(request.labels)}
    [span] = client.sql(_SPAN, params).rows()
    head = {"key": request.key, "n_labels": span["n_labels"], "first_step": span["first_step"]}
    head["last_step"] = span["last_step"]
    if not span["n_labels"]:
        return head | {"kind": "none", "width": 1, "step": [], "ts": []}
    first = span["first_step"] if request.first is None else request.first
    last = span["last_step"] if request.last is None else request.last
    width = bucket_width(last - first + 1, request.points)
    first -= first % width
    text = _text_of(width, first, last)
    is_band = span["n_labels"] > request.lines_max
    rows = client.sql(text + (_BAND if is_band else _LINES), params).rows()
    return head | {"width": width} | (_band(rows) if is_band else _lines(rows))


def bucket_width(n_steps: int, points: int) -> int:
    """Return the least power of two that makes at most `points` buckets of so many steps."""
    width = 1
    while width < WIDTH_MAX and n_steps > width * points:
        width *= 2
    return width


def _text_of(width: int, first: int, last: int) -> str:
    level = max((level for level in LEVELS if level <= width), default=1)
    bounds = {"first": first, "last": last}
    tables = ["base.metrics_recent"] if level > 1 else ["base.metrics", "base.metrics_recent"]
    parts = [_ROWS.format(table=table, **bounds) for table in tables]
    if level > 1:
        parts.append(_LEVEL.format(level=level, **bounds))
    return _BUCKETS.format(parts=" UNION ALL ".join(parts), width=width, **bounds)


def _lines(rows: list[dict[str, Any]]) -> dict[str, Any]:
    places: dict[int, Any] = {}
    for row in rows:
        places[row["step"]] = min(places.get(row["step"], row["ts"]), row["ts"])
    steps = sorted(places)
    number = {step: place for place, step in enumerate(steps)}
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(
            row["label"],
            {"label": row["label"], "rank": row["rank"], **{name: [None] * len(steps) for name in _VALUES}},
        )
        for name in _VALUES:
            line[name][number[row["step"]]] = row[name]
    return {
        "kind": "lines",
        "step": steps,
        "ts": [places[step] for step in steps],
        "lines": list(lines.values()),
    }


_VALUES = ("mean", "min", "max")


def _band(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("step", "ts", "n_labels", "min", "median", "max", "min_label", "max_label")
    return {"kind": "band", **{name: [row[name] for row in rows] for name in names}}
