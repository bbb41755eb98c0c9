"""Ask the collector in the background which attempt of its label this process is, and in which run."""

import os
import time
from collections.abc import Callable
from typing import Any

from chiplog.safety.background_threads import is_exiting, start_thread
from chiplog_schemas.paths import Paths
from chiplog_schemas.process.file_lock import lock_holder_pid

_ASK_AGAIN_S = 0.5  # a loop that reads `run.attempt` in every step must not query in every step
_TIMEOUT_S = 5.0  # of one query: a busy collector's index answers within this
_DEMAND_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # a starting collector answers within the first few
_QUERY = "SELECT run_id, attempt FROM labels WHERE label = $label AND started_at = make_timestamp($started_us)"


class AttemptLookup:
    """Query the attempt when `read` is first called.

    If no collector can be reached from here, the number stays unknown. No call blocks, and no daemon is started.
    """

    def __init__(self, places: Paths) -> None:
        self._places = places
        self._attempt: int | None = None
        self._next_ask_s = 0.0

    def read(self, label: str, started_us: int) -> int | None:
        """Return the attempt, None while it is unknown."""
        now = time.monotonic()
        if self._attempt is None and now >= self._next_ask_s:
            self._next_ask_s = now + _TIMEOUT_S + _ASK_AGAIN_S
            start_thread(self._ask, label, started_us, name="chiplog-attempt")
        return self._attempt

    def _ask(self, label: str, started_us: int) -> None:
        row = _ask_collector(self._places, label, started_us)
        self._attempt = row["attempt"] if row else None  # safeguard: attempt-of-collector
        self._next_ask_s = time.monotonic() + _ASK_AGAIN_S


def watch_demand(
    places: Paths, run_id: str, label: str, started_us: int, demand: str, warn: Callable[[str], object]
) -> None:
    """Warn if `resume="must"` or `"never"` was not met, so that this process is in another run than it named.

    Returns at once. If no collector can be reached from here, nothing is reported: the row of kind `resume_refused` is
    in `events`.
    """

    def ask() -> None:
        for pause_s in _DEMAND_PAUSES_S:
            if is_exiting.wait(pause_s):
                return
            row = _ask_collector(places, label, started_us)
            if row is not None:
                used = row["run_id"]
                if used != run_id:
                    why = "does not exist" if demand == "must" else "exists already"
                    warn(f"resume={demand!r}, but run {run_id} {why}: the collector keeps this run as {used}")
                return

    start_thread(ask, name="chiplog-demand")


def _ask_collector(places: Paths, label: str, started_us: int) -> dict[str, Any] | None:
    """Return the row of a label from the collector on this host, or from the one that CHIPLOG_COLLECTOR names.

    None if the query fails: unreachable, no permission, no reader's key. Starts no daemon.
    """
    url = os.environ.get("CHIPLOG_COLLECTOR") or None
    try:
        if url is None and not lock_holder_pid(places.collector / "lock"):
            return None
        from chiplog_client.client import connect  # importing chiplog must not cost what a client needs

        with connect(url, dir=None if url else places.root, start=False) as client:
            rows = client.sql(_QUERY, {"label": label, "started_us": started_us}, timeout_s=_TIMEOUT_S).rows()
            return rows[0] if rows else None
    except Exception:
        return None  # unknown is the documented answer
