"""Runs in MLflow's stores, as MlflowClient reads them: SQLite files, `mlruns` folders, and tracking servers."""

import contextlib
import json
import logging
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from chiplog.integrations.mlflow.models import model_records
from chiplog.integrations.mlflow.models.model_records import ModelMetric, ModelRecord
from chiplog_client.transfer.importers import sqlite_file
from chiplog_client.transfer.importers.formats import Options
from chiplog_client.transfer.importers.imported_run import (
    POINTS_MAX,
    Config,
    End,
    ImportedRun,
    ImporterError,
    MediaOf,
    Part,
    Points,
    RunTag,
    SavedFile,
    Unmapped,
    spelled,
)
from chiplog_schemas.storage.content_files import ANY_LABEL_FOLDER

_TABLES = frozenset({"alembic_version", "experiments", "runs", "metrics", "params"})
_PAGE = 1_000  # runs or experiments per request
_STATES = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "failed"}  # others are running
_NOTE_TAG = "mlflow.note.content"
# As MlflowClient.log_image(key=, step=) names its files; a thumbnail beside each ends with `+compressed.webp`.
_IMAGE = re.compile(r"images/(?P<key>.+)[+%]step[+%](?P<step>-?\d+)[+%]timestamp[+%](?P<ms>\d+)[+%][0-9a-f-]+\.png")
_REASON_CHARS = 200
_RETRIES = "3"  # of a request to a server; MLflow's own 7 take four minutes
_UPGRADE_WAIT_S = 600.0  # of a copy: minutes for some GB


def is_one(path: Path) -> bool:
    """Return True if a path is a database of MLflow, a folder of experiments, or a tracking URI."""
    place = _local(path)
    if place.is_dir():
        return next(place.glob("*/meta.yaml"), None) is not None or place.name == "mlruns"
    return _server_of(path) is not None or sqlite_file.has_tables(place, _TABLES)


def read(path: Path, options: Options) -> Iterator[Part]:
    """Yield the runs of all experiments that are not deleted."""
    uri = _server_of(path)
    place = _local(path)
    if uri is None and not place.exists():
        raise ImporterError(
            f"{spelled(path)} does not exist; name a database of MLflow, an mlruns folder or a tracking URI"
        )
    with contextlib.ExitStack() as stack:
        if uri is None and place.is_dir():
            _check_folder(place)
            uri = place.resolve().as_uri()
        stack.enter_context(_library_set_up(path))
        client = _client(uri, uri) if uri is not None else stack.enter_context(_client_of_copy(place))
        try:
            yield from _StoreReader(place, client).parts()
        except (ImporterError, OSError):
            raise
        except Exception as error:  # of any store behind the URI
            raise _unreadable(spelled(path), error) from error


def _local(path: Path) -> Path:
    """Return the file or folder of a path that may be a URI of one. A Path has one slash for several."""
    scheme, separator, rest = str(path).partition(":/")
    if not separator or scheme not in ("sqlite", "file") or path.exists():
        return path
    rest = rest.lstrip("/")
    return Path(rest) if scheme == "sqlite" and Path(rest).exists() else Path("/", rest)


def _server_of(path: Path) -> str | None:
    """Return the tracking URI of a server that a path spells, or None."""
    scheme, separator, rest = str(path).partition(":/")
    if not separator or not scheme.replace("+", "").isalnum() or scheme in ("sqlite", "file") or path.exists():
        return None
    return f"{scheme}://{rest.lstrip('/')}"


def _check_folder(path: Path) -> None:
    """Raise ImporterError for a folder with artifacts only, as MLflow keeps them beside a database."""
    if next(path.glob("*/meta.yaml"), None) is None:
        beside = path.resolve().parent / "mlflow.db"
        remedy = f"import {beside}" if beside.exists() else "name the database of its runs, such as mlflow.db"
        raise ImporterError(f"{path}: no folder in it has a meta.yaml, so it holds artifacts and no runs; {remedy}")


@contextlib.contextmanager
def _library_set_up(path: Path) -> Iterator[None]:
    """Have MLflow read `mlruns` folders, and neither report usage nor print, until the end of the block."""
    wanted = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    wanted["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    wanted["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES", _RETRIES)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    log = logging.getLogger("mlflow")
    try:
        try:
            import mlflow  # noqa: F401
        except ImportError as error:
            raise ImporterError(
                f"{spelled(path)}: MLflow's own client reads its runs; pip install 'chiplog[mlflow]'"
            ) from error
        level = log.level
        log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(level)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _client(place: Path | str, uri: str) -> Any:
    from mlflow import MlflowClient

    try:
        return MlflowClient(tracking_uri=uri)
    except Exception as error:  # of any store
        raise _unreadable(place, error) from error


def _unreadable(place: Path | str, error: Exception) -> ImporterError:
    return ImporterError(f"{place} cannot be read by MLflow: {_reason(error)}; check that MLflow itself shows its runs")


@contextlib.contextmanager
def _client_of_copy(path: Path) -> Iterator[Any]:
    """Yield the client of a copy of a database. MLflow reads the schema of its release only, and an upgrade changes it.

    Raises ImporterError, also for the schema of a newer release.
    """
    with tempfile.TemporaryDirectory(prefix="chiplog-mlflow-") as directory:
        copy = Path(directory) / "mlflow.db"
        with sqlite_file.opened(path) as source, contextlib.closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        uri = f"sqlite:///{copy}"
        try:
            client = _client(path, uri)
        except ImporterError:
            _upgrade(path, uri)
            client = _client(path, uri)
        yield client


def _upgrade(path: Path, uri: str) -> None:
    """Bring a database to the schema of the installed MLflow. Raises ImporterError."""
    import mlflow

    command = [sys.executable, "-m", "mlflow", "db", "upgrade", uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_UPGRADE_WAIT_S, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason"]
        raise ImporterError(
            f"{path}: MLflow {mlflow.__version__} cannot read its schema ({lines[-1]:.{_REASON_CHARS}}); if a newer "
            "MLflow wrote it, install that one"
        )


class _StoreReader:
    """Reads a store. path: as the user named it, for messages and to find artifacts of a folder that was moved."""

    def __init__(self, path: Path, client: Any) -> None:
        self._path = path
        self._client = client

    def parts(self) -> Iterator[Part]:
        from mlflow.entities import ViewType

        has_runs = False
        left_out: list[Unmapped] = [*self._malformed()]
        for experiment in _pages(self._client.search_experiments, view_type=ViewType.ALL):
            if experiment.lifecycle_stage != "active":
                what = "experiments that were deleted in MLflow, with their runs"
                left_out.append(Unmapped(what=what, example=experiment.name))
                continue
            of_experiment = {"experiment_ids": [experiment.experiment_id]}
            for run in _pages(self._client.search_runs, **of_experiment, run_view_type=ViewType.DELETED_ONLY):
                left_out.append(Unmapped(what="runs that were deleted in MLflow", example=run.info.run_id))
            for run in _pages(self._client.search_runs, **of_experiment, order_by=["attributes.start_time ASC"]):
                has_runs = True
                yield from self._run(experiment, run)
        if not has_runs:
            reasons = "".join(f", but {unmapped.what} {unmapped.example}".rstrip() for unmapped in left_out)
            raise ImporterError(f"{self._path} has no run that MLflow shows{reasons}; name another store")
        yield from left_out

    def _malformed(self) -> Iterator[Unmapped]:
        """Yield the folders that MLflow skips because they have no meta.yaml."""
        if self._path.is_dir():
            for meta in self._path.glob("*/meta.yaml"):
                for run in meta.parent.iterdir():
                    if (run / "metrics").is_dir() and not (run / "meta.yaml").exists():
                        yield Unmapped(what="runs without a meta.yaml, which MLflow skips", example=str(run))
            for folder in self._path.glob("*"):
                if folder.name.isdigit() and not (folder / "meta.yaml").exists():
                    yield Unmapped(what="experiments without a meta.yaml, which MLflow skips", example=str(folder))

    def _run(self, experiment: Any, run: Any) -> Iterator[Part]:
        info, data = run.info, run.data
        started_us = (info.start_time or 0) * 1000
        ended_us = info.end_time * 1000 if info.end_time else None
        yield ImportedRun(
            source=self._path,
            run_id=info.run_id,
            project=experiment.name,
            name=info.run_name or None,
            notes=data.tags.get(_NOTE_TAG),
            created_us=started_us,
        )
        if data.params:
            yield Config(values=dict(sorted(data.params.items())), ts=started_us)
        tags = {**data.tags, **_reserved_tags(experiment, info)}
        for key, value in [*sorted(tags.items()), *_tags_of_inputs(run), *_tags_of_outputs(run)]:
            if value is not None:
                yield RunTag(key=key, value=value, ts=started_us)
        for key in sorted(data.metrics):
            yield from self._metric(info.run_id, key)
        own = Path(info.experiment_id, info.run_id, "artifacts")
        yield from self._artifacts(info.artifact_uri, own, "artifacts", ended_us or started_us)
        for output in run.outputs.model_outputs if run.outputs else ():
            yield from self._model(experiment, info, output.model_id)
        reason = "killed" if info.status == "KILLED" else None
        yield End(state=_STATES.get(info.status, "running"), ended_us=ended_us, reason=reason)

    def _model(self, experiment: Any, info: Any, model_id: str) -> Iterator[Part]:
        """Yield a model that a run logged, as chiplog's store of MLflow keeps it."""
        from mlflow.exceptions import MlflowException

        try:
            model = self._client.get_logged_model(model_id)
        except MlflowException as error:
            yield Unmapped(what="logged models that cannot be read", example=f"{model_id}: {_reason(error)}")
            return
        for key, value in _tags_of_model(experiment, info, model):
            if value is not None:
                yield RunTag(key=key, value=value, ts=model.creation_timestamp * 1000)
        own = Path(info.experiment_id, "models", model_id, "artifacts")
        ts = model.last_updated_timestamp * 1000
        yield from self._artifacts(model.artifact_location, own, f"models/{model_id}/artifacts", ts)

    def _metric(self, run_id: str, key: str) -> Iterator[Part]:
        history = self._client.get_metric_history(run_id, key)
        for begin in range(0, len(history), POINTS_MAX):
            part = history[begin : begin + POINTS_MAX]
            steps, times = (
                np.fromiter(numbers, np.int64, len(part))
                for numbers in ((row.step for row in part), (row.timestamp * 1000 for row in part))
            )
            yield Points.of_series(key, steps, times, np.fromiter((row.value for row in part), np.float64, len(part)))

    def _artifacts(self, uri: str, own: Path, folder: str, ts: int) -> Iterator[Part]:
        """Yield the files at a URI. own: the place in a store that was moved. folder: below `mlflow/`."""
        parts = urlsplit(uri)
        if parts.scheme in ("", "file"):
            named = Path(unquote(parts.path) if parts.scheme else uri)
            root = self._path.resolve() if self._path.is_dir() else self._path.resolve().parent
            places = [root / named, root / own, root / "mlruns" / own]
            if place := next(filter(Path.is_dir, places), None):
                yield from _files_of(place, folder, ts)
            elif not places[0].parents[1].exists():  # a run without artifacts has no folder either
                yield Unmapped(what="folders of artifacts that are not here, if there were any", example=str(named))
            return
        from mlflow.artifacts import download_artifacts, list_artifacts

        with tempfile.TemporaryDirectory(prefix="chiplog-mlflow-") as scratch:
            where = {"artifact_uri": uri, "tracking_uri": self._client.tracking_uri}
            try:
                found = download_artifacts(**where, dst_path=scratch) if list_artifacts(**where) else scratch
            except Exception as error:  # of any repository
                yield Unmapped(what="folders of artifacts that cannot be read", example=f"{uri}: {_reason(error)}")
                return
            yield from _files_of(Path(found), folder, ts)


def _files_of(place: Path, folder: str, ts: int) -> Iterator[Part]:
    """Yield files under the names that chiplog's store of MLflow gives them, and pictures also as media."""
    for file in sorted(path for path in place.rglob("*") if path.is_file()):
        name = file.relative_to(place).as_posix()
        yield SavedFile(path=f"{ANY_LABEL_FOLDER}{folder}/{name}", content=file, ts=ts)
        if image := _IMAGE.fullmatch(name):
            key = image["key"].replace("~", "/").replace("#", "/")  # the latter in earlier releases
            step, logged_us = int(image["step"]), int(image["ms"]) * 1000
            yield MediaOf(key=key, step=step, ts=logged_us, kind="image", content=file, metadata={"format": "png"})


# -- tags with which chiplog's store of MLflow keeps what only MLflow has --


def _reserved_tags(experiment: Any, info: Any) -> dict[str, str | None]:
    from chiplog.integrations.mlflow.records import END, EXPERIMENT_TAG, START, STATUS, USER  # they need MLflow

    of_experiment = {f"{EXPERIMENT_TAG}{key}": json.dumps(value) for key, value in experiment.tags.items()}
    ended = str(info.end_time) if info.end_time else None
    return {USER: info.user_id or "", START: str(info.start_time), STATUS: info.status, END: ended, **of_experiment}


def _tags_of_inputs(run: Any) -> Iterator[tuple[str, str | None]]:
    if run.inputs:
        for used in run.inputs.dataset_inputs:
            tags = {tag.key: tag.value for tag in used.tags}
            yield from model_records.dataset_input(used.dataset.to_dictionary(), tags)
        for model in run.inputs.model_inputs:
            yield from model_records.model_input(model.model_id)


def _tags_of_outputs(run: Any) -> Iterator[tuple[str, str | None]]:
    for output in run.outputs.model_outputs if run.outputs else ():
        yield from model_records.model_output(output.model_id, output.step)


def _tags_of_model(experiment: Any, info: Any, model: Any) -> Iterator[tuple[str, str | None]]:
    from chiplog.integrations.mlflow.experiments import experiment_id_of  # it needs MLflow

    record = ModelRecord(
        model.model_id,
        info.run_id,
        experiment_id_of(experiment.name),
        model.name,
        model.model_type,
        model.source_run_id,
        model.creation_timestamp,
        model.last_updated_timestamp,
        tags=model.tags,
        params=model.params,
    )
    yield from model_records.created(record)
    at_ms, status = model.last_updated_timestamp, str(model.status)
    yield from model_records.with_status(model.model_id, status, model.status_message, at_ms)
    for row in model.metrics or ():
        of_dataset = (row.dataset_name, row.dataset_digest)
        metric = ModelMetric(row.key, row.value, row.step, row.timestamp, *of_dataset, row.run_id or info.run_id)
        yield from model_records.linked(model.model_id, metric)


def _pages(search: Any, **arguments: Any) -> Iterator[Any]:
    """Yield what a search of MlflowClient returns, over all pages."""
    token = None
    while True:
        page = search(**arguments, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.{_REASON_CHARS}}"
