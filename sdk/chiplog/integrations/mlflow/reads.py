"""What the database knows of runs, waited for at most 30 seconds."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

import chiplog
from chiplog.integrations.mlflow.addresses import Address
from chiplog.integrations.mlflow.experiments import experiment_id_of
from chiplog.integrations.mlflow.records import MLFLOW_ID, RunRecord, Tag
from chiplog.safety.background_threads import result_within
from chiplog.safety.diagnostics import error_text

_T = TypeVar("_T")
WAIT_S = 30.0
OWN_WAIT_S = 2.0  # for what others may have added to a run of this process
_RUNS = """
WITH page AS MATERIALIZED (
    SELECT run_id, project, name, state, primary_label, created_at, ended_at FROM runs WHERE {where}
), t AS (
    SELECT run_id, list({{'key': key, 'value': value, 'label': label, 'ts': epoch_us(ts)}} ORDER BY key) AS tags
    FROM run_tags WHERE run_id IN (SELECT run_id FROM page) AND NOT starts_with(key, 'chiplog:metric/') GROUP BY run_id
), c AS (
    SELECT run_id, list({{'key': key, 'value': value->>'$'}} ORDER BY ts, key) AS params
    FROM config WHERE run_id IN (SELECT run_id FROM page) GROUP BY run_id
), latest AS (
    SELECT run_id, label, key,
           arg_max({{'step': step, 'ts': epoch_ms(ts), 'value': value}},
                   {{'step': step, 'ts': ts, 'value': CASE WHEN isnan(value) THEN 0 ELSE value END}}) AS point
    FROM metrics WHERE run_id IN (SELECT run_id FROM page) GROUP BY run_id, label, key
), m AS (
    SELECT run_id, list({{'label': label, 'key': key, 'point': point}} ORDER BY key) AS metrics
    FROM latest GROUP BY run_id
)
-- Lists of numbers and texts become Python values ten times as fast as lists of structs.
SELECT page.*, [x.key for x in tags] AS tag_keys, [x.value for x in tags] AS tag_values,
       [x.label for x in tags] AS tag_labels, [x.ts for x in tags] AS tag_times,
       [x.key for x in params] AS param_keys, [x.value for x in params] AS param_values,
       [x.label for x in metrics] AS labels, [x.key for x in metrics] AS keys, [x.point.step for x in metrics] AS steps,
       [x.point.ts for x in metrics] AS times, [x.point.value for x in metrics] AS values
FROM page LEFT JOIN t ON t.run_id = page.run_id LEFT JOIN c ON c.run_id = page.run_id
LEFT JOIN m ON m.run_id = page.run_id
"""
_ID_OF = "SELECT run_id FROM run_tags WHERE key = $key AND value = $run LIMIT 1"
_PRIMARY = "SELECT primary_label FROM runs WHERE run_id = $run"
_HISTORY = """
SELECT m.step, epoch_ms(m.ts) AS ts, m.value FROM metrics m JOIN runs r ON r.run_id = m.run_id
WHERE m.run_id = $run AND ((m.key = $key AND m.label = r.primary_label)
    OR (m.label IS DISTINCT FROM r.primary_label AND m.label || '/' || m.key = $key))
"""
_PROJECTS = """
SELECT project, epoch_ms(min(created_at)) AS first, epoch_ms(max(created_at)) AS last FROM runs GROUP BY project
"""
_EXPERIMENT_TAGS = """
SELECT r.project, t.key, arg_max(t.value, t.ts) AS value FROM run_tags t JOIN runs r ON r.run_id = t.run_id
WHERE starts_with(t.key, $prefix) GROUP BY r.project, t.key
"""


class StoredRuns:
    """Runs in the database of an address."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def rows(self, query: str, params: Mapping[str, Any] | None = None, wait_s: float = WAIT_S) -> list[dict[str, Any]]:
        """Return the rows of a SELECT; none if nothing has been recorded. Raises MlflowException."""
        return self._ask(lambda client: client.sql(query, params).rows(), wait_s) or []

    def _ask(self, read: Callable[["chiplog.Client"], _T], wait_s: float) -> _T | None:
        """Return what a reader finds; None if nothing has been recorded. Raises MlflowException."""

        def ask() -> _T | None:
            try:
                with chiplog.connect(self._address.collector, dir=self._address.directory) as client:
                    return read(client)
            except chiplog.NoDataError:
                return None

        try:
            return result_within(wait_s, ask, name="chiplog-mlflow-read")
        except TimeoutError:
            message = f"chiplog's collector did not answer within {wait_s:g} s; see chiplog status"
        except (chiplog.QueryError, ValueError, OSError) as error:
            message = f"chiplog's collector did not answer: {error_text(error)}"
        raise MlflowException(message, TEMPORARILY_UNAVAILABLE)

    def find(self, run_id: str, wait_s: float = WAIT_S) -> RunRecord | None:
        """Return a run; None if the database has none of this ID. Raises MlflowException."""
        found = self._records("run_id = $run", {"run": run_id}, wait_s)
        if not found and (rows := self.rows(_ID_OF, {"key": MLFLOW_ID, "run": run_id}, wait_s)):
            found = self._records("run_id = $run", {"run": rows[0]["run_id"]}, wait_s)
        return found[0] if found else None

    def list_all(self, experiment_ids: Iterable[str]) -> list[RunRecord]:
        """Return the runs of some experiments. Raises MlflowException."""
        wanted = set(experiment_ids)

        def read(client: "chiplog.Client") -> list[dict[str, Any]]:
            projects = [row["project"] for row in client.sql(_PROJECTS).rows()]
            names = [name for name in projects if experiment_id_of(name) in wanted]
            where = "list_contains($projects, project)" + (" OR project IS NULL" if None in names else "")
            named = {"projects": [name for name in names if name is not None]}
            return client.sql(_RUNS.format(where=where), named).rows() if names else []

        return [_to_record(row) for row in self._ask(read, WAIT_S) or ()]

    def history(self, run_id: str, key: str, wait_s: float = WAIT_S) -> tuple[str | None, list[Metric]]:
        """Return the run's primary label, None while it is unknown, and a metric's values. Raises MlflowException."""

        def read(client: "chiplog.Client") -> tuple[str | None, list[Metric]]:
            runs = client.sql(_PRIMARY, {"run": run_id}).rows()
            rows = client.sql(_HISTORY, {"run": run_id, "key": key}).rows() if runs else []
            points = [Metric(key, row["value"], row["ts"], row["step"]) for row in rows]
            return runs[0]["primary_label"] if runs else None, points

        return self._ask(read, wait_s) or (None, [])

    def projects(self, wait_s: float = WAIT_S) -> list[dict[str, Any]]:
        """Return the projects with the times of their first and last runs. Raises MlflowException."""
        return self.rows(_PROJECTS, wait_s=wait_s)

    def experiment_tags(self, prefix: str, wait_s: float = WAIT_S) -> list[dict[str, Any]]:
        """Return project, key and value of the tags that runs keep for their experiments. Raises MlflowException."""
        return self.rows(_EXPERIMENT_TAGS, {"prefix": prefix}, wait_s)

    def _records(self, where: str, params: Mapping[str, Any], wait_s: float) -> list[RunRecord]:
        return [_to_record(row) for row in self.rows(_RUNS.format(where=where), params, wait_s)]


def _to_record(row: Mapping[str, Any]) -> RunRecord:
    primary, tags = row["primary_label"], (row[f"tag_{name}"] or () for name in ("keys", "values", "labels", "times"))
    points = (row[name] or () for name in ("labels", "keys", "values", "times", "steps"))
    return RunRecord(
        row["run_id"],
        experiment_id_of(row["project"]),
        row["name"] or "",
        row["state"],
        primary,
        _ms_of(row["created_at"]) or 0,
        _ms_of(row["ended_at"]),
        tags={key: Tag(value, label, ts) for key, value, label, ts in zip(*tags, strict=True)},
        params=dict(zip(row["param_keys"] or (), row["param_values"] or (), strict=True)),
        stored_metrics=[
            Metric(key if label == primary else f"{label}/{key}", value, time_ms, step)
            for label, key, value, time_ms, step in zip(*points, strict=True)
        ],
    )


def _ms_of(time: datetime | None) -> int | None:
    return None if time is None else int(time.replace(tzinfo=UTC).timestamp() * 1000)
