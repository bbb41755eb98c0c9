"""The name to show for a label. The only label of a run, if it was generated, is shown as the run.

Without a launcher and a name of its own a process gets the label HOST-RANDOM. It names nothing that a reader knows, so
text for people has the run's name in its place, or the run ID. Views and formats for programs keep the label.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from chiplog_client.client import Client

_LABELS = """
SELECT DISTINCT label, hostname, r.name FROM labels JOIN (SELECT run_id, name FROM runs WHERE run_id = $run) r
USING (run_id) LIMIT 2
"""
_RANDOM = re.compile(r"-[a-z0-9]{6}")  # of chiplog.identity.identity


def label_names(run_id: str, name: str | None, labels: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the names to show in place of labels; empty if all labels are shown as they are.

    Args:
        run_id: The run.
        name: Its name.
        labels: Its rows of the view `labels`, with `label` and `hostname`; two different labels are enough.
    """
    known = {(row["label"] or "", row["hostname"] or "") for row in labels}
    if len({label for label, _ in known}) != 1:
        return {}
    is_generated = any(
        host and label.startswith(host) and _RANDOM.fullmatch(label[len(host) :]) for label, host in known
    )
    return {label: name or run_id for label, _ in known} if is_generated else {}  # safeguard: named-label-kept


def read_label_names(client: Client, run: str) -> dict[str, str]:
    """Return the names to show in place of the labels of a run. Raises QueryError."""
    labels = client.sql(_LABELS, {"run": run}).rows()
    return label_names(run, labels[0]["name"], labels) if labels else {}
