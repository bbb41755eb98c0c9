"""Which incarnation of its label this process is: the collector decides, and is asked in the background."""

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from chiplog_schemas.locks import holder_of
from chiplog_schemas.places import Places

_ASK_AGAIN_S = 0.5  # a loop that reads `run.attempt` in every step must not ask in every step
_TIMEOUT_S = 5.0  # of one query: the index of a busy collector answers within this
_QUERY = "SELECT attempt FROM labels WHERE label = $label AND started_at = make_timestamp($started_us)"


class AttemptLookup:
    """Asks a collector that runs on this host, or that CHIPLOG_COLLECTOR names, when `read` is first called.

    Where no collector can be asked from here, the number stays unknown. Nothing waits, and no daemon is started.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._attempt: int | None = None
        self._next_ask_s = 0.0

    def read(self, label: str, started_us: int) -> int | None:
        """Return the attempt, None while it is unknown."""
        now = time.monotonic()
        if self._attempt is None and now >= self._next_ask_s:
            self._next_ask_s = now + _TIMEOUT_S + _ASK_AGAIN_S
            threading.Thread(target=self._ask, args=(label, started_us), name="chiplog-attempt", daemon=True).start()
        return self._attempt

    def _ask(self, label: str, started_us: int) -> None:
        rows = ask_collector(self._places, _QUERY, {"label": label, "started_us": started_us})
        self._attempt = rows[0]["attempt"] if rows else None
        self._next_ask_s = time.monotonic() + _ASK_AGAIN_S


def ask_collector(places: Places, query: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a query to the collector that runs on this host, or that CHIPLOG_COLLECTOR names.

    No rows where it cannot be asked: unreachable, no permission, no reader's key. Starts no daemon.
    """
    url = os.environ.get("CHIPLOG_COLLECTOR") or None
    try:
        if url is None and not holder_of(places.collector / "lock"):
            return []
        from chiplog.client import connect  # importing chiplog must not cost what a client needs

        with connect(url, dir=None if url else places.root) as client:
            return client.sql(query, dict(parameters), timeout_s=_TIMEOUT_S).rows()
    except Exception:
        return []  # unknown is the documented answer
