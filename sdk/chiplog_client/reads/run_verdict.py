"""Read who failed first in a run and who was slow: the sentence of the page, of `chiplog show` and `chiplog top`."""

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.run_report import FIRST_FAILURE
from chiplog_client.reads.system.throttling import (
    THROTTLE_COUNTERS,
    THROTTLED_SHARE_MIN,
    bits_sql,
    names_sql,
    throttle_text,
)
from chiplog_client.reads.verdict import OUTSIDE, Failure, Outside, Spell, build_sentence, failure_of, slow_spells

# The last step that counts, by the labels that run or failed. Steps that one of them has not finished are not compared:
# the others wait there, or end because of its failure. A label that restarts has the steps of its last attempt. Where
# ranks have phases, other labels do not count. A failed label without a phase finished no step.
_LABELS = """
WITH newest AS (
    SELECT label, attempt, state, rank FROM labels WHERE run_id = $run
    QUALIFY row_number() OVER (PARTITION BY label ORDER BY attempt DESC) = 1
), done AS (
    FROM reads.finished_steps WHERE run_id = $run
)
SELECT l.label, l.attempt, l.state, coalesce(max(d.step) FILTER (d.attempt = l.attempt), max(d.step)) AS step,
       coalesce(max(d.step) FILTER (d.attempt = l.attempt), max(d.step), any_value(p.step)) AS reached
FROM newest l LEFT JOIN done d ON d.label = l.label
LEFT JOIN (FROM rank_progress WHERE run_id = $run) p ON p.label = l.label
WHERE l.state <> 'finished' AND (l.rank IS NOT NULL OR NOT EXISTS (FROM done WHERE rank IS NOT NULL))
GROUP BY l.label, l.attempt, l.state
"""
# The first step with phases that a label recorded after the first failure, by the collector's clock. Survivors wait for
# the failed label in them. At its end a label records the phases of an unfinished step under the last one it logged.
_AFTER_FAILURE = "SELECT step FROM reads.step_after_failure($run, $labels::VARCHAR[], $last)"
_RUN = "SELECT state, n_labels, n_attempts FROM runs WHERE run_id = $run"
_FAILED = ("failed", "crashed")
_STEP_MAX = (1 << 63) - 1
_Ask = Callable[..., list[dict[str, Any]]]
_WINDOWS = """
SELECT span, phase, label, role, waits_for, n_steps, typical_s, excess_s, since_step, until_step
FROM reads.straggler_windows({last}) WHERE run_id = $run AND span <> 'last'
"""
# Until a later step for a spell outside of phases: the next step has the waiting for what a label did at the end of the
# last one. Only there the whole step counts as a wait; in a phase it would contain the phase.
_SUMS = """
SELECT n.name AS phase, reads.may_wait(n.name) OR n.name = 'step' AS may_wait, l.label,
       count(*) FILTER (c.step <= {last}) AS n_steps, coalesce(sum(c.seconds) FILTER (c.step <= {last}), 0) AS seconds,
       coalesce(sum(c.typical) FILTER (c.step <= {last}), 0) AS typical_s, sum(c.seconds) AS waited_s
FROM reads.compared({first}, {until}) c JOIN reads.phase_names n ON n.id = c.key
JOIN reads.labels l ON l.run_id = c.run_id AND l.place = c.place
WHERE c.run_id = $run AND {chosen} GROUP BY ALL
"""
_PREVIOUS = """
SELECT min(o.previous) AS step FROM reads.outside({first}, {first}) o
JOIN reads.labels l ON l.run_id = o.run_id AND l.place = o.place WHERE o.run_id = $run AND l.label = $label
"""
_ALONE = """
SELECT k.name AS phase, sum(f.seconds) AS seconds
FROM reads.phase_values f JOIN reads.uncommon_phases k ON k.producer = f.producer AND k.key = f.key
WHERE f.run_id = $run AND k.run_id = $run AND f.label = $label AND f.step BETWEEN $first AND $last
GROUP BY ALL ORDER BY seconds DESC, phase
"""
# Slowdowns by heat and by power brakes. A GPU at its power limit is as it should be.
_SLOWDOWNS = 8 | 32 | 64 | 128
_THROTTLED_SHARE = 0.25  # of the samples in the steps of a spell: less explains little of it
_SPAN = """
SELECT min(ts) AS first, max(ts) AS last FROM phases
WHERE run_id = $run AND label = $label AND step BETWEEN $first AND $last
"""
_COUNTERS = {name: bit for name, bit in THROTTLE_COUNTERS.items() if bit & _SLOWDOWNS}
# One row by the bits, of reasons without a counter on the GPU, and one of each counter that has grown.
_THROTTLED = f"""
WITH chosen AS MATERIALIZED (
    SELECT ts, node, device, name, value FROM system
    WHERE run_id = $run AND label = $label AND ts BETWEEN $first AND $last
      AND name IN ('hw.gpu.throttle.reasons', {names_sql(_COUNTERS)})
), bits(name, bit) AS (
    VALUES {bits_sql(_COUNTERS)}
), times AS (
    SELECT node, device, bit, greatest(value - lag(value) OVER of_counter, 0) AS growth,
           epoch(ts) - epoch(lag(ts) OVER of_counter) AS seconds
    FROM chosen JOIN bits USING (name) WINDOW of_counter AS (PARTITION BY node, device, name ORDER BY ts)
), counters AS (
    SELECT node, device, bit, sum(growth) / nullif(sum(seconds), 0) AS share FROM times
    GROUP BY node, device, bit HAVING share IS NOT NULL
), masks AS (
    SELECT value::BIGINT & {_SLOWDOWNS} & ~coalesce(bits, 0) AS reasons
    FROM chosen LEFT JOIN (SELECT node, device, bit_or(bit) AS bits FROM counters GROUP BY ALL) USING (node, device)
    WHERE name = 'hw.gpu.throttle.reasons'
)
SELECT count(*) FILTER (reasons <> 0) / count(*) AS share, bit_or(reasons) AS reasons FROM masks HAVING count(*) > 0
UNION ALL
SELECT share, bit FROM counters WHERE share > {THROTTLED_SHARE_MIN}
"""


def read_verdict(
    client: Client, run: str, *, report: dict[str, Any] | None = None, timeout_s: float | None = None
) -> dict[str, Any]:
    """Return who failed first and who was slow, see `build_sentence`. `parts` is empty if nothing can be compared.

    Steps after the first failure, and steps that a running label has not finished, are left out.

    Args:
        client: The collector.
        run: The run.
        report: Of `read_run`, if there is one: then its first failure is not read again.
        timeout_s: Of each query; the default is that of the client.

    Raises:
        QueryError: A query has no result.
    """

    def ask(query: str, **named: Any) -> list[dict[str, Any]]:
        return client.sql(query, {"run": run, **named}, timeout_s=timeout_s).rows()

    labels = ask(_LABELS)
    failed = [row["label"] for row in labels if row["state"] in _FAILED]
    failure = _read_failure(ask, labels, report) if failed else None
    last = _last_step(labels)
    if failed and last is not None:
        [after] = ask(_AFTER_FAILURE, labels=failed, last=last)
        last = last if after["step"] is None else after["step"] - 1
    windows = ask(_WINDOWS.format(last=last)) if last is not None else []
    if not windows:
        return build_sentence(None, (), (), failure=failure)
    spells = slow_spells(windows)
    slow = next((spell for spell in spells if spell.is_slow), None)
    sums, outside = ([], None) if slow is None else _read_sums(ask, slow)
    throttled = "" if slow is None else _read_throttling(ask, slow)
    victims = (row for row in windows if row["role"] == "victim")
    return build_sentence(spells, sums, victims, outside, failure, throttled)


def _last_step(labels: list[dict[str, Any]]) -> int | None:
    """Return the last step that all labels have finished that run or failed; None if one failed before any."""
    failed = [row["step"] for row in labels if row["state"] in _FAILED]
    if None in failed and any(row["step"] is not None for row in labels):
        return None
    return min((row["step"] for row in labels if row["step"] is not None), default=_STEP_MAX)


def _read_failure(ask: _Ask, labels: list[dict[str, Any]], report: dict[str, Any] | None) -> Failure | None:
    """Return the first failure of a run that has failed, or whose primary ended well although others failed."""
    if report is None:
        runs, failures = ask(_RUN), ask(FIRST_FAILURE)
        report = {**runs[0], "first_failure": failures[0] if failures else None} if runs else {"state": None}
    if report["state"] not in (*_FAILED, "finished"):
        return None
    found = report["first_failure"]
    reached = {(row["label"], row["attempt"]): row["reached"] for row in labels if row["state"] in _FAILED}
    if found is None or (report["state"] == "finished" and (found["label"], found["attempt"]) not in reached):
        return None
    return failure_of(found, report, reached.get((found["label"], found["attempt"])))


def _read_sums(ask: _Ask, spell: Spell) -> tuple[list[dict[str, Any]], Outside | None]:
    """Return the sums of the steps of a spell, and of a spell outside of phases more about it."""
    first, last = spell.first_step, spell.last_step
    if spell.phase != OUTSIDE:
        return ask(_SUMS.format(first=first, last=last, until=last, chosen="c.key >= 0 AND n.name <> 'step'")), None
    [found] = ask(_PREVIOUS.format(first=first), label=spell.label)
    previous = found["step"] if found["step"] is not None else first
    until = last + first - previous
    sums = ask(_SUMS.format(first=first, last=last, until=until, chosen="true"))
    alone = ask(_ALONE, label=spell.label, first=first, last=last)
    return sums, Outside(previous, tuple((row["phase"], row["seconds"]) for row in alone))


def _read_throttling(ask: _Ask, spell: Spell) -> str:
    """Return for how much of a spell the label's GPU was slowed down, and why; empty if that is little."""
    [span] = ask(_SPAN, label=spell.label, first=spell.first_step, last=spell.last_step)
    if span["first"] is None:
        return ""
    found = [row for row in ask(_THROTTLED, label=spell.label, **span) if row["share"] >= _THROTTLED_SHARE]
    if not found:
        return ""
    share = max(row["share"] for row in found)  # reasons may hold at once
    reasons = reduce(or_, (row["reasons"] for row in found))
    return f"for {share:.0%} of that time: {throttle_text(reasons)}"
