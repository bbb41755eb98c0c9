"""Everything about one run that fits on a page, for `chiplog show` and the page; and an outline that is read sooner."""

from collections.abc import Iterable
from typing import Any

from chiplog_client.client import Client
from chiplog_client.reads.events import EVENTS_OF_RUN
from chiplog_client.reads.runs.label_names import label_names
from chiplog_client.results.json_texts import decoded

KEYS_MAX = 10_000  # as many as a run may have
LAST_VALUES_MAX = 64  # labels whose last value is listed with a key
EVENTS_MAX = 20
LOGS_MAX = 5  # records of logging and warnings among them
ALERTS_MAX = 100  # titles
PHASES_MAX = 1_000

# Ages use the clock of the answering collector, which also wrote last_seen_at.
_LABELS = """
SELECT l.*, l.attempt = max(l.attempt) OVER (PARTITION BY l.label) AS is_newest,
       greatest(epoch_us(now()) - epoch_us(l.last_seen_at), 0) / 1e6 AS last_event_s,
       p.step AS last_step, p.steps_behind, p.seconds_behind, c.produced, c.stored, c.lost, c.pending, c.reasons
FROM labels l
LEFT JOIN (FROM completeness WHERE run_id = $run) c ON c.label = l.label AND c.attempt = l.attempt
LEFT JOIN (FROM rank_progress WHERE run_id = $run) p ON p.label = l.label AND p.attempt = l.attempt
WHERE l.run_id = $run ORDER BY l.rank NULLS LAST, length(l.label), l.label, l.attempt
"""
# The last step is that of the newest attempt, even if an earlier one got further. The same query reads the summary:
# between two queries a run logs more. Labels together may have far more keys than are listed.
_KEYS = f"""
WITH listed AS MATERIALIZED (SELECT DISTINCT key FROM keys WHERE run_id = $run ORDER BY key LIMIT {KEYS_MAX}),
per_label AS (FROM keys WHERE run_id = $run AND key IN (FROM listed))
SELECT key, sum(n)::BIGINT AS points, count(*) AS labels, max(step) AS last_step,
       min(last_value) AS lowest, max(last_value) AS highest,
       list(label ORDER BY rank NULLS LAST, length(label), label)[1:{LAST_VALUES_MAX}] AS last_labels,
       list(last_value ORDER BY rank NULLS LAST, length(label), label)[1:{LAST_VALUES_MAX}] AS last_values,
       (SELECT any_value(s.value) FROM run_summary s WHERE s.run_id = $run AND s.key = per_label.key) AS summary,
       key IN (SELECT h.key FROM reads.hidden_metrics h WHERE h.run_id = $run) AS is_hidden
FROM per_label GROUP BY key ORDER BY key
"""
# The mean is over the steps of all labels; slowest_s is the largest mean of one label. The share is of the steps whose
# length is known: those that step() ended, without the first.
# safeguard: phase-mean-of-all-steps
_PHASES = f"""
WITH per_label AS MATERIALIZED (
    SELECT phase, label, sum(n_steps)::BIGINT AS times, sum(seconds) AS seconds, coalesce(sum(known_s), 0) AS known_s
    FROM phase_times WHERE run_id = $run GROUP BY phase, label
)
SELECT phase, sum(times)::BIGINT AS times, count(*) AS labels, sum(seconds) AS seconds,
       sum(known_s) / nullif((SELECT sum(known_s) FROM per_label WHERE phase = 'step'), 0) AS share,
       sum(seconds) / sum(times) AS mean_s,
       max(seconds / times) AS slowest_s, first(label ORDER BY seconds / times DESC, label) AS slowest_label
FROM per_label GROUP BY phase ORDER BY sum(seconds) DESC, phase LIMIT {PHASES_MAX}
"""
_ALERTS = f"""
SELECT message AS title, level, count(*) AS times, max(ts) AS last_at, arg_max(label, ts) AS label,
       arg_max(body->>'text', ts) AS text
FROM events WHERE run_id = $run AND kind = 'alert' GROUP BY message, level ORDER BY last_at DESC LIMIT {ALERTS_MAX}
"""
_SUMMARY = f"SELECT key, value FROM run_summary WHERE run_id = $run ORDER BY key LIMIT {KEYS_MAX}"
# Alerts have a separate section: they would leave no room for other events. Nor must records of logging.
_EVENTS = f"""
SELECT ts, label, attempt, node, kind, level, message, body FROM {EVENTS_OF_RUN}
WHERE kind <> 'alert' AND NOT (kind = 'log' AND level IN ('debug', 'info'))
QUALIFY row_number() OVER (PARTITION BY kind IN ('log', 'warning') ORDER BY ts DESC, seq DESC)
    <= CASE WHEN kind IN ('log', 'warning') THEN {LOGS_MAX} ELSE {EVENTS_MAX} END
ORDER BY ts DESC, seq DESC
"""
_FILES = """
SELECT path, bytes, sha256, ts, is_stored AS stored, label FROM reads.files WHERE run_id = $run ORDER BY path
"""
# With a store: the collectors that have a part of the run, if one of them is another one than that which answers.
_PLACES = """
SELECT collector, is_here, is_silent, n_labels, seen_at FROM run_places WHERE run_id = $run
QUALIFY NOT bool_and(is_here) OVER () ORDER BY is_here DESC, collector
"""
# The last row is the one that counts: the primary's, because a launcher knows less than rank 0.
_ENVIRONMENTS = """
SELECT e.body
FROM events e JOIN labels l ON l.run_id = e.run_id AND l.label = e.label AND l.attempt = e.attempt
WHERE e.run_id = $run AND e.kind = 'environment' ORDER BY l.is_primary, e.attempt, e.seq, e.label
"""
# An order of first_failure: the rounds in which a rank failed come first, the newest of them first. A label that is no
# rank counts its own attempts.
RANK_ROUNDS_FIRST = (
    "rank IS NOT NULL OR len(list_filter(others, lambda other: other.rank IS NOT NULL)) > 0 DESC, attempt DESC"
)
# Also whether Ctrl-C ended it: shells report SIGINT as 130.
FIRST_FAILURE = f"""
SELECT *, NOT is_cause AND (exit_signal IS NOT DISTINCT FROM 2 OR exit_code IS NOT DISTINCT FROM 130 OR EXISTS (
    FROM events e WHERE e.run_id = $run AND e.label = f.label AND e.ts = f.ts AND e.kind = 'traceback'
    AND e.body->>'exception' = 'KeyboardInterrupt'
)) AS is_interrupted
FROM first_failure f WHERE run_id = $run
ORDER BY {RANK_ROUNDS_FIRST} LIMIT 1
"""
_OUTLINE = f"""
SELECT *, (SELECT list(DISTINCT key ORDER BY key)[1:{KEYS_MAX}] FROM keys WHERE run_id = $run) AS keys,
(SELECT list(key) FROM reads.hidden_metrics WHERE run_id = $run) AS hidden, (
    SELECT list(DISTINCT {{'label': label, 'hostname': hostname}})[1:2] FROM labels WHERE run_id = $run
) AS known_labels
FROM runs WHERE run_id = $run
"""


def read_run(client: Client, run: str) -> dict[str, Any] | None:
    """Return everything about a run; None if there is no such run.

    Config values and bodies of events are decoded from JSON. `label_names` is for people: see `label_names()`. `places`
    is there if another collector has a part of the run.

    Raises:
        QueryError: A query has no result.
    """
    named = {"run": run}

    def ask(query: str) -> list[dict[str, Any]]:
        return client.sql(query, named).rows()

    found = ask("SELECT * FROM runs WHERE run_id = $run")
    if not found:
        return None
    labels = ask(_LABELS)
    keys = ask(_KEYS)
    for key in keys:
        key["last_values"] = dict(zip(key.pop("last_labels"), key["last_values"], strict=True))
        key["summary"] = decoded(key["summary"])
    failures = ask(FIRST_FAILURE)
    events = ask(_EVENTS)
    for event in events:
        event["body"] = decoded(event["body"])
    environments = [decoded(row["body"]) for row in ask(_ENVIRONMENTS)]
    launched = [found["launched"] for found in environments if "launched" in found]
    drift = ask(
        "SELECT label, body->'$.keys' AS keys FROM events WHERE run_id = $run AND kind = 'config_drift' ORDER BY label"
    )
    places = ask(_PLACES)
    return {
        **found[0],
        **({"places": places} if places else {}),
        "completeness": {
            name: _sum(label[name] for label in labels) for name in ("produced", "stored", "lost", "pending")
        },
        "labels": labels,
        "label_names": label_names(run, found[0]["name"], labels),
        "keys": keys,
        "summary": _values(ask(_SUMMARY)),
        "phases": ask(_PHASES),
        "alerts": ask(_ALERTS),
        "config": _values(ask("SELECT key, value FROM config WHERE run_id = $run ORDER BY key")),
        "environment": {**environments[-1], **({"launched": launched[-1]} if launched else {})}
        if environments
        else None,
        "config_drift": {row["label"]: decoded(row["keys"]) for row in drift},
        "files": ask(_FILES),
        "events": events[::-1],
        "first_failure": failures[0] if failures else None,
    }


def read_outline(client: Client, run: str) -> dict[str, Any] | None:
    """Return the row of a run in the view `runs`, its `keys` and `label_names`; None if there is no such run.

    Returns:
        `keys` has `key` and `is_hidden` of each metric. `label_names`: to show in place of labels.

    Raises:
        QueryError: The query has no result.
    """
    found = client.sql(_OUTLINE, {"run": run}).rows()
    if not found:
        return None
    [outline] = found
    names = label_names(run, outline["name"], outline.pop("known_labels") or [])
    hidden = set(outline.pop("hidden") or [])
    keys = [{"key": key, "is_hidden": key in hidden} for key in outline["keys"] or []]
    return outline | {"label_names": names, "keys": keys}


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return a sum; None if one of the counts is unknown."""
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _values(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {row["key"]: decoded(row["value"]) for row in rows}
