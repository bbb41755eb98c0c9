"""The phases of a run, and the labels that have them, in the order of the page."""

from typing import Any

from chiplog_client.client import Client

EVERY = -1  # in place of the ID of a phase; also that of `outside`, which all labels have
_PHASES = """
FROM (
    SELECT n.name, n.id, base.may_wait(n.name) AS may_wait, min(s.first_step) AS first_step,
           max(s.last_step) AS last_step
    FROM base.phase_series s JOIN base.label_places p ON p.producer = s.producer JOIN base.names n ON n.id = s.key
    WHERE p.run_id = $run GROUP BY ALL
) ORDER BY name <> 'step', name <> 'data', id
"""
_LABELS = """
SELECT l.place, l.label FROM base.labels_by_place l
WHERE l.run_id = $run AND l.place IN (
    SELECT p.place FROM base.phase_series s JOIN base.label_places p ON p.producer = s.producer
    WHERE p.run_id = $run AND $phase IN (s.key, -1)
) ORDER BY l.rank NULLS LAST, length(l.label), l.label
"""


def read_phases(client: Client, run: str) -> list[dict[str, Any]]:
    """Return the phases of a run: `step`, `data`, then in the order in which the database first saw them.

    Returns:
        `name`, `id`, `may_wait`, `first_step` and `last_step` of each.

    Raises:
        QueryError: The query has no result.
    """
    return client.sql(_PHASES, {"run": run}).rows()


def read_labels(client: Client, run: str, phase: int = EVERY) -> dict[int, str]:
    """Return the labels that have a phase, by their place, in the order of ranks. phase: its ID.

    Raises:
        QueryError: The query has no result.
    """
    return {row["place"]: row["label"] for row in client.sql(_LABELS, {"run": run, "phase": phase}).rows()}
