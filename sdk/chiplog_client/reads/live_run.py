"""One frame of a run for `chiplog top`, by queries that read only recent facts."""

import itertools
import statistics
import threading
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.rank_states import RankRow, judge
from chiplog_client.reads.run_verdict import read_verdict
from chiplog_client.reads.runs.label_names import label_names

RECENT_STEPS = 20  # over which a step time is the mean: shows a change within seconds, and evens out single steps
FAR_BEHIND_MAX = 4  # labels in one frame that are asked for by themselves: two queries each; the next frame has others
ALL_STEPS_INTERVAL_S = 30.0  # of goodput and verdict: they change slowly, and read all steps
STEP_MAX = (1 << 63) - 1
_NOT_READ = -1  # a step
OPENED_MAX = 4  # newest reports of open phases per label: phases enclose one another
SAMPLES_S = 15  # age of the oldest shown sample of a device; agents sample each second
SAMPLED_S = 3600  # a node without a sample for longer is not sampled
LATE_S = 5.0  # without events and samples; before a label without steps stalls
LATE_PERIODS = 3.0  # samples that are missing: fewer may be on their way
GPU_EVENTS_S = 900.0  # an event of a GPU is shown for this long
QUERY_TIMEOUT_S = 10.0  # a frame that takes longer is cancelled, and the last one stays

# Ages use the clock of the answering collector. Progress is of the newest attempt, if that has logged a step.
_RANKS = """
SELECT r.project, r.name, r.state AS run_state, r.created_at, r.ended_at AS run_ended_at, r.n_attempts,
       now()::TIMESTAMP AS now, l.label, l.hostname, l.attempt, l.rank, l.node, l.pid, l.gpus, l.state, l.reason,
       l.started_at, l.last_seen_at, l.ended_at, p.step, p.reached_at, p.steps_behind
FROM (FROM runs WHERE run_id = $run) r JOIN (
    FROM labels WHERE run_id = $run QUALIFY row_number() OVER (PARTITION BY label ORDER BY attempt DESC) = 1
) l ON l.run_id = r.run_id
LEFT JOIN (FROM rank_progress WHERE run_id = $run) p ON p.label = l.label AND p.attempt = l.attempt
ORDER BY l.rank NULLS LAST, length(l.label), l.label
"""
# Bounds of step and time are parameters, so that DuckDB skips whatever lies before them. A step time is the time
# between the first facts of the oldest and the newest of the last steps, divided by the number of steps between them.
# A label that is far behind the foremost one is asked for by itself, with the bounds of its own last steps.
# These are separate queries: with all of them in one UNION ALL, DuckDB 2.0 ends with an internal error ("dict-surviving
# cache: global dictionary column changed identity").
_PACES = """
WITH steps AS (
    SELECT label, attempt, step, min(ts) AS ts
    FROM (
        SELECT label, attempt, step, ts FROM metrics WHERE run_id = $run AND step BETWEEN $from_step AND $to_step
        UNION ALL
        SELECT label, attempt, step, ts FROM phases WHERE run_id = $run AND step BETWEEN $from_step AND $to_step
    ) WHERE $label::VARCHAR IS NULL OR label = $label GROUP BY label, attempt, step
)
SELECT label, attempt,
       epoch_us(max(ts) - min(ts)) / 1e6 / nullif((max(step) - min(step))::DOUBLE, 0) AS pace_s
FROM steps GROUP BY label, attempt
"""
_PHASES = """
SELECT label, attempt, arg_max(phase, ts) AS phase FROM phases
WHERE run_id = $run AND step BETWEEN $from_step AND $to_step AND phase NOT IN ('step', 'gc')
AND ($label::VARCHAR IS NULL OR label = $label) GROUP BY label, attempt
"""
# Of all steps, from the rollups: a label with steps of its own may be far behind the foremost one.
_LAST = """
SELECT label, attempt, max(last_ts) AS last_ts FROM reads.series WHERE run_id = $run GROUP BY label, attempt
"""
_OPENED = f"""
SELECT label, attempt, ts, body->>'phase' AS phase, (body->>'since_us')::BIGINT / 1e6 AS since_s
FROM events WHERE run_id = $run AND kind = 'phase_open'
QUALIFY row_number() OVER (PARTITION BY label, attempt ORDER BY ts DESC) <= {OPENED_MAX}
"""
_SAMPLES = """
SELECT node, device, name, arg_max(value, ts) AS value FROM system_samples
WHERE ts > $since AND name IN ('hw.gpu.utilization', 'hw.gpu.memory.usage', 'hw.gpu.memory.limit',
                               'process.memory.usage')
GROUP BY node, device, name
"""
# When the nodes were last sampled, and how often they are.
_SAMPLED = """
SELECT node, max(ts) AS ts, epoch_us(max(ts) - min(ts)) / 1e6 / nullif(count(*) - 1, 0) AS period_s
FROM system_samples WHERE ts > $since AND device = '' AND name = 'system.memory.usage'
AND list_contains($nodes::VARCHAR[], node) GROUP BY node
"""
# The newest trouble of a GPU of the run. One that is back, or answers again, is none.
_GPU_EVENT = """
SELECT label, kind, ts, message, body->>'advice' AS advice FROM reads.gpu_events e
WHERE run_id = $run AND ts > $since AND level <> 'info' AND NOT (
    kind IN ('gpu.lost', 'device_stale') AND EXISTS (
        FROM reads.gpu_events b
        WHERE b.run_id = $run AND b.node = e.node AND b.device = e.device AND b.ts >= e.ts
          AND b.kind IN ('gpu.back', 'gpu.replaced')
    )
)
ORDER BY ts DESC, label LIMIT 1
"""
_GOODPUT = "SELECT goodput FROM goodput WHERE run_id = $run"


@dataclass
class Frame:
    """What one screen shows."""

    run_id: str
    now: datetime
    rows: list[RankRow]
    project: str | None = None
    name: str | None = None
    state: str = "running"
    n_attempts: int = 1
    elapsed_s: float | None = None
    goodput: float | None = None  # of the view; None without steps of known length
    label_names: dict[str, str] = field(default_factory=dict)  # to show in place of labels
    verdict: dict[str, Any] | None = None  # see `read_verdict`
    gpu_event: dict[str, Any] | None = None  # the newest one of GPU_EVENTS_S: label, kind, ago_s, message, advice

    def for_people(self) -> "Frame":
        """Return this frame with names in place of labels."""
        rows = [replace(row, label=self.label_names.get(row.label, row.label)) for row in self.rows]
        event = self.gpu_event
        if event is not None:
            event = {**event, "label": self.label_names.get(event["label"], event["label"])}
        return replace(self, rows=rows, gpu_event=event)


@dataclass
class LiveRun:
    """Reads frames of a run. It remembers when each label moved, so that a wrong clock of a node is no stall.

    Thread-safe: one frame is read at a time. What a query that failed was asked for is read with the next frame.

    Args:
        run_id: The run.
        has_verdict: Whether frames have the verdict, which reads all steps.
        timeout_s: Of each query; None for that of the client.
    """

    run_id: str
    has_verdict: bool = True
    timeout_s: float | None = QUERY_TIMEOUT_S
    _goodput: float | None = None
    _verdict: dict[str, Any] | None = None
    _all_steps_of: tuple[int, str, datetime] | None = None  # foremost step, state of the run, time of the frame
    _moved: dict[tuple[str, int], tuple[int, datetime, bool]] = field(default_factory=dict)
    _paces: dict[tuple[str, int], float] = field(default_factory=dict)
    _phases: dict[tuple[str, int], str] = field(default_factory=dict)
    _read_at: dict[tuple[str, int], int] = field(default_factory=dict)  # step of labels that are far behind
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def read(self, client: Client) -> Frame | None:
        """Return a frame; None if the run is gone."""
        with self._lock:
            return self._read(client)

    def _read(self, client: Client) -> Frame | None:

        def ask(query: str, **named: Any) -> list[dict[str, Any]]:
            return client.sql(query, {"run": self.run_id, **named}, timeout_s=self.timeout_s).rows()

        ranks = ask(_RANKS)
        if not ranks:
            return None
        steps = [row["step"] for row in ranks if row["step"] is not None]
        now, from_step = ranks[0]["now"], max(steps, default=0) - RECENT_STEPS
        if steps and self._has_other_steps(max(steps), ranks[0]["run_state"], now):
            self._goodput = next((row["goodput"] for row in ask(_GOODPUT)), None)
            if self.has_verdict:
                self._verdict = read_verdict(client, self.run_id, timeout_s=self.timeout_s)
            self._all_steps_of = (max(steps), ranks[0]["run_state"], now)
        since = now - timedelta(seconds=SAMPLES_S)
        samples = client.sql(_SAMPLES, {"since": since}, timeout_s=self.timeout_s).rows()
        rows = [self._row(row, now) for row in ranks]
        recent = {"from_step": from_step, "to_step": STEP_MAX, "label": None}
        paces, phases = ask(_PACES, **recent), ask(_PHASES, **recent)
        far = self._far_behind(rows, from_step)  # safeguard: step-time-of-label-far-behind
        for (label, _), step in far.items():
            own = {"from_step": step - RECENT_STEPS, "to_step": step, "label": label}
            paces += ask(_PACES, **own)
            phases += ask(_PHASES, **own)
        self._read_at |= far
        self._add_recent(rows, paces, phases)
        last_at = {(found["label"], found["attempt"]): found["last_ts"] for found in ask(_LAST)}
        _add_open_phases(rows, ask(_OPENED), last_at, now)
        by_device = {(row["node"], row["device"], row["name"]): row["value"] for row in samples}
        for row, source in zip(rows, ranks, strict=True):
            if row.is_running:
                _add_samples(row, source, by_device)
        judge(rows, self._late_nodes(client, rows, now))
        first = ranks[0]
        has_ended = first["run_state"] != "running"  # then the verdict names what mattered
        gpu_events = [] if has_ended else ask(_GPU_EVENT, since=now - timedelta(seconds=GPU_EVENTS_S))
        created, ended = first["created_at"], first["run_ended_at"]
        return Frame(
            run_id=self.run_id,
            now=now,
            rows=rows,
            project=first["project"],
            name=first["name"],
            state=first["run_state"],
            n_attempts=first["n_attempts"],
            elapsed_s=None if created is None else max(0.0, ((ended or now) - created).total_seconds()),
            goodput=self._goodput,
            label_names=label_names(self.run_id, first["name"], ranks),
            verdict=self._verdict,
            gpu_event=_with_age(gpu_events[0], now) if gpu_events else None,
        )

    def _late_nodes(self, client: Client, rows: list[RankRow], now: datetime) -> set[str]:
        """Return the nodes from which nothing arrives: no event of a label, and no sample although it is sampled."""
        seen_s: dict[str, list[float]] = {}
        for row in rows:
            if row.is_running and row.node is not None:
                seen_s.setdefault(row.node, []).append(row.seen_s or 0.0)
        silent = [node for node, seen in seen_s.items() if min(seen) > LATE_S]
        if not silent:
            return set()
        named = {"nodes": silent, "since": now - timedelta(seconds=SAMPLED_S)}
        found = client.sql(_SAMPLED, named, timeout_s=self.timeout_s).rows()
        return {
            row["node"]
            for row in found
            if row["period_s"] is not None
            and (now - row["ts"]).total_seconds() > max(LATE_S, LATE_PERIODS * row["period_s"])
        }

    def _has_other_steps(self, step: int, state: str, now: datetime) -> bool:
        """Return True if goodput and verdict may have changed since they were read, and that was long enough ago."""
        known = self._all_steps_of
        if known is not None and known[1] == state:
            is_recent = (now - known[2]).total_seconds() < ALL_STEPS_INTERVAL_S
            if known[0] == step or is_recent:
                return False
        self._all_steps_of = (_NOT_READ, state, now)  # until they are: a query that fails is not part of each frame
        return True

    def _far_behind(self, rows: list[RankRow], from_step: int) -> dict[tuple[str, int], int]:
        """Return the steps of labels without recent ones that have not been read, by label and attempt."""
        steps = (((row.label, row.attempt), row.step) for row in rows if row.is_running)
        far = ((of, step) for of, step in steps if step is not None and step < from_step)
        return dict(itertools.islice(((of, step) for of, step in far if self._read_at.get(of) != step), FAR_BEHIND_MAX))

    def _add_recent(self, rows: list[RankRow], paces: list[dict[str, Any]], phases: list[dict[str, Any]]) -> None:
        """Add step time and newest phase."""
        pace_of = {(found["label"], found["attempt"]): found["pace_s"] for found in paces}
        newest = {(found["label"], found["attempt"]): found["phase"] for found in phases}
        for row in rows:
            of = (row.label, row.attempt)
            pace_s = pace_of.get(of)
            if pace_s is not None:
                self._paces[of] = pace_s
            if of in newest:
                self._phases[of] = newest[of]
            row.pace_s = self._paces.get(of)
            row.phase = self._phases.get(of)

    def _row(self, source: dict[str, Any], now: datetime) -> RankRow:
        def age(moment: datetime | None) -> float | None:
            return None if moment is None else max(0.0, (now - moment).total_seconds())

        row = RankRow(
            label=source["label"],
            attempt=source["attempt"] or 0,
            rank=source["rank"],
            node=source["node"],
            state=source["state"],
            reason=source["reason"],
            ended_s=age(source["ended_at"]),
            seen_s=age(source["last_seen_at"]),
            step=source["step"],
            steps_behind=source["steps_behind"] or 0,
        )
        idle_s = age(source["reached_at"] if row.step is not None else source["started_at"])
        row.idle_s = self._idle_s(row, idle_s, now)
        return row

    def _idle_s(self, row: RankRow, idle_s: float | None, now: datetime) -> float | None:
        """Return the seconds since the last new step: by the rank's clock, at most since a frame showed a new step."""
        if row.step is None:
            return idle_s
        of = (row.label, row.attempt)
        known = self._moved.get(of)
        if known is None:
            self._moved[of] = (row.step, now, False)
        elif known[0] != row.step:
            if known[2] and row.step > known[0]:
                self._paces[of] = (now - known[1]).total_seconds() / (row.step - known[0])
            self._moved[of] = (row.step, now, True)
        _, moved_at, was_seen = self._moved[of]
        if not was_seen:
            return idle_s
        seen_s = (now - moved_at).total_seconds()
        return seen_s if idle_s is None else min(idle_s, seen_s)  # safeguard: wrong-clock-is-no-stall


def _add_open_phases(
    rows: list[RankRow], opened: list[dict[str, Any]], last_at: dict[tuple[str, int], datetime], now: datetime
) -> None:
    """Add the phase that began last of those that are open: a later fact of the label shows that a phase has ended."""
    by_label: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for report in opened:
        of = (report["label"], report["attempt"])
        if of not in last_at or report["ts"] >= last_at[of]:
            by_label.setdefault(of, []).append(report)
    for row in rows:
        if row.is_running and (reports := by_label.get((row.label, row.attempt))):
            innermost = max(reports, key=lambda report: report["since_s"])
            row.open_phase = "" if innermost["phase"] == "step" else innermost["phase"]
            row.open_s = max(0.0, _epoch_s(now) - innermost["since_s"])


def _epoch_s(moment: datetime) -> float:
    return (moment - datetime(1970, 1, 1)).total_seconds()


def _with_age(event: dict[str, Any], now: datetime) -> dict[str, Any]:
    ago_s = max(0.0, (now - event["ts"]).total_seconds())
    return {name: event[name] for name in ("label", "kind", "message", "advice")} | {"ago_s": ago_s}


def _add_samples(row: RankRow, source: dict[str, Any], samples: dict[tuple[str, str, str], float]) -> None:
    """Add the samples of a label's GPUs and processes."""

    def values(name: str) -> list[float]:
        found = (samples.get((row.node or "", device, name)) for device in source["gpus"] or ())
        return [value for value in found if value is not None]

    used = values("hw.gpu.utilization")
    row.gpu = statistics.mean(used) if used else None
    row.gpu_memory = sum(values("hw.gpu.memory.usage")) or None
    row.gpu_memory_limit = sum(values("hw.gpu.memory.limit")) or None
    row.memory = samples.get((row.node or "", f"pid:{source['pid']}", "process.memory.usage"))
