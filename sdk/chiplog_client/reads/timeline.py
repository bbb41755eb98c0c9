"""The phases of each label over wall time, for a range of steps, reduced to what a screen can show.

The database has how long a phase took, and when its row was recorded: at the end of the step, or of a part of a long
step. Starts are derived. A step begins its own length before its end, or without `run.step()` as long before as its
phases took. Phases follow each other from there; those of a later part end after the part before. The time since the
step before is in no phase, as far as the phases fit into the step. `gc` runs inside other phases and has no place.
Where there are more steps than bars, a bar adds up several steps.
"""

from dataclasses import dataclass
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.curves import bucket_width, shorten
from chiplog_client.reads.run_phases import read_labels, read_phases

ROWS_MAX = 64
COLUMNS_MAX = 4_000  # pixels
BAR_PX = 8  # the least room for the phases of a step
STEPS_SHOWN = 20  # without a range
SLOW_SHARE = 0.05  # of the median's work, as in straggler_windows
UNKNOWN = -1  # the phase of a piece that is in no phase
_PARTS_MAX = 32  # of a step; those of a longer one are added up
# If a label did a step twice, the newest attempt counts. `work` is the time that is not waiting.
_FACTS = """
WITH facts AS MATERIALIZED (
    SELECT place, attempt, step, key, seconds, epoch_us(ts) AS at_us FROM reads.phase_values
    WHERE run_id = $run AND step BETWEEN {first} AND {last} {chosen}
    QUALIFY attempt = max(attempt) OVER (PARTITION BY place, step)
)
"""
_WORK = f"""{_FACTS}, worked AS (
    SELECT place, step, coalesce(sum(seconds) FILTER (list_contains($work::INTEGER[], key)), 0) AS work
    FROM facts GROUP BY place, step
), compared AS (
    SELECT *, median(work) OVER (PARTITION BY step) AS typical, work - typical AS more FROM worked
), outside AS (
    SELECT place, step, seconds - typical AS more FROM reads.outside({{first}}, {{last}})
    WHERE run_id = $run AND seconds - typical > {SLOW_SHARE} * usual
), scored AS (  -- who is outside for as long as another label works longer may wait for it
    SELECT c.*, coalesce(greatest(o.more - greatest(max(c.more) OVER (PARTITION BY c.step), 0), 0), 0) AS outside,
           CASE WHEN outside > 0 THEN greatest(c.more, 0) + outside ELSE c.more END AS excess
    FROM compared c LEFT JOIN outside o ON o.place = c.place AND o.step = c.step
)"""
_SLOWEST = f"""{_WORK}
SELECT step // {{width}} AS bucket, arg_max(place, excess) AS place, arg_max(step, excess) AS step,
       max(excess) AS excess_s, arg_max(outside, excess) > 0.5 * max(excess) AS is_outside
FROM scored WHERE outside > 0 OR excess > {SLOW_SHARE} * typical GROUP BY bucket ORDER BY bucket
"""
_BY_WORK = f"{_WORK} SELECT place FROM scored GROUP BY place ORDER BY sum(excess) DESC, place"
_CHOSEN = "AND list_contains($places::INTEGER[], place)"
_PARTS = f"""{_FACTS}, steps AS (
    SELECT place, attempt, step, max(at_us) AS ended_us, count(DISTINCT at_us) AS n_parts,
           max(at_us) FILTER (key = $whole) AS whole_us, sum(seconds) FILTER (key = $whole) AS whole_s,
           coalesce(sum(seconds) FILTER (list_contains($shown::INTEGER[], key)), 0) AS shown_s
    FROM facts GROUP BY place, attempt, step
), bars AS (
    SELECT place, attempt, step // {{width}} AS bucket, min(step) AS step, max(ended_us) AS ended_us,
           min(coalesce(whole_us - (whole_s * 1e6)::BIGINT, ended_us - (shown_s * 1e6)::BIGINT)) AS begun_us
    FROM steps GROUP BY ALL
), parts AS (
    SELECT f.place, f.attempt, f.step // {{width}} AS bucket, f.key, sum(f.seconds) AS seconds,
           CASE WHEN {{width}} = 1 AND s.n_parts <= {_PARTS_MAX} THEN f.at_us END AS at_us
    FROM facts f JOIN steps s USING (place, attempt, step)
    WHERE list_contains($shown::INTEGER[], f.key) GROUP BY ALL
)
SELECT list_position($places::INTEGER[], b.place) - 1 AS row, b.attempt, b.bucket, b.step, b.begun_us, b.ended_us,
       list([coalesce(p.at_us, b.ended_us), list_position($shown::INTEGER[], p.key) - 1, p.seconds * 1e6]::DOUBLE[]
            ORDER BY p.at_us, list_position($shown::INTEGER[], p.key)) FILTER (p.key IS NOT NULL) AS parts
FROM bars b LEFT JOIN parts p ON p.place = b.place AND p.attempt = b.attempt AND p.bucket = b.bucket
GROUP BY ALL ORDER BY row, b.ended_us, b.step
"""


@dataclass(frozen=True)
class TimelineRequest:
    """What to read.

    Attributes:
        first: The first step; None for the last 20 steps until `last`.
        last: The last step; None for that of the run.
        columns: Pixels of a row.
        rows: Labels at most.
        skip: Labels before the first row.
        order: `rank`, or `slow` for those first that worked longest beside the median; `auto` for `slow` where not
            all labels have a row, else `rank`.
        mark: A label that is among the rows.
        labels: Only these; all if empty. `slowest` compares all labels.
    """

    run: str
    first: int | None = None
    last: int | None = None
    columns: int = 1_000
    rows: int = ROWS_MAX
    skip: int = 0
    order: str = "auto"
    mark: str = ""
    labels: tuple[str, ...] = ()


def read_timeline(client: Client, request: TimelineRequest) -> dict[str, Any]:
    """Return the phases of labels over wall time.

    Returns:
        `phases`, in the order in which the database first saw them, `data` first; `labels` of the rows, their `order`;
        `n_labels`;
        `first`, `last`: steps; `width`: steps in a bar; `begun_us`, when the first bar begins; `span_s`; `bars`, each a
        list of its row, its first step, its start and its length in seconds; `pieces`: for each bar, phase and seconds
        in turn, with the phase -1 for time in none; `slowest`: row or None, step, label and seconds beyond the median's
        work, for each bar of steps in which a label worked 5 % longer than the median. `is_outside` if most of this
        time is outside of the phases that labels share.

    Raises:
        QueryError: A query has no result.
    """
    phases = read_phases(client, request.run)
    if not phases:
        return {"phases": [], "labels": [], "n_labels": 0, "bars": []}
    last = max(row["last_step"] for row in phases) if request.last is None else request.last
    first = max(min(row["first_step"] for row in phases), last - STEPS_SHOWN + 1)
    first = min(first if request.first is None else request.first, last)
    shown = [row for row in phases if row["name"] not in ("step", "gc")] or phases[:1]
    work = [row["id"] for row in shown if not row["may_wait"]] or [row["id"] for row in phases if row["name"] == "step"]
    whole = next((row["id"] for row in phases if row["name"] == "step"), -1)
    width = bucket_width(last - first + 1, max(1, request.columns // BAR_PX))
    found = read_labels(client, request.run)
    names = {place: label for place, label in found.items() if not request.labels or label in request.labels}
    bounds = {"first": first, "last": last, "width": width}
    of_work = {"run": request.run, "work": work}
    order = request.order
    if order == "auto":
        order = "slow" if len(names) > request.rows else "rank"
    places = list(names)
    if order == "slow":
        slow = [row["place"] for row in client.sql(_BY_WORK.format(chosen="", **bounds), of_work).rows()]
        # A label that is not chosen, or that came after the names were read, has no row.
        places = [place for place in slow if place in names] + [place for place in places if place not in set(slow)]
    places = _shown(request, names, places)
    rows = client.sql(
        _PARTS.format(chosen=_CHOSEN, **bounds),
        {"run": request.run, "places": places, "shown": [row["id"] for row in shown], "whole": whole},
    ).rows()
    slowest = [
        {
            "row": places.index(row["place"]) if row["place"] in places else None,
            "label": found[row["place"]],
            "step": row["step"],
            "excess_s": shorten(row["excess_s"]),
            "is_outside": row["is_outside"],
        }
        for row in client.sql(_SLOWEST.format(chosen="", **bounds), of_work).rows()
        if row["place"] in found
    ]
    outside = {(row["row"], row["step"]): row["excess_s"] * 1e6 for row in slowest if row["is_outside"]}
    return {
        "phases": [row["name"] for row in shown],
        "labels": [names[place] for place in places],
        "order": order,
        "n_labels": len(names),
        "first": first,
        "last": last,
        "width": width,
        **lay_out(rows, outside),
        "slowest": slowest,
    }


def _shown(request: TimelineRequest, names: dict[int, str], places: list[int]) -> list[int]:
    """Return the places of the rows, the chosen label among them."""
    shown = places[request.skip : request.skip + request.rows]
    chosen = [place for place, label in names.items() if label == request.mark and place not in shown]
    return (chosen + shown)[: request.rows]


def lay_out(rows: list[dict[str, Any]], outside: dict[tuple[int | None, int], float]) -> dict[str, Any]:
    """Place the phases of each bar after each other.

    Args:
        rows: Bars in the order of their rows and ends: `row`, `attempt`, `step`, `begun_us`, `ended_us`, and `parts`
            in order of their times, each `[recorded at µs, phase, µs]`, or None.
        outside: By row and step, µs in no phase that come first: others wait for them in the same step.
    """
    begun = min((row["begun_us"] for row in rows), default=0)
    ended = max((row["ended_us"] for row in rows), default=0)
    bars, pieces = [], []
    before: dict[int, tuple[int, int]] = {}
    for row in rows:
        # The clock of a step and the stamps of its rows differ by microseconds: bars of a row never overlap.
        attempt, since = before.get(row["row"], (row["attempt"], row["begun_us"]))
        start = work = min(max(row["begun_us"], since), row["ended_us"])
        before[row["row"]] = row["attempt"], row["ended_us"]
        parts = row["parts"] or []
        if attempt == row["attempt"]:
            # Phases that do not fit into the step ran after the one before.
            too_long = max(0.0, sum(part[2] for part in parts) - (row["ended_us"] - start))
            start, work = min(since, start), max(min(since, start), start - too_long)
        free = max(0.0, row["ended_us"] - start - sum(part[2] for part in parts))
        work = max(work, start + min(free, outside.get((row["row"], row["step"]), 0.0)))
        bars.append(
            [row["row"], row["step"], round((start - begun) / 1e6, 6), round((row["ended_us"] - start) / 1e6, 6)]
        )
        idle = [UNKNOWN, shorten((work - start) / 1e6)] if work - start >= 1 else []
        pieces.append(idle + _pieces(work, row["ended_us"], parts))
    return {"begun_us": begun, "span_s": (ended - begun) / 1e6, "bars": bars, "pieces": pieces}


def _pieces(begun_us: float, ended_us: float, parts: list[list[float]]) -> list[float]:
    """Return phase and seconds in turn, from the start of a bar to its end, or beyond if phases overlap."""
    found: list[float] = []

    def add(phase: int, length_us: float) -> None:
        if length_us >= 1:
            found.extend((phase, shorten(length_us / 1e6)))

    at, since = begun_us, begun_us
    for recorded in sorted({part[0] for part in parts}):
        group = [part for part in parts if part[0] == recorded]
        length = sum(part[2] for part in group)
        start = max(at, min(since - group[0][2], recorded - length))
        add(UNKNOWN, start - at)
        for _, phase, length_us in group:
            add(int(phase), length_us)
        at, since = start + length, recorded
    add(UNKNOWN, ended_us - at)
    return found
