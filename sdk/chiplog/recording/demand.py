"""Whether the collector took `resume="must"` or `"never"` as met: asked in the background, reported once."""

import threading
import time
from collections.abc import Callable

from chiplog.recording.attempt import ask_collector
from chiplog_schemas.places import Places

_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # a collector that starts answers within the first few
_QUERY = "SELECT run_id FROM labels WHERE label = $label AND started_at = make_timestamp($started_us)"


def watch_demand(
    places: Places, run_id: str, label: str, started_us: int, demand: str, warn: Callable[[str], object]
) -> None:
    """Warn if this process turns out to be in another run than it named. Returns at once.

    Where no collector can be asked from here, nothing is reported: `events` has the row of kind `resume_refused`.
    """

    def ask() -> None:
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            rows = ask_collector(places, _QUERY, {"label": label, "started_us": started_us})
            if rows:
                used = rows[0]["run_id"]
                if used != run_id:
                    why = "does not exist" if demand == "must" else "exists already"
                    warn(f"resume={demand!r}, but run {run_id} {why}: the collector keeps this run as {used}")
                return

    threading.Thread(target=ask, name="chiplog-demand", daemon=True).start()
