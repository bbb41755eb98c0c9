"""The phases of a run, and the labels that have them, in the order of the page."""

from typing import Any

from chiplog_client.client import Client

EVERY = -1  # in place of the ID of a phase; also that of `outside`, which all labels have
_PHASES = """
SELECT name, key AS id, may_wait, first_step, last_step FROM reads.run_phases WHERE run_id = $run
ORDER BY name <> 'step', name <> 'data', id
"""
_LABELS = """
SELECT place, label FROM reads.labels_with_phase($run, $phase) ORDER BY rank NULLS LAST, length(label), label
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
