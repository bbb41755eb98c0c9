"""What is stored, such as a run before it was resumed: the module of the integrations that imports the query client."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import chiplog
from chiplog.safety.background_threads import is_exiting, start_thread

_RUN = "SELECT name, notes, tags FROM runs WHERE run_id = $run AND created_at < make_timestamp($before)"
_CONFIG = "SELECT key, value FROM config WHERE run_id = $run"
_FILE = "SELECT sha256 FROM files WHERE run_id = $run AND path = $path ORDER BY ts DESC LIMIT 1"
_SETTLE_S = 5.0  # a file that was just saved is in the database within a second, as a rule
_PAUSE_S = 0.2  # between two attempts
_SUMMARY = "SELECT key, value FROM run_summary WHERE run_id = $run"


def former_state(
    root: Path, run_id: str, before_us: int, wait_s: float, *, is_expected: bool = False
) -> dict[str, Any] | None:
    """Return name, notes, tags, config and summary of a stored run.

    Args:
        root: The CHIPLOG_DIR of the run.
        run_id: Its ID.
        before_us: The run must have begun before this time, in microseconds since the epoch.
        wait_s: Longest time to wait for the answer.
        is_expected: This node has recorded the run, so that it will be stored: ask until it is.

    Returns:
        The state; None if no run of this ID is stored.

    Raises:
        TimeoutError: The answer did not come in time.

    """
    found: dict[str, Any] = {}
    is_done, is_late = threading.Event(), threading.Event()

    def read() -> None:
        try:
            found.update(_read(root, run_id, before_us))
            while is_expected and not found and not is_late.wait(_PAUSE_S) and not is_exiting.is_set():
                found.update(_read(root, run_id, before_us))
        except Exception:
            pass  # without an answer there is no former state
        is_done.set()

    if start_thread(read, name="chiplog-former-state") and not is_done.wait(wait_s):
        is_late.set()
        raise TimeoutError
    return dict(found) or None


def _read(root: Path, run_id: str, before_us: int) -> dict[str, Any]:
    with _connect(root) as client:
        named = {"run": run_id}
        rows = client.sql(_RUN, {**named, "before": before_us}).rows()
        if not rows:
            return {}
        config, summary = client.sql(_CONFIG, named).rows(), client.sql(_SUMMARY, named).rows()
    return {
        **rows[0],
        "config": {row["key"]: json.loads(row["value"]) for row in config},
        "summary": {row["key"]: json.loads(row["value"]) for row in summary},
    }


def rows(query: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a SELECT. Raises QueryError, NoDataError."""
    with _connect() as client:
        return client.sql(query, params).rows()


def runs_of(run_ids: list[str]) -> list[dict[str, Any]]:
    """Return config and summary of some runs, with the columns of `runs`. Raises QueryError, NoDataError."""
    from chiplog_client.reads.runs.run_tables import runs_by_id

    with _connect() as client:
        return runs_by_id(client, run_ids).rows()


def write_content(path: str, sha256: str, target: Path) -> None:
    """Write the content of a saved file, verified by its digest. Raises QueryError, NoDataError, OSError."""
    from chiplog.artifacts.reads import copy_content

    with _connect() as client:
        copy_content(client, path, sha256, target, lambda n_bytes: None)


def download_saved(root: Path | None, run_id: str, path: str, target: Path) -> bool:
    """Write a file that was saved to a run; return False if the run has none of this name.

    It waits a while for a file that was just saved. Raises QueryError, OSError.
    """
    from chiplog.artifacts.reads import copy_content

    until = time.monotonic() + _SETTLE_S
    try:
        with _connect(root) as client:
            while True:
                found = client.sql(_FILE, {"run": run_id, "path": path}).rows()
                is_last = time.monotonic() >= until
                try:
                    if found:
                        copy_content(client, path, found[0]["sha256"], target, lambda n_bytes: None)
                        return True
                except chiplog.QueryError:  # its bytes come after the event that names it
                    if is_last:
                        raise
                if is_last:
                    return False
                is_exiting.wait(_PAUSE_S)
    except chiplog.NoDataError:
        return False


def _connect(root: Path | None = None) -> "chiplog.Client":
    return chiplog.connect(dir=root)
