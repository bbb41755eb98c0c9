"""Retention: delete runs and system samples that are older than the collector is set to keep, and roll samples up.

It requests changes as a client does, so each step is a record of the log with its cut-off. Runs with a label that is
not over stay.
"""

import logging
import time
from collections.abc import Callable, Mapping

import duckdb

from chiplog_collector.query.change_request import ChangeRequest, own_request
from chiplog_schemas.limit_settings import Limits
from chiplog_schemas.model.change_record import Action
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import QueryMessageKind

INTERVAL_S = 3_600.0
_DAY_US = 86_400 * 10**6
_HOUR_US = 3_600 * 10**6
_MINUTE_US = 60 * 10**6
_WINDOWS_US = {_MINUTE_US: _HOUR_US, _HOUR_US: _DAY_US}  # of one transaction, by interval
_RUNS_MAX = 10_000  # in one request; the next turn takes more
_OLD_RUNS = f"""SELECT run_id FROM runs WHERE state <> 'running' AND n_running = 0
    AND coalesce(ended_at, created_at) < make_timestamp($before)
    ORDER BY coalesce(ended_at, created_at) LIMIT {_RUNS_MAX}"""
_FIRST_SAMPLE = """SELECT epoch_us(min(ts)) FROM base.system_facts
    WHERE ts >= make_timestamp($first) AND ts < make_timestamp($until)"""
# Samples that have left the database are in the store alone. It is not queried here, so it is told once a day.
_STORE_IS_DUE = f"""SELECT count(*) > 0 AND (
        SELECT coalesce(max(until), 0) FROM base.changes WHERE action = '{Action.TRIM_SYSTEM}'
    ) <= $until - {_DAY_US} FROM base.dropped"""
_log = logging.getLogger("chiplog.index")


class Retention:
    """Requests what the settings of a collector ask for. submit: passes a request on. One thread: the writer's."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, limits: Limits, submit: Callable[[ChangeRequest], None]
    ) -> None:
        self._connection = connection
        self._run_days = limits.retention_days
        self._sample_days = limits.system_retention_days
        # By interval: the age from which samples are rolled up, the coarse ones first.
        self._roll_up_days = {_HOUR_US: limits.system_minutes_days, _MINUTE_US: limits.system_seconds_days}
        self._submit = submit
        self._n_open = 0  # requests without an answer; the next turn would repeat them
        self._due_at = 0.0  # also at the start: a collector may be restarted often

    def turn(self, rolled_until: Mapping[int, int], now: float, now_us: int) -> None:
        """Request what is due. Call it while the index keeps up.

        rolled_until: see `State`. now: CLOCK_MONOTONIC; now_us: since the epoch.
        """
        if now < self._due_at or self._n_open:
            return
        self._due_at = now + INTERVAL_S
        if self._run_days:
            self._delete_runs(now_us - self._run_days * _DAY_US)
        if self._sample_days:
            until = _full_hour(now_us - self._sample_days * _DAY_US)
            is_stored_due = self._connection.execute(_STORE_IS_DUE, {"until": until}).fetchall()[0][0]
            if is_stored_due or self._first_sample(0, until) is not None:  # safeguard: stored-samples-trimmed
                self._request(
                    Action.TRIM_SYSTEM, {"until": until}, f"deletion of samples older than {self._sample_days} days"
                )
        for every, days in self._roll_up_days.items():
            if days:
                self._roll_up(every, rolled_until.get(every, 0), _full_hour(now_us - days * _DAY_US))

    def _delete_runs(self, before_us: int) -> None:
        runs = [run for (run,) in self._connection.execute(_OLD_RUNS, {"before": before_us}).fetchall()]
        if runs:
            why = f"older than {self._run_days} days"
            self._request(Action.DELETE, {"runs": runs, "why": why}, f"deletion of {len(runs)} runs {why}")
        if len(runs) == _RUNS_MAX:
            self._due_at = 0.0

    def _roll_up(self, every: int, first: int, until: int) -> None:
        """Roll up the samples of one hour or, if there are more, of the first hour that has some."""
        found = self._first_sample(first, until)
        if found is None:
            return
        first = _full_hour(found)
        window = {"first": first, "until": min(first + _WINDOWS_US[every], until), "every": every}
        self._request(Action.ROLL_UP, window, f"samples before {window['until']} µs, rolled up")
        if window["until"] < until:
            self._due_at = 0.0  # the next one as soon as this is done

    def _first_sample(self, first: int, until: int) -> int | None:
        """Return the time of the first sample between two times, in µs."""
        found = self._connection.execute(_FIRST_SAMPLE, {"first": first, "until": until}).fetchall()[0][0]
        return None if found is None else int(found)

    def _request(self, action: Action, arguments: Mapping[str, object], what: str) -> None:
        def answered(_: ChangeRequest, frames: list[bytes]) -> None:
            self._n_open -= 1
            answer = query_messages.parse(frames)
            if answer.kind == QueryMessageKind.DONE:
                _log.info("retention: %s, done", what)
            else:
                self._due_at = time.monotonic() + INTERVAL_S  # safeguard: failing-retention-waits
                _log.warning("retention: %s, not done: %s", what, answer.message)

        self._n_open += 1
        self._submit(own_request(action, arguments, time.monotonic(), answered))


def _full_hour(time_us: int) -> int:
    return time_us // _HOUR_US * _HOUR_US
