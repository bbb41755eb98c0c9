"""`wandb.Api()`: runs that are stored, read from SQL. It changes nothing."""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chiplog.artifacts.artifact import Artifact, used_artifact
from chiplog.integrations.adapter import reads
from chiplog.integrations.wandb.addresses import run_url
from chiplog.integrations.wandb.errors import CommError, artifact_errors, harmless, warn
from chiplog.integrations.wandb.state.attribute_dicts import AttributeDict
from chiplog.integrations.wandb.stored import history
from chiplog.integrations.wandb.stored.filters import NAME, Conditions
from chiplog.safety.text import short_repr
from chiplog.values.artifact_value import ArtifactPlace
from chiplog_schemas.process.recording_dir import recording_dir
from chiplog_schemas.storage.content_files import invalid_path_reason

_NO_PROJECT = "uncategorized"  # W&B's word
_PROJECT = f"coalesce(nullif(r.project, ''), '{_NO_PROJECT}')"
_PROJECTS = f"SELECT DISTINCT {_PROJECT} AS project FROM runs r WHERE list_contains($projects, {_PROJECT})"
_COLUMNS = f"r.run_id, {_PROJECT} AS project, {NAME} AS name, r.run_group, r.job_type, r.tags, r.notes, r.state, "
_COLUMNS += "r.exit_code, r.created_at, r.ended_at, r.primary_label"
_RUN = f"SELECT {_COLUMNS} FROM runs r WHERE r.run_id = $run"
_RUNS = f"""
WITH runs_of AS (SELECT r.* FROM runs r WHERE {_PROJECT} = $project
), configs AS (
    SELECT run_id, map_from_entries(list((key, value))) AS config FROM config
    WHERE run_id IN (SELECT run_id FROM runs_of) GROUP BY run_id
), summaries AS (
    SELECT run_id, map_from_entries(list((key, value))) AS summary FROM run_summary
    WHERE run_id IN (SELECT run_id FROM runs_of) GROUP BY run_id
)
SELECT {_COLUMNS} FROM runs_of r LEFT JOIN configs c ON c.run_id = r.run_id LEFT JOIN summaries s ON s.run_id = r.run_id
WHERE {{where}} ORDER BY {{order}}
"""
_LAST = "SELECT run_id, max(last_step) AS step, max(last_at) AS ts FROM keys WHERE list_contains($runs, run_id) "
_LAST += "GROUP BY run_id"
_FILES = "SELECT path, bytes, sha256, ts FROM files WHERE run_id = $run ORDER BY path"
_ARTIFACTS = """SELECT project, name, version FROM artifacts
WHERE list_contains({}, $run) AND version IS NOT NULL ORDER BY name, version"""
_OF_ARTIFACTS = "SELECT DISTINCT project FROM artifacts WHERE list_contains($projects, project)"
_READ_AT_ONCE = 100  # runs whose config and summary are read by one query
_ARTIFACT_WAIT_S = 30.0
api_key = "not needed"  # as `wandb.api.api_key`, by which Ray asks whether a user is logged in


class NotFoundError(CommError, ValueError):
    """A run or a project that is not stored."""


class Api:
    """Reads what is stored, as `chiplog.connect()` finds it: CHIPLOG_COLLECTOR, else CHIPLOG_DIR.

    Args:
        overrides: `project` and `entity` for paths that name none.
        timeout: Accepted.
        api_key: Accepted.

    """

    def __init__(self, overrides: Mapping[str, Any] | None = None, timeout: Any = None, api_key: Any = None) -> None:
        given = dict(overrides or {})
        self.default_entity = str(given.get("entity") or os.environ.get("WANDB_ENTITY") or "")
        self._project = str(given.get("project") or os.environ.get("WANDB_PROJECT") or _NO_PROJECT)

    @property
    def settings(self) -> dict[str, Any]:
        """Entity and project that paths without them have."""
        return {"entity": self.default_entity, "project": self._project}

    def __getattr__(self, name: str) -> Any:
        """Return what does nothing, and say so once: what only W&B's server has."""
        if name.startswith("_"):
            raise AttributeError(name)
        return harmless(f"Api.{name}")

    def flush(self) -> None:
        """Do nothing: each call reads again."""

    def runs(
        self,
        path: str | None = None,
        filters: Mapping[str, Any] | None = None,
        order: str = "+created_at",
        per_page: int = 50,
        **_: Any,
    ) -> "Runs":
        """Return the runs of a project.

        Args:
            path: `project` or `entity/project`. Default: the project of `overrides`, else of WANDB_PROJECT.
            filters: As MongoDB's: `{"config.lr": {"$gt": 0.1}, "state": "finished"}`, with $and, $or, $not, $in, $nin,
                $gt, $gte, $lt, $lte, $eq, $ne, $exists and $regex, on config.*, summary_metrics.*, state, tags, group,
                jobType, display_name and created_at.
            order: One of these fields with + (ascending) or - in front.
            per_page: Accepted.

        Raises:
            ValueError: A filter is unknown, or no run of the project is stored.

        """
        conditions = Conditions()
        query = _RUNS.format(where=conditions.where(filters or {}), order=conditions.order(order or "+created_at"))
        named = path or self._project
        projects = _projects(named)
        known = {row["project"] for row in history.ask(_PROJECTS, {"projects": projects})}
        found = [project for project in projects if project in known]
        if not found:
            raise NotFoundError(f"Could not find project {named}: no run of it is stored")
        rows = history.ask(query, {**conditions.params, "project": found[0]})
        entity = named.split("/", 1)[0] if found[0] != named.strip("/") else self.default_entity
        return Runs([Run(row, entity) for row in rows])

    def run(self, path: str = "") -> "Run":
        """Return a run: `id`, `project/id` or `entity/project/id`. Raises ValueError if it is not stored."""
        before, _, run_id = str(path).strip("/").rpartition("/")
        project = before.removesuffix("/runs")
        rows = history.ask(_RUN, {"run": run_id})
        if not rows or (project and rows[0]["project"] not in _projects(project)):
            raise NotFoundError(f"Could not find run {short_repr(path)}: it is not stored")
        of_project = rows[0]["project"]
        entity = project.removesuffix(of_project).strip("/") if project else self.default_entity
        return Run(rows[0], entity)

    def artifact(self, name: str, type: str | None = None) -> Artifact:
        """Return a version of an artifact: "name:alias", "entity/project/name:v3". Raises CommError."""
        before, _, own = str(name).rpartition("/")
        known = (
            {row["project"] for row in history.ask(_OF_ARTIFACTS, {"projects": _projects(before)})} if before else set()
        )
        found = [project for project in _projects(before) if project in known]
        with artifact_errors():
            return used_artifact(_place(self._project), f"{found[0]}/{own}" if found else name, type, None)


class Runs(Sequence["Run"]):
    """Runs, whose config and summary are read when they are needed."""

    def __init__(self, runs: list["Run"]) -> None:
        self._runs = runs
        for first in range(0, len(runs), _READ_AT_ONCE):
            batch = runs[first : first + _READ_AT_ONCE]
            for run in batch:
                run._batch = batch

    def __getitem__(self, index: Any) -> Any:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<Runs {len(self)}>"


class Run:
    """A stored run."""

    def __init__(self, row: Mapping[str, Any], entity: str) -> None:
        self._row = row
        self._batch = [self]  # runs that are read together
        self._config: dict[str, Any] | None = None
        self._summary = Summary()
        self.entity = entity
        self.id = self.storage_id = str(row["run_id"])
        self.project = str(row["project"])
        self.name = self.display_name = str(row["name"])
        self.state = str(row["state"])
        self.group: str | None = row["run_group"]
        self.job_type: str | None = row["job_type"]
        self.tags: list[str] = list(row["tags"] or ())
        self.notes: str | None = row["notes"]
        self.created_at = self.createdAt = _iso(row["created_at"])

    @property
    def path(self) -> list[str]:
        """Entity, project and run ID."""
        return [self.entity, self.project, self.id]

    @property
    def url(self) -> str:
        """The address, as of the run that wrote it."""
        return run_url(recording_dir(None), self.project, self.id)

    @property
    def config(self) -> dict[str, Any]:
        """The config."""
        self._read()
        return self._config or {}

    @property
    def summary(self) -> "Summary":
        """The summary; `_step`, `_timestamp` and `_runtime` are those of the last value."""
        self._read()
        return self._summary

    summary_metrics = summary

    @property
    def lastHistoryStep(self) -> int:  # noqa: N802  # W&B's name
        """The largest step; -1 without one."""
        return int(self.summary.get("_step", -1))

    def load(self, force: bool = False) -> Mapping[str, Any]:
        """Read config and summary again if `force` is true."""
        if force:
            self._config = None
        self._read()
        return self._row

    def history(
        self,
        samples: int = 500,
        keys: Sequence[str] | None = None,
        x_axis: str = "_step",
        pandas: bool = True,
        stream: str = "default",
    ) -> Any:
        """Return values by step: numbers, texts and histograms of the primary, else of the lowest rank that has a key.

        Args:
            samples: At most so many steps, at even distances.
            keys: Only these, and only steps that have all of them.
            x_axis: A key that is added to `keys`.
            pandas: Return a pandas.DataFrame; without pandas, or if this is false, a list of dicts.
            stream: `default`. The samples of the machine are in the view `system`: `system` gives none.

        """
        wanted = None if keys is None else list(dict.fromkeys((x_axis, *keys)))
        found: list[dict[str, Any]] = []
        if stream == "default":
            found = history.sampled(self.id, self._row, wanted, samples)
        else:
            warn("run.history(stream='system') has no rows; the view `system` has the samples of the machine")
        if not pandas:
            return found
        try:
            from pandas import DataFrame
        except ImportError:
            warn("run.history() returns a list: pandas is not installed")
            return found
        return DataFrame.from_records(found)

    def scan_history(
        self,
        keys: Sequence[str] | None = None,
        page_size: int = 1_000,
        min_step: int | None = None,
        max_step: int | None = None,
        **_: Any,
    ) -> Iterator[dict[str, Any]]:
        """Yield all steps from `min_step` to below `max_step`, each a dict; see `history` for `keys`."""
        wanted = None if keys is None else list(keys)
        return history.scanned(self.id, self._row, wanted, page_size, min_step, max_step)

    def files(self, names: Sequence[str] | None = None, per_page: int = 50, **_: Any) -> list["File"]:
        """Return the files that were saved, or those of some names."""
        found = [File(row) for row in history.ask(_FILES, {"run": self.id})]
        return [file for file in found if not names or file.name in names]

    def file(self, name: str) -> "File":
        """Return a file. Raises ValueError if the run has none of this name."""
        for file in self.files([name]):
            return file
        raise NotFoundError(f"run {self.id} has no file {short_repr(name)}")

    def logged_artifacts(self, per_page: int = 100) -> list[Artifact]:
        """Return the versions of artifacts that the run logged."""
        return self._artifacts("made_by")

    def used_artifacts(self, per_page: int = 100) -> list[Artifact]:
        """Return the versions of artifacts that the run used."""
        return self._artifacts("used_by")

    def update(self, *given: Any, **named: Any) -> None:
        """Change nothing, with one line."""
        warn("wandb.Api() of chiplog only reads; `chiplog edit` changes stored runs, and `chiplog rm` deletes them")

    save = delete = upload_file = log_artifact = use_artifact = update

    def _artifacts(self, column: str) -> list[Artifact]:
        place = _place(self.project)
        rows = history.ask(_ARTIFACTS.format(column), {"run": self.id})
        names = [f"{row['project'] or ''}/{row['name']}:v{row['version']}" for row in rows]
        return [used_artifact(place, name, None, None) for name in names]

    def _read(self) -> None:
        """Read config and summary, of all runs of the batch that lack them."""
        if self._config is not None:
            return
        lacking = {run.id: run for run in self._batch if run._config is None}
        try:
            found, last = reads.runs_of(list(lacking)), history.ask(_LAST, {"runs": list(lacking)})
        except Exception as error:
            raise CommError(f"runs cannot be read: {error}") from error
        for run in lacking.values():
            run._config = {}
        for row in found:
            run = lacking[row["run_id"]]
            run._config, run._summary = dict(row["config"]), Summary(row["summary"])
        for row in last:
            run = lacking[row["run_id"]]
            at = row["ts"].replace(tzinfo=UTC)
            seconds = (at - run._row["created_at"].replace(tzinfo=UTC)).total_seconds()
            run._summary.update(_step=row["step"], _timestamp=at.timestamp(), _runtime=seconds)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __repr__(self) -> str:
        return f"<Run {'/'.join(filter(None, self.path))} ({self.state})>"


class Summary(AttributeDict):
    """A summary: a dict, also by attribute."""

    @property
    def _json_dict(self) -> dict[str, Any]:
        return dict(self)


class File:
    """A saved file of a run."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.name = str(row["path"])
        self.size = int(row["bytes"])
        self.sha256 = str(row["sha256"])
        self.updated_at = _iso(row["ts"])

    def download(self, root: Any = ".", replace: bool = False, exist_ok: bool = False, **_: Any) -> Any:
        """Write the file below a directory, and return it opened for reading.

        Raises:
            ValueError: It is there, and neither `replace` nor `exist_ok` is true.
            CommError: It cannot be read or written.

        """
        target = Path(root) / self.name
        if (reason := invalid_path_reason(self.name)) is not None:
            raise CommError(f"file {self.name!r:.80} cannot be written: {reason}")
        if target.exists() and not replace:
            if not exist_ok:
                raise ValueError(f"{target} exists; pass replace=True or exist_ok=True")
            return target.open(encoding="utf-8")
        try:
            reads.write_content(self.name, self.sha256, target)
        except Exception as error:
            raise CommError(f"file {self.name!r:.80} cannot be read: {error}") from error
        return target.open(encoding="utf-8")

    def __repr__(self) -> str:
        return f"<File {self.name} ({self.size} bytes)>"


def _projects(path: str) -> list[str]:
    """Return what a path may name: a project, which may hold slashes, or one below an entity."""
    whole = path.strip("/")
    return list(dict.fromkeys((whole, whole.partition("/")[2] or whole)))


def _place(project: str) -> ArtifactPlace:
    named = "" if project == _NO_PROJECT else project
    url = os.environ.get("CHIPLOG_COLLECTOR") or None
    return ArtifactPlace(named, "online", url, recording_dir(None), _ARTIFACT_WAIT_S, lambda *given: None)


def _iso(time: datetime | None) -> str | None:
    return None if time is None else f"{time.replace(tzinfo=None).isoformat(timespec='seconds')}Z"
