"""What a run had before this process: the one module of the integrations that imports the query client, when called."""

import json
import threading
from pathlib import Path
from typing import Any

_RUN = "SELECT name, notes, tags FROM runs WHERE run_id = $run AND created_at < make_timestamp($before)"
_CONFIG = "SELECT key, value FROM config WHERE run_id = $run"
_SUMMARY = "SELECT key, value FROM run_summary WHERE run_id = $run"


def former_state(root: Path, run_id: str, before_us: int, wait_s: float) -> dict[str, Any] | None:
    """Return name, notes, tags, config and summary of a stored run.

    Args:
        root: The CHIPLOG_DIR of the run.
        run_id: Its ID.
        before_us: The run must have begun before this time, in microseconds since the epoch.
        wait_s: Longest time to wait for the answer.

    Returns:
        The state; None if no run of this ID is stored, or if the answer did not come in time.

    """
    found: dict[str, Any] = {}

    def read() -> None:
        try:
            found.update(_read(root, run_id, before_us))
        except Exception:
            pass  # without an answer there is no former state

    reader = threading.Thread(target=read, name="chiplog-former-state", daemon=True)
    reader.start()
    reader.join(wait_s)
    return dict(found) or None


def _read(root: Path, run_id: str, before_us: int) -> dict[str, Any]:
    from chiplog.query.client import connect  # a training that resumes nothing does not need it

    with connect(dir=root) as client:
        named = {"run": run_id}
        rows = client.sql(_RUN, {**named, "before": before_us}).rows()
        if not rows:
            return {}
        config, summary = client.sql(_CONFIG, named).rows(), client.sql(_SUMMARY, named).rows()
    return {
        **rows[0],
        "config": {row["key"]: json.loads(row["value"]) for row in config},
        "summary": {row["key"]: row["value"] for row in summary},
    }
