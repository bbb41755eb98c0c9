"""What waits to be delivered when a client connects: start daemons for it, and wait until the database has it."""

import contextlib
import os
import sys
import time
from collections.abc import Callable

from chiplog_client import daemons, database_file
from chiplog_client.results.result import QueryError, Result
from chiplog_schemas.limit_settings import read_limits
from chiplog_schemas.paths import Paths

DELIVER_WAIT_S = 10.0  # for waiting journals to reach the database; a query does not wait longer
FINISHED_WAIT_S = 5.0  # for the end of a run on its way: usually it takes a tenth of a second …
FINISHED_AGAIN_S = 0.02  # … so it is looked for often
STALLED_S = 5.0  # an agent adopts journals twice a second; a large one takes seconds on a busy machine
POLL_AGAIN_S = 0.25  # between two checks of what was delivered


class PendingDelivery:
    """Journals and a spool of a directory that the database lacks. sql: runs a query there, as `Client.sql`."""

    def __init__(self, where: Paths, sql: Callable[..., Result]) -> None:
        self._where = where
        self._sql = sql
        self._awaits_spool = False  # an agent was started to deliver it

    def start_daemons(self) -> list[bytes]:
        """Start the embedded daemons if journals or a spool wait; return the producers of those journals."""
        waiting = daemons.waiting_journals(self._where)
        has_spool = daemons.may_start_agent(self._where) and daemons.has_undelivered_spool(self._where)
        if waiting or has_spool:  # safeguard: undelivered-spool-delivered
            what = f"{daemons.what_waits(len(waiting))} in {self._where.journals}"
            if not waiting:
                what = daemons.what_spool_has(self._where)
            them = "it" if len(waiting) == 1 else "them"
            try:
                daemons.start(self._where, daemons.AGENT, ["--embedded"])
            except OSError as error:
                print(f"chiplog: {what}, and no agent can be started: {error}", file=sys.stderr)
                return []
            self._awaits_spool = has_spool
            started = "an agent was" if daemons.goes_elsewhere(self._where) else "an agent and a collector were"
            print(f"chiplog: {what}; {started} started to deliver {them}", file=sys.stderr)
            read_limits(os.environ, lambda message: print(f"chiplog: {message}", file=sys.stderr))
        return waiting

    def wait_for_spool(self) -> None:
        """Wait until the agent that this client started has delivered the spool, for at most DELIVER_WAIT_S."""
        if not self._awaits_spool:
            return
        deadline = time.monotonic() + DELIVER_WAIT_S
        while daemons.has_undelivered_spool(self._where) and time.monotonic() < deadline:
            time.sleep(POLL_AGAIN_S)

    def wait_for_ends(self, producers: list[bytes]) -> None:
        """Wait until the database has the journals of these producers, for at most DELIVER_WAIT_S.

        If the agent has removed none of them for STALLED_S, do not wait for the rest.
        """
        if not producers:
            return
        query = "SELECT count(*) AS n FROM reads.producers WHERE list_contains($ended, id) AND state IS NOT NULL"
        n_left = len(producers)
        now = time.monotonic()
        deadline, stalled_at = now + DELIVER_WAIT_S, now + STALLED_S
        while time.monotonic() < deadline:
            left = [producer for producer in producers if (self._where.journals / producer.hex()).exists()]
            if len(left) < n_left:
                n_left, stalled_at = len(left), time.monotonic() + STALLED_S
            is_stalled = time.monotonic() >= stalled_at  # safeguard: stalled-delivery-ends-wait
            ended = [producer.hex().upper() for producer in producers if not (is_stalled and producer in left)]
            if self._sql(query, {"ended": ended}).rows()[0]["n"] == len(ended):
                return
            time.sleep(POLL_AGAIN_S)

    def wait_for_finished(self) -> None:
        """Wait until the local collector has the runs that have just finished, for at most FINISHED_WAIT_S.

        One line reports what is missing then. What running processes log, or what goes elsewhere, is not waited for.
        """
        where = self._where
        is_here = daemons.daemon_pid(where, daemons.COLLECTOR) or daemons.is_coming_up(where, daemons.AGENT)
        if not is_here:
            return
        waiting = {where.journals / producer.hex() for producer in daemons.journals_on_their_way(where)}
        owes = bool(waiting) or daemons.has_just_finished(where)
        deadline = time.monotonic() + FINISHED_WAIT_S
        while waiting or (owes and daemons.has_undelivered_spool(where)):  # safeguard: finished-run-awaited
            # Checked each time, because an agent that has just started writes down where it delivers.
            if daemons.goes_elsewhere(where):  # safeguard: run-of-elsewhere-not-awaited
                return
            waiting = {path for path in waiting if path.exists()}
            if time.monotonic() > deadline:
                what = daemons.what_waits(len(waiting)) if waiting else daemons.what_spool_has(where)
                print(f"chiplog: {what}; the answers lack it until then, see chiplog status", file=sys.stderr)
                return
            time.sleep(FINISHED_AGAIN_S)
        if owes:
            self._wait_for_index(where, deadline)

    def _wait_for_index(self, where: Paths, deadline: float) -> None:
        """Wait until the database has what the collector has now. A query may share a flush that began before that."""
        synced = database_file.synced_number(where)
        position = "SELECT position FROM reads.state"
        with contextlib.suppress(QueryError, IndexError):  # the query of the user reports it
            while (applied := self._sql(position).rows()[0]["position"]) < synced:  # safeguard: finished-run-applied
                if time.monotonic() > deadline:
                    what = f"{synced - applied} records of the log are not in the database yet"
                    print(f"chiplog: {what}; the answers lack them until then, see chiplog status", file=sys.stderr)
                    return
                time.sleep(FINISHED_AGAIN_S)
