"""Retention: delete runs, and system samples, that are older than the collector is set to keep. Once an hour.

It requests changes as a client does, so each step is a record of the log with its cut-off. Runs with a label that is
not over stay.
"""

import logging
import os
import time
from collections.abc import Callable

import duckdb

from chiplog_collector.query.pending_request import PendingRequest
from chiplog_schemas.bounds import Limits
from chiplog_schemas.model.changes import REQUEST_ID_BYTES, Action
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import QueryMessage, QueryMessageKind
from chiplog_schemas.security.zap import LOCAL

INTERVAL_S = 3_600.0
_DAY_US = 86_400 * 10**6
_HOUR_US = 3_600 * 10**6
_RUNS_MAX = 10_000  # in one request; the next turn takes more
_OLD_RUNS = f"""SELECT run_id FROM runs WHERE state <> 'running' AND n_running = 0
    AND coalesce(ended_at, created_at) < make_timestamp($before)
    ORDER BY coalesce(ended_at, created_at) LIMIT {_RUNS_MAX}"""
_HAS_OLD_SAMPLES = """SELECT EXISTS (FROM base.system WHERE ts < make_timestamp($before))
    OR EXISTS (FROM base.system_recent WHERE ts < make_timestamp($before))"""
_log = logging.getLogger("chiplog.index")


class Retention:
    """Requests what the settings of a collector ask for. submit: passes a request on. One thread: the writer's."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, bounds: Limits, submit: Callable[[PendingRequest], None]
    ) -> None:
        self._connection = connection
        self._run_days = bounds.retention_days
        self._sample_days = bounds.system_retention_days
        self._submit = submit
        self._due_at = 0.0  # also at the start: a collector may be restarted often

    def turn(self, now: float, now_us: int) -> None:
        """Request what is due. Call it while the index keeps up. now: CLOCK_MONOTONIC; now_us: since the epoch."""
        if now < self._due_at or not (self._run_days or self._sample_days):
            return
        self._due_at = now + INTERVAL_S
        if self._run_days:
            before = {"before": now_us - self._run_days * _DAY_US}
            runs = [run for (run,) in self._connection.execute(_OLD_RUNS, before).fetchall()]
            if runs:
                why = f"older than {self._run_days} days"
                self._request(Action.DELETE, {"runs": runs, "why": why}, f"{len(runs)} runs {why}")
                if len(runs) == _RUNS_MAX:
                    self._due_at = 0.0
        if self._sample_days:
            until = (now_us - self._sample_days * _DAY_US) // _HOUR_US * _HOUR_US
            if self._connection.execute(_HAS_OLD_SAMPLES, {"before": until}).fetchall()[0][0]:
                self._request(Action.TRIM_SYSTEM, {"until": until}, f"samples older than {self._sample_days} days")

    def _request(self, action: Action, arguments: dict[str, object], what: str) -> None:
        def answered(_: PendingRequest, frames: list[bytes]) -> None:
            answer = query_messages.parse(frames)
            if answer.kind == QueryMessageKind.DONE:
                _log.info("retention: deleted %s", what)
            else:
                _log.warning("retention: %s are not deleted: %s", what, answer.message)

        id = os.urandom(REQUEST_ID_BYTES)
        question = QueryMessage(QueryMessageKind.MANAGE, id, action=action.value, arguments=arguments)
        self._submit(PendingRequest(b"", LOCAL, question, time.monotonic(), answered))
