"""Curves over steps: values, or buckets of steps. A line for each label, or a band over many labels.

A curve has its values as they were logged while each label has fewer than VALUES_MAX of them; above that it has buckets
of equally many steps. These are read from reads.points, which has buckets of 16 and of 256 steps, and the recent rows.
A bucket keeps its minimum and maximum, so that no spike is lost at any width. Widths are powers of two: a
page that asks again for the end of a growing curve gets the same buckets. The last value is exact at any width.

A metric whose values all have one step, as those that MLflow logs without a step, is a curve over time: its values, or
buckets of equally long times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.curves.step_metrics import STEP_METRICS
from chiplog_client.reads.parameters import CHOSEN_LABELS, STEP_MAX, STEP_MIN
from chiplog_client.results.json_texts import json_number
from chiplog_schemas.sql import LEVELS

POINTS_MAX = 2_000  # as many as a wide chart has pixels
VALUES_MAX = 2_000  # a label with fewer values in the chosen steps is not put in buckets
ANSWER_MAX = 400_000  # values or buckets of all lines in one answer: 20 MB of JSON, and more than 6 charts of 16 lines
LINES_MAX = 64  # in one panel
WIDTH_MAX = 1 << 62  # of a bucket; sums of two such numbers are still 64-bit integers
BEHIND_SHOWN = 5  # labels that are named because they have not sent the newest step
_ENDS_APART = 64  # buckets: last buckets that are nearer to each other are read in one piece
_ENDS_MAX = 32  # pieces that are read for the last values of one answer
# A row per key and kind of labels: the ranks of a job type, or its labels without a rank. The step of a label is that
# of its newest attempt, even if an earlier one got further. Names of labels are returned only where some are missing.
_SPANS = f"""
WITH members AS (
    SELECT p.label, max_by({{'of': p.state}}, p.attempt).of IS NULL AS is_running,
           max_by({{'job_type': p.job_type, 'has_rank': p.rank IS NOT NULL}}, p.attempt) AS kind,
           max_by({{'of': p.rank}}, p.attempt).of AS rank
    FROM reads.producers p WHERE p.run_id = $run AND p.role = 'rank' AND {CHOSEN_LABELS} GROUP BY p.label
), kinds AS (
    SELECT kind, count(*) AS n, list(label ORDER BY rank NULLS LAST, length(label), label) AS labels
    FROM members GROUP BY kind
), found AS (
    SELECT k.*, m.kind, m.is_running, max(k.step) OVER (PARTITION BY k.key) AS newest_step
    FROM keys k LEFT JOIN members m USING (label)
    WHERE run_id = $run AND list_contains($keys::VARCHAR[], key) AND {CHOSEN_LABELS}
), spans AS (
    SELECT key, kind, count(*) AS n_labels, min(first_step) AS first_step, max(last_step) AS last_step,
           sum(n)::BIGINT AS n_values, sum(n_nan)::BIGINT AS n_nan, any_value(newest_step) AS newest_step,
           min(step) AS least_step, min(step) FILTER (is_running) AS least_running_step,
           coalesce(sum(n) FILTER (NOT is_running), 0)::BIGINT AS n_values_ended,
           count(*) FILTER (step < newest_step) AS n_behind,
           coalesce(
               list(label ORDER BY step, rank NULLS LAST, length(label), label) FILTER (step < newest_step), []
           )[1:{BEHIND_SHOWN}] AS behind,
           max(n) AS most_values, max(n_nan) AS most_nan, list(label) AS labels
    FROM found GROUP BY key, kind
), defined AS (
    {STEP_METRICS}
)
SELECT s.* EXCLUDE (kind, labels), d.step_metric, coalesce(k.n, s.n_labels) AS n_peers,
       CASE WHEN s.n_labels < k.n THEN s.labels END AS labels, CASE WHEN s.n_labels < k.n THEN k.labels END AS peers
FROM spans s LEFT JOIN kinds k ON k.kind = s.kind LEFT JOIN defined d ON d.key = s.key ORDER BY s.key, s.kind
"""
_SERIES = f"""
WITH series AS MATERIALIZED (
    SELECT DISTINCT producer, key, name, label, attempt, rank FROM reads.series
    WHERE is_metric AND run_id = $run AND list_contains($keys::VARCHAR[], name) AND {CHOSEN_LABELS}
)"""
_ONLY = "reads.of_runs([$run]) AND reads.of_keys($keys::VARCHAR[])"  # that series join
# When the values of metrics were logged, in µs.
_TIMES = f"""{_SERIES}
SELECT s.name AS key, epoch_us(min(m.first_ts)) AS first, epoch_us(max(m.last_ts)) AS last
FROM reads.series m JOIN series s ON s.producer = m.producer AND s.key = m.key WHERE m.is_metric GROUP BY s.name
"""
# Of a label with several attempts in a bucket the newest one counts.
# safeguard: newest-attempt-is-drawn
_BUCKETS = f"""{_SERIES}, parts AS (
    {{parts}}
), attempts AS (
    SELECT s.name AS key, s.label, s.rank, s.attempt, p.step - (p.step % {{width}} + {{width}}) % {{width}} AS step,
           min(p.ts) AS ts, min(p.min) AS min, max(p.max) AS max, {{mean}} AS mean,
           {{last}} AS last, max(p.step) AS last_step
    FROM parts p JOIN series s ON s.producer = p.producer AND s.key = p.key GROUP BY ALL
), restarted AS (
    SELECT label FROM series GROUP BY label HAVING count(DISTINCT attempt) > 1
), buckets AS (
    FROM attempts WHERE NOT EXISTS (FROM restarted)  -- the window would take a third of the time
    UNION ALL (
        FROM attempts WHERE EXISTS (FROM restarted)
        QUALIFY attempt = max(attempt) OVER (PARTITION BY key, label, step)
    )
)
"""
# Of a step that was logged several times the last value counts, as in `history`.
_MEANS = {True: "arg_max_null(p.sum, p.seq)", False: "sum(p.sum) / nullif(sum(p.n), 0)"}
# The last value of a bucket of several steps, NULL for NaN; buckets of a level do not have it.
_LAST = "arg_max_null(p.sum, p.step::HUGEINT * 9223372036854775808 + p.seq)"
_ROWS = f"""
SELECT f.producer, f.key, {{place}} AS step, f.seq, f.ts, f.n, f.sum, f.min, f.max
FROM reads.points f JOIN series s ON s.producer = f.producer AND s.key = f.key
WHERE f.level = {{level}} AND f.step >= {{first}} AND f.step <= {{last}} AND {_ONLY}
"""
# A row per label with lists: a row per bucket would cost most of the time in Python. One list is sorted, and not five.
# Minimum and maximum are NULL if they are the mean everywhere.
_LINES = """
SELECT key, label, rank, list_transform(points, lambda p: p.step) AS step, list_transform(points, lambda p: p.ts) AS ts,
       list_transform(points, lambda p: p.mean) AS mean,
       CASE WHEN NOT is_flat THEN list_transform(points, lambda p: p.min) END AS min,
       CASE WHEN NOT is_flat THEN list_transform(points, lambda p: p.max) END AS max, last_attempt, last, last_step
FROM (
    SELECT key, label, arg_max(rank, attempt) AS rank,
           list({'step': step, 'ts': epoch_ms(ts), 'min': min, 'mean': mean, 'max': max} ORDER BY step) AS points,
           bool_and(min IS NOT DISTINCT FROM mean AND max IS NOT DISTINCT FROM mean) AS is_flat,
           arg_max(attempt, step) AS last_attempt, arg_max_null(last, step) AS last,
           arg_max(last_step, step) AS last_step
    FROM buckets GROUP BY key, label
) ORDER BY rank NULLS LAST, length(label), label
"""
_BAND_COLUMNS = ("step", "ts", "n_present", "min", "median", "max", "min_label", "max_label")
_BAND = f"""
, steps AS (
    SELECT key, step, epoch_ms(min(ts)) AS ts, count(*) AS n_present, min(min) AS min,
           median(nullif(mean, 'nan')) AS median, max(max) AS max,
           arg_min(label, (min, label)) FILTER (min IS NOT NULL) AS min_label,
           arg_max(label, (max, label)) FILTER (max IS NOT NULL) AS max_label
    FROM buckets GROUP BY key, step
)
SELECT key, {", ".join(f"list({name} ORDER BY step) AS {name}" for name in _BAND_COLUMNS)} FROM steps GROUP BY key
"""
_PLACES = """
, places AS (SELECT key, step, avg(mean) AS x FROM buckets WHERE isfinite(mean) GROUP BY key, step)
SELECT key, step, x FROM places
"""
# The values of the label with the most of them, between two steps: whole buckets of a level have their numbers, and
# only the steps at both ends are read row by row. A level leaves NaN out.
_COUNTS = f"""{_SERIES}, counts AS (
    SELECT s.name, s.label, sum(l.n) AS n FROM reads.points l
    JOIN series s ON s.producer = l.producer AND s.key = l.key
    WHERE l.level = {LEVELS[0]} AND l.step >= {{low}} AND l.step < {{high}} AND {_ONLY} GROUP BY ALL
    UNION ALL
    SELECT s.name, s.label, count(*) FROM reads.points f JOIN series s ON s.producer = f.producer AND s.key = f.key
    WHERE f.level = 1 AND f.step BETWEEN {{first}} AND {{last}} AND (f.step < {{low}} OR f.step >= {{high}}) AND {_ONLY}
    GROUP BY ALL
    UNION ALL
    SELECT s.name, s.label, count(*) FROM reads.points f
    JOIN series s ON s.producer = f.producer AND s.key = f.key
    WHERE f.level = 0 AND f.step BETWEEN {{first}} AND {{last}} AND {_ONLY} GROUP BY ALL
)
SELECT name AS key, max(n)::BIGINT AS n FROM (SELECT name, label, sum(n) AS n FROM counts GROUP BY ALL) GROUP BY name
"""
# The last value of each attempt of a label, from a step of each key on. The pieces of steps that are read have the last
# buckets of all labels.
# safeguard: last-value-is-exact
_ENDS = f"""{_SERIES}, found AS (
    {{pieces}}
), ends AS (
    SELECT f.name AS key, f.label, f.attempt, max(f.step) AS step,
           arg_max(f.value, (f.step, f.seq)) AS value
    FROM found f JOIN (SELECT unnest($keys::VARCHAR[]) AS name, unnest($starts::BIGINT[]) AS start) k
    ON k.name = f.name AND f.step >= k.start GROUP BY ALL
)
"""
_PIECE = f"""
SELECT s.name, s.label, s.attempt, f.step, f.seq, f.value FROM reads.points f
JOIN series s ON s.producer = f.producer AND s.key = f.key
WHERE f.level = {{level}} AND f.step BETWEEN {{first}} AND {{last}} AND {_ONLY}
"""
# A band ends with the labels that have its last step.
_BAND_ENDS = """
, newest AS (FROM ends QUALIFY attempt = max(attempt) OVER (PARTITION BY key, label)),
last AS (FROM newest QUALIFY step = max(step) OVER (PARTITION BY key))
SELECT key, any_value(step) AS step, min(nullif(value, 'nan')) AS min, median(nullif(value, 'nan')) AS median,
       max(nullif(value, 'nan')) AS max FROM last GROUP BY key
"""


@dataclass(frozen=True)
class CurvesRequest:
    """What to read.

    Attributes:
        run: ID of the run.
        keys: Names of metrics.
        points: Buckets at most.
        first: First step; None for that of the key.
        last: Last step; None for that of the key.
        width: Steps in a bucket at least; a page that follows a curve asks for the width that it has.
        labels: Only these; all if empty.
        lines_max: A band if there are more labels.
        x: A metric whose mean in each bucket is returned, too; "" for none.
        is_x_defined: x is the step metric of each key, where define_metric() has named one.
        values_max: A curve whose labels each have fewer values than that is not put in buckets.
    """

    run: str
    keys: tuple[str, ...]
    points: int = 400
    first: int | None = None
    last: int | None = None
    width: int = 1
    labels: tuple[str, ...] = ()
    lines_max: int = 16
    x: str = ""
    is_x_defined: bool = False
    values_max: int = VALUES_MAX


def read_curves(client: Client, request: CurvesRequest) -> list[dict[str, Any]]:
    """Return keys of a run in the order of the request: their values, or buckets of them.

    Returns:
        For each key its `n_labels` and values, its steps, and its `step_metric`. `n_behind` and `behind`: labels whose
        newest step is less than that of the others, `n_silent` of them without any value. `n_expected`: all labels that
        should have a value; `n_peers`: all labels of their kinds. `least_running_step` and `n_values_ended` show a page
        that follows the curve which part of it has changed. `most_values`: of a label in all steps. `kind` is `lines`,
        `band`, or `none` without values. `width`: steps in a bucket; with 1, values are as they were logged.
        `step` and `ts` (milliseconds since 1970), and `x` if asked for, with its `x_name`, have an entry for each
        bucket. `lines`: for each label lists of mean, min and max, None where it has no number, and `gaps`, the places
        of buckets whose values are NaN or infinite, with what they are in `gap_texts`; min and max are None if they are
        the mean everywhere. `last`: step and exact value of its last one, a text if that is not finite. `band`:
        n_present (labels), min, median, max, min_label and max_label for each bucket; `last` has the step, minimum,
        median and maximum of the labels that logged the last step. `n_infinite` counts buckets with infinities.
        `is_one_step`: all steps are the same, so the entries are in the order of `ts`; with `width_s` they are buckets
        of so many seconds.

    Raises:
        QueryError: A query has no result.
    """
    params = {"run": request.run, "labels": list(request.labels)}
    spans: dict[str, dict[str, Any]] = {}
    for row in client.sql(_SPANS, {**params, "keys": list(request.keys)}).rows():
        of_kind = span_of(row)
        spans[row["key"]] = joined(spans[row["key"]], of_kind) if row["key"] in spans else of_kind
    curves: dict[str, dict[str, Any]] = {}
    groups: dict[tuple[int, int, int, bool, bool], list[str]] = {}
    of_time = {key: span for key, span in spans.items() if span["is_one_step"]}
    of_steps = {key: span for key, span in spans.items() if key not in of_time}
    widths = _read_widths(client, request, of_steps) | _read_time_widths(client, request, of_time)
    for key in request.keys:
        if (span := spans.get(key)) is None:
            curves[key] = {"key": key, "n_labels": 0, "kind": "none", "width": 1, "step": [], "ts": []}
            continue
        first, last = _bounds(request, span)
        width = widths[key]
        is_band = span["n_labels"] > request.lines_max
        kind = "band" if is_band else "lines"
        empty: dict[str, Any] = {"lines": []} if not is_band else {name: [] for name in _BAND_COLUMNS} | {"last": None}
        is_one_step = span["is_one_step"]
        width_of_steps = 1 if is_one_step else width
        curves[key] = span | {"kind": kind, "width": width_of_steps, "step": [], "ts": [], "n_infinite": 0} | empty
        if not is_one_step:  # whole buckets: the page that asks again for a part gets the same ones
            first -= first % width
            last = min(last - last % width + width - 1, STEP_MAX)
        groups.setdefault((width, max(first, STEP_MIN), last, is_band, is_one_step), []).append(key)
    for (width, first, last, is_band, is_one_step), keys in groups.items():
        text = _text_of(width, first, last, is_by_time=is_one_step)
        rows = client.sql(text + (_BAND if is_band else _LINES), {**params, "keys": keys}).rows()
        by_key: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_key.setdefault(row["key"], []).append(row)
        ends = _read_ends(client, params, by_key, 1 if is_one_step else width, is_band)
        for key, of_key in by_key.items():
            curves[key] |= band_of(of_key[0]) if is_band else lines_of(of_key)
            _set_ends(curves[key], ends[key], {row["label"]: row["last_attempt"] for row in of_key if not is_band})
        _set_x(client, request, text, [curves[key] for key in keys])
        if is_one_step:
            for key in by_key:
                _set_times(curves[key], width)
    return list(curves.values())


def _set_x(client: Client, request: CurvesRequest, text: str, curves: list[dict[str, Any]]) -> None:
    """Give curves the x that was asked for. text: the query of their buckets."""
    x_names = [curve["step_metric"] if request.is_x_defined else request.x for curve in curves]
    names = sorted({name for name in x_names if name})
    if not names:
        return
    places = client.sql(text + _PLACES, {"run": request.run, "labels": list(request.labels), "keys": names}).rows()
    x = {(row["key"], row["step"]): row["x"] for row in places}
    for curve, name in zip(curves, x_names, strict=True):
        if name:
            curve |= {"x_name": name, "x": [x.get((name, step)) for step in curve["step"]]}


def _bounds(request: CurvesRequest, span: dict[str, Any]) -> tuple[int, int]:
    """Return the first and the last step of a curve in an answer."""
    first = span["first_step"] if request.first is None else request.first
    return first, span["last_step"] if request.last is None else request.last


def _read_widths(client: Client, request: CurvesRequest, spans: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return the width of the buckets of each key: 1 while each label has few values, and the answer holds them."""
    params = {"run": request.run, "labels": list(request.labels)}
    n_steps, most = {}, {}
    uncounted: dict[tuple[int, int], list[str]] = {}
    for key, span in spans.items():
        first, last = _bounds(request, span)
        n_steps[key] = last - first + 1
        most[key] = span["most_values"] if span["most_values"] < request.values_max else max(n_steps[key], 0)
        is_part = request.first is not None or request.last is not None
        if most[key] >= request.values_max and is_part and span["most_nan"] < request.values_max:
            uncounted.setdefault((first, last), []).append(key)
    for (first, last), keys in uncounted.items():
        low, high = first + -first % LEVELS[0], last + 1 - (last + 1) % LEVELS[0]
        text = _COUNTS.format(first=first, last=last, low=low, high=max(low, high))
        for row in client.sql(text, {**params, "keys": keys}).rows():
            most[row["key"]] = row["n"] + spans[row["key"]]["most_nan"]
    widths = {}
    room = ANSWER_MAX * len(spans) // len(request.keys)
    for key in sorted(spans, key=most.__getitem__):
        n_lines = min(spans[key]["n_labels"], request.lines_max) or 1
        has_room = n_lines * most[key] <= room
        room -= n_lines * (most[key] if has_room else request.points)
        width = 1 if most[key] < request.values_max and has_room else bucket_width(n_steps[key], request.points)
        widths[key] = max(width, bucket_width(request.width, 1))
    return widths


def _read_time_widths(client: Client, request: CurvesRequest, spans: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return the width of the buckets of each key with one step, in µs: 1 while each label has few values.

    A band has buckets with a value of most labels, because labels share no times.
    """
    widths = {}
    params = {"run": request.run, "labels": list(request.labels), "keys": list(spans)}
    for row in client.sql(_TIMES, params).rows() if spans else ():
        n_labels, n = spans[row["key"]]["n_labels"], spans[row["key"]]["most_values"]
        is_band = n_labels > request.lines_max
        has_room = n_labels * n <= ANSWER_MAX // len(request.keys)
        has_values = not is_band and has_room and n < request.values_max
        span_us = row["last"] - row["first"] + 1
        widths[row["key"]] = 1 if has_values else bucket_width(span_us, min(request.points, n))
    return widths


def _read_ends(
    client: Client, params: dict[str, Any], by_key: dict[str, list[dict[str, Any]]], width: int, is_band: bool
) -> dict[str, list[dict[str, Any]]]:
    """Return the last values of keys: rows of a label, an attempt, a step and a value; of a band a single row."""
    found: dict[str, list[dict[str, Any]]] = {key: [] for key in by_key}
    if width == 1 or not by_key or (not is_band and width < LEVELS[0]):
        return found  # the curve itself has them
    starts = sorted({row["step"][-1] for rows in by_key.values() for row in rows})
    pieces = end_pieces(starts, width)
    tables = [_PIECE.format(level=level, first=first, last=last) for first, last in pieces for level in (1, 0)]
    text = _ENDS.format(pieces=" UNION ALL ".join(tables)) + (_BAND_ENDS if is_band else "FROM ends")
    least = [min(row["step"][-1] for row in rows) for rows in by_key.values()]
    for row in client.sql(text, {**params, "keys": list(by_key), "starts": least}).rows():
        found[row["key"]].append(row)
    return found


def end_pieces(starts: list[int], width: int) -> list[tuple[int, int]]:
    """Return few ranges of steps that have all buckets with these first steps, which are in order."""
    apart = _ENDS_APART * width
    while True:
        pieces: list[list[int]] = []
        for start in starts:
            if pieces and start - pieces[-1][1] <= apart:
                pieces[-1][1] = start
            else:
                pieces.append([start, start])
        if len(pieces) <= _ENDS_MAX:
            return [(first, min(last + width - 1, STEP_MAX)) for first, last in pieces]
        apart *= 4


def _set_ends(curve: dict[str, Any], ends: list[dict[str, Any]], attempts: dict[str, int]) -> None:
    """Give a curve its last values where it has buckets.

    Args:
        curve: It ends with its last bucket.
        ends: What was read.
        attempts: That of the last bucket of each label.
    """
    if curve["kind"] == "band":
        place = {name: curve[name][-1] for name in ("step", "min", "median", "max")}
        last = next(iter(ends), place)
        curve["last"] = {"step": last["step"], **{name: json_number(last[name]) for name in ("min", "median", "max")}}
        return
    values = {(row["label"], row["attempt"]): row for row in ends}
    for line in curve["lines"]:
        row = values.get((line["label"], attempts[line["label"]]))
        if row is not None:
            line["last"] = {"step": row["step"], "value": json_number(row["value"])}


def _set_times(curve: dict[str, Any], width_us: int) -> None:
    """Give a curve over time its step in place of the times, in µs, that it has as steps."""
    if width_us == 1:
        curve["ts"] = [us / 1000 for us in curve["step"]]
    else:
        curve["width_s"] = width_us / 1e6
    step = curve["first_step"]
    curve["step"] = [step] * len(curve["step"])
    for end in [curve] if curve["kind"] == "band" else curve["lines"]:
        end["last"]["step"] = step


def span_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a key in the labels of one kind.

    If more than half of them have logged it, the others are missing. A key of a few, such as the evaluation of rank 0,
    has no missing label.
    """
    peers, labels = row.pop("peers"), row.pop("labels")
    silent: list[str] = []
    if peers and 2 * row["n_labels"] > row["n_peers"]:
        has_logged = set(labels)
        silent = [label for label in peers if label not in has_logged]
    n_silent = len(silent)
    return row | {
        "is_one_step": _is_one_step(row),
        "n_silent": n_silent,
        "n_expected": row["n_labels"] + n_silent,
        "n_behind": row["n_behind"] + n_silent,
        "behind": [*silent, *row["behind"]][:BEHIND_SHOWN],
    }


def joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a key in labels of several kinds."""
    both: dict[str, Any] = {name: one[name] + other[name] for name in one if name.startswith("n_")}
    choices = {"first_step": min, "least_step": min, "least_running_step": min}
    choices |= {"last_step": max, "most_values": max, "most_nan": max}
    for name, choose in choices.items():
        both[name] = choose((span[name] for span in (one, other) if span[name] is not None), default=None)
    behind = [*one["behind"], *other["behind"]][:BEHIND_SHOWN]
    return one | both | {"is_one_step": _is_one_step(both), "behind": behind}


def _is_one_step(span: dict[str, Any]) -> bool:
    """Return True if all values of a key have the same step, and there are more than one of a label."""
    is_one_step: bool = span["first_step"] == span["last_step"] and span["most_values"] > 1
    return is_one_step


def shorten(value: float) -> float:
    """Return a number in four digits, which are enough for a colour, a bar or a text."""
    return float(f"{value:.4g}")


def bucket_width(n_steps: int, points: int) -> int:
    """Return the least power of two that makes at most `points` buckets of so many steps."""
    width = 1
    while width < WIDTH_MAX and n_steps > width * points:
        width *= 2
    return width


def _text_of(width: int, first: int, last: int, *, is_by_time: bool) -> str:
    level = 1 if is_by_time else max((level for level in LEVELS if level <= width), default=1)
    bounds = {"first": first, "last": last, "place": "epoch_us(f.ts)" if is_by_time else "f.step"}
    parts = [_ROWS.format(level=part, **bounds) for part in (0, level)]
    last_value = _MEANS[True] if width == 1 else _LAST if level == 1 else "NULL::DOUBLE"
    return _BUCKETS.format(parts=" UNION ALL ".join(parts), width=width, mean=_MEANS[width == 1], last=last_value)


def lines_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return lines over common steps.

    Args:
        rows: For each line `label`, `rank`, and lists of step, ts, min, mean and max with an entry for each bucket;
            min and max may be None if they are the mean. `last`, None if it is NaN, and `last_step`.
    """
    times: dict[int, float] = {}
    for row in rows:
        for step, ts in zip(row["step"], row["ts"], strict=True):
            times[step] = min(times.get(step, ts), ts)
    steps = sorted(times)
    place = {step: at for at, step in enumerate(steps)}
    lines = []
    n_infinite = 0
    for row in rows:
        at = [place[step] for step in row["step"]]
        gaps = [(p, mean) for p, mean in zip(at, row["mean"], strict=True) if mean is None or not math.isfinite(mean)]
        lows, highs = (row["mean"] if row[name] is None else row[name] for name in ("min", "max"))
        n_infinite += sum(map(_is_infinite, lows, highs))
        line: dict[str, Any] = {"label": row["label"], "rank": row["rank"], "gaps": [place for place, _ in gaps]}
        line["gap_texts"] = ["nan" if mean is None else str(mean) for _, mean in gaps]
        last = math.nan if row["last"] is None else row["last"]
        line["last"] = {"step": row["last_step"], "value": json_number(last)}
        line["mean"] = _spread(row["mean"], at, len(steps))
        is_flat = lows == row["mean"] == highs
        line["min"], line["max"] = (None, None) if is_flat else (_spread(of, at, len(steps)) for of in (lows, highs))
        lines.append(line)
    return {"step": steps, "ts": [times[step] for step in steps], "lines": lines, "n_infinite": n_infinite}


def _spread(values: list[Any], at: Sequence[int], n: int) -> list[Any]:
    """Return values at their places of `n`, None elsewhere."""
    if len(values) == n:
        return values
    spread: list[Any] = [None] * n
    for value, place in zip(values, at, strict=True):
        spread[place] = value
    return spread


def band_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return a band from a row with lists."""
    n_infinite = sum(1 for low, high in zip(row["min"], row["max"], strict=True) if _is_infinite(low, high))
    return {name: row[name] for name in _BAND_COLUMNS} | {"n_infinite": n_infinite}


def _is_infinite(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and (math.isinf(low) or math.isinf(high))
