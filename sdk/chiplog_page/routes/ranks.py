"""Ranks of a run beside each other: who is slow, in a sentence and as a heat map, and their phases over time."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chiplog_client.reads.heat import COLUMNS_MAX, ROWS_MAX, HeatRequest, read_heat
from chiplog_client.reads.parameters import CHOSEN_LABELS
from chiplog_client.reads.run_verdict import read_verdict
from chiplog_client.reads.timeline import COLUMNS_MAX as PIXELS_MAX
from chiplog_client.reads.timeline import ROWS_MAX as LANES_MAX
from chiplog_client.reads.timeline import TimelineRequest, read_timeline
from chiplog_client.reads.verdict import OUTSIDE
from chiplog_page.server.json_response import JsonResponse, columns_of, read_json
from chiplog_page.server.parameters import LABELS_MAX, choice, integer, optional_integer, repeated
from chiplog_page.server.shared_answers import shared

STEP_LABELS_MAX = 64  # bars in one picture
_STEP_COLUMNS = ["label", "phase", "may_wait", "seconds", "typical_s", "ts"]
# The marked label first, then those that took longest without waiting. The newest attempt of a step counts. The time
# outside of shared phases has a row without the phases that most labels do not have: they have rows.
_STEP = f"""
WITH named AS MATERIALIZED (
    SELECT label, phase, sum(seconds) AS seconds, max(ts) AS ts, reads.may_wait(phase) AS may_wait FROM (
        FROM phases WHERE run_id = $run AND step = $step QUALIFY attempt = max(attempt) OVER (PARTITION BY label)
    ) GROUP BY label, phase
), times AS MATERIALIZED (
    FROM named UNION ALL
    SELECT l.label, '{OUTSIDE}', greatest(any_value(o.seconds) - coalesce(sum(t.seconds) FILTER (t.phase IN (
               SELECT name FROM reads.uncommon_phases WHERE run_id = $run
           )), 0), 0), max(t.ts), false
    FROM reads.outside({{step}}, {{step}}) o JOIN reads.labels l ON l.run_id = o.run_id AND l.place = o.place
    JOIN named t ON t.label = l.label WHERE o.run_id = $run AND t.phase NOT IN ('step', 'gc') GROUP BY l.label
), shown AS (
    SELECT label, coalesce(sum(seconds) FILTER (NOT may_wait AND phase NOT IN ('step', 'gc')), 0) AS work
    FROM times WHERE {CHOSEN_LABELS} GROUP BY label ORDER BY label <> $mark, work DESC, label LIMIT {STEP_LABELS_MAX}
)
SELECT t.label, t.phase, t.may_wait, t.seconds, m.typical_s, t.ts FROM times t JOIN shown s ON s.label = t.label
JOIN (SELECT phase, median(seconds) AS typical_s FROM times GROUP BY phase) m ON m.phase = t.phase
ORDER BY t.label <> $mark, s.work DESC, length(t.label), t.label, t.phase
"""
_N_LABELS = f"SELECT count(DISTINCT label) AS n FROM phases WHERE run_id = $run AND step = $step AND {CHOSEN_LABELS}"


@shared
async def get_verdict(request: Request) -> Response:
    """GET api/runs/RUN/verdict: who failed first, who was slow and who waited, as a sentence in parts with links."""
    run = request.path_params["run"]
    return await read_json(request, lambda client: read_verdict(client, run))


@shared
async def get_heat(request: Request) -> Response:
    """GET api/runs/RUN/heat: the excess of each label over the median of each step, in one phase.

    phase: `step` if it is missing. first, last: steps. rows, columns: of cells, at most 256 and 600. since: only the
    columns from this step on. label: only these rows; may be repeated. A cell has the maximum of its labels and steps,
    beside the median of all labels. The phase `outside` is the time outside of the phases that labels share.
    """
    query = request.query_params

    asked = HeatRequest(
        request.path_params["run"],
        query.get("phase") or None,
        optional_integer(query, "first"),
        optional_integer(query, "last"),
        optional_integer(query, "since"),
        integer(query, "rows", ROWS_MAX, 1, ROWS_MAX),
        integer(query, "columns", COLUMNS_MAX, 10, COLUMNS_MAX),
        tuple(repeated(query, "label", LABELS_MAX)),
    )
    return await read_json(request, lambda client: read_heat(client, asked))


async def get_step(request: Request) -> Response:
    """GET api/runs/RUN/step: the phases of one step, of the labels that worked longest, at most 64.

    step: the step. mark: a label that comes first. label: only these; may be repeated. The medians are those of all
    labels. The phase `outside` has time in no phase. `n_labels` counts the labels with phases at this step.
    """
    run, query, source = request.path_params["run"], request.query_params, request.app.state.source
    step = integer(query, "step", 0)
    labels = repeated(query, "label", LABELS_MAX)
    rows = await source.rows(_STEP.format(step=step), run=run, step=step, mark=query.get("mark", ""), labels=labels)
    [counted] = await source.rows(_N_LABELS, run=run, step=step, labels=labels)
    return JsonResponse({"step": step, "n_labels": counted["n"], **columns_of(rows, _STEP_COLUMNS)})


@shared
async def get_timeline(request: Request) -> Response:
    """GET api/runs/RUN/timeline: the phases of each label over wall time, for a range of steps.

    first, last: steps; without `first` the last 20. columns: pixels of a row, at most 4,000: where a step has less than
    8 of them, a bar adds up several steps. rows: labels, at most 64. skip: labels before the first row. order: `rank`,
    or `slow` for those first that worked longest; if it is missing, `slow` where some labels have no row. mark: a
    label that is among the rows. label: only these; may be repeated.

    Times of phases are derived from their lengths and from when they were recorded: see docs/topics/page.md. `bars` has
    row, step, start and length in seconds since `begun_us`; `pieces` has for each bar phase and seconds in turn, with
    the phase -1 for time in no phase. `slowest` names the label of each bar that worked 5 % longer than the median, or
    was outside of shared phases for so long.
    """
    query = request.query_params
    asked = TimelineRequest(
        request.path_params["run"],
        optional_integer(query, "first"),
        optional_integer(query, "last"),
        integer(query, "columns", 1_000, 100, PIXELS_MAX),
        integer(query, "rows", LANES_MAX, 1, LANES_MAX),
        integer(query, "skip", 0, 0),
        choice(query, "order", ("auto", "rank", "slow")),
        query.get("mark", ""),
        tuple(repeated(query, "label", LABELS_MAX)),
    )
    return await read_json(request, lambda client: read_timeline(client, asked))


ROUTES = [
    Route("/runs/{run}/verdict", get_verdict),
    Route("/runs/{run}/heat", get_heat),
    Route("/runs/{run}/step", get_step),
    Route("/runs/{run}/timeline", get_timeline),
]
