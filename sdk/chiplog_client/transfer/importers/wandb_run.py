"""W&B's `.wandb` files and folders of runs: `offline-run-*`, and the folder `wandb` that has them.

A file is read twice: first what describes the run, and which series have another step than their row, then the rows.
Records are protobuf messages of wandb's own module; `wandb_file.py` finds them in the file.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chiplog.console.lines import LineSplitter
from chiplog_client.transfer.importers.formats import Options
from chiplog_client.transfer.importers.imported_run import (
    Config,
    ConsoleLine,
    Definition,
    End,
    ImportedRun,
    ImporterError,
    Notice,
    Part,
    PointBuffer,
    RunTag,
    SavedFile,
    Summary,
    SystemSample,
    Text,
    Unmapped,
    number_of,
)
from chiplog_client.transfer.importers.wandb_media import media_parts
from chiplog_client.transfer.wandb_file import WandbFileError, read_records
from chiplog_schemas.storage.content_files import invalid_path_reason

_RUNS = ("offline-run-*/run-*.wandb", "run-*/run-*.wandb")
_PRIVATE = ("_step", "_runtime", "_timestamp", "_wandb")  # W&B's own
_WORDS = ("min", "max", "mean", "first", "last", "none")  # of a summary, as chiplog has them; W&B's copy is last
_LEVELS = {"INFO": "info", "WARN": "warning", "ERROR": "error"}
_STREAMS = ("stderr", "stdout")  # by the number of wandb's OutputType
_INTERNAL = ("header", "footer", "final", "telemetry", "request", "noop_link_artifact", "output_logger", "preempting")
_UNMAPPED = {"artifact": "artifacts", "use_artifact": "uses of artifacts", "tbrecord": "folders of TensorBoard"}
_DOT = re.compile(r"(?<!\\)\.")
_INT64 = range(-(1 << 63), 1 << 63)


def is_one(path: Path) -> bool:
    """Return True if a path names a `.wandb` file, or a folder of W&B's with runs."""
    return bool(_files_of(path)) if path.is_dir() else path.is_file() and path.suffix == ".wandb"


def _files_of(path: Path) -> list[Path]:
    """Return the `.wandb` files of a path, in the order of their starts, which are in the names of their folders."""
    if not path.is_dir():
        return [path]
    places = (path, path / "wandb")
    found = [*path.glob("run-*.wandb"), *(file for place in places for runs in _RUNS for file in place.glob(runs))]
    return sorted(found, key=lambda file: (file.parent.name.removeprefix("offline-"), str(file)))


def read(path: Path, options: Options) -> Iterator[Part]:
    """Yield the runs of a `.wandb` file or folder."""
    files = _files_of(path)
    if not files:
        raise ImporterError(f"{path}: no run-*.wandb in it; name the folder of a run, such as wandb/offline-run-…")
    for file in files:
        _check_beginning(file)
    record_type = _record_type(path)
    for file in files:
        yield from _WandbRun(file, record_type).parts()


def _check_beginning(path: Path) -> None:
    try:
        with path.open("rb") as file:
            next(read_records(file, lambda _: None), None)
    except WandbFileError as error:
        raise ImporterError(f"{path}: {error}") from error


def _record_type(path: Path) -> Any:
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError as error:
        raise ImporterError(
            f"{path}: a .wandb file is read by W&B's own library, which is not installed; "
            f"pip install 'chiplog[import-wandb]' ({error})"
        ) from error
    return Record


@dataclass(slots=True)
class _Defined:
    """What `define_metric` said of a name or pattern."""

    words: set[str] = field(default_factory=set)
    step_metric: str = ""
    is_hidden: bool | None = None


@dataclass(slots=True)
class _StepMetric:
    """A metric that is the step of others."""

    is_whole: bool = True  # all of its values are whole numbers
    is_apart: bool = True  # no row has it together with a metric that has another step


class _WandbRun:
    """One `.wandb` file."""

    def __init__(self, path: Path, record_type: Any) -> None:
        self._path = path
        self._files = path.parent / "files"
        self._type = record_type
        self._run: Any = None
        self._exit: Any = None
        self._config: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._defined: dict[str, _Defined] = {}
        self._steps: dict[str, _StepMetric] = {}
        self._step_metrics: dict[str, str] = {}  # by the name of a metric; '' if its step is the row's
        self._saved: list[str] = []
        self._damage: list[str] = []
        self._start_us = self._last_us = 0
        self._points = PointBuffer()
        self._splitters = {stream: LineSplitter() for stream in _STREAMS}

    def parts(self) -> Iterator[Part]:
        """Yield the run and its parts."""
        self._survey()
        yield self._described()
        yield from self._head()
        for kind, record in self._records(lambda _: None):
            if (handler := self._HANDLERS.get(kind)) is not None:
                yield from handler(self, record)
            elif kind not in self._SURVEYED and kind not in _INTERNAL:
                yield Unmapped(what=_UNMAPPED.get(kind, f"records of the kind {kind!r:.40}"), example=_name_of(record))
        yield from self._points.flush()
        for stream, splitter in self._splitters.items():
            yield from self._lines(stream, splitter.flush())
        yield from self._saved_files()
        yield Summary(values=self._final_summary(), ts=self._last_us)
        yield from self._end()

    def _records(self, report: Callable[[str], None]) -> Iterator[tuple[str, Any]]:
        """Yield the kind and the message of each record."""
        from google.protobuf.message import DecodeError

        try:
            with self._path.open("rb") as file:
                for number, content in enumerate(read_records(file, report), 1):
                    try:
                        record = self._type.FromString(content)
                    except DecodeError as error:
                        raise ImporterError(
                            f"{self._path}: record {number} is no message of W&B: {error}; copy the file again"
                        ) from error
                    kind = record.WhichOneof("record_type") or "unknown"
                    yield kind, getattr(record, kind, record)
        except WandbFileError as error:
            raise ImporterError(f"{self._path}: {error}") from error

    # -- the first reading --

    def _survey(self) -> None:
        for kind, record in self._records(self._damage.append):
            if (note := self._SURVEYED.get(kind)) is not None:
                note(self, record)
        if self._run is None:
            damage = f" ({self._damage[0]})" if self._damage else ""
            raise ImporterError(f"{self._path}: it names no run: the run was killed at its start{damage}; leave it out")
        if any(defined.step_metric for defined in self._defined.values()):
            for kind, record in self._records(lambda _: None):
                if kind == "history":
                    self._survey_row(record)

    def _note_run(self, record: Any) -> None:
        if self._run is None:
            self._start_us = self._last_us = _microseconds(record.start_time)
        self._run = record  # each one is complete: a later one has the name and the tags that were set last
        _apply(self._config, record.config)
        _apply(self._summary, record.summary)

    def _note_config(self, record: Any) -> None:
        _apply(self._config, record)

    def _note_summary(self, record: Any) -> None:
        _apply(self._summary, record)

    def _note_metric(self, record: Any) -> None:
        if record.expanded_from_glob:
            return  # the pattern is there, too
        name = _key_of(record.name or record.glob_name)
        if record._control.overwrite or name not in self._defined:
            self._defined[name] = _Defined()
        defined = self._defined[name]
        defined.words |= {word for word in (*_WORDS, "copy") if getattr(record.summary, word)}
        defined.step_metric = _key_of(record.step_metric) or defined.step_metric
        if record.options.hidden:
            defined.is_hidden = True

    def _note_exit(self, record: Any) -> None:
        self._exit = record

    def _note_files(self, record: Any) -> None:
        self._saved += [item.path for item in record.files if not item.path.startswith("media/")]

    def _survey_row(self, record: Any) -> None:
        row = {key: value for key, value in _row_of(record).items() if not _is_private(key)}
        axes = {self._step_metric_of(key) for key in row}
        for axis in axes - {""}:
            step = self._steps.setdefault(axis, _StepMetric())
            step.is_whole &= axis not in row or _whole(row[axis]) is not None
        for axis in row.keys() & self._steps.keys():
            others = (key for key in row if key != axis and self._step_metric_of(key) != axis)
            self._steps[axis].is_apart &= not any(others)

    def _step_metric_of(self, key: str) -> str:
        """Return the metric that `define_metric` made the step of another, or ''. An exact name wins."""
        if key not in self._step_metrics:
            patterns = [name for name, defined in self._defined.items() if defined.step_metric]
            matching = [name for name in patterns if _matches(name, key)]
            best = max(matching, key=lambda name: (name == key, len(name)), default=None)
            self._step_metrics[key] = "" if best is None else self._defined[best].step_metric
        return self._step_metrics[key]

    _SURVEYED: Mapping[str, Callable[["_WandbRun", Any], None]] = {
        "run": _note_run,
        "config": _note_config,
        "summary": _note_summary,
        "metric": _note_metric,
        "exit": _note_exit,
        "files": _note_files,
    }

    # -- what describes the run --

    def _described(self) -> ImportedRun:
        run = self._run
        return ImportedRun(
            source=self._path,
            run_id=run.run_id,
            piece=str(self._start_us),
            project=run.project or None,
            name=run.display_name or None,
            notes=run.notes or None,
            group=run.run_group or None,
            job_type=run.job_type or None,
            tags=list(run.tags),
            host=run.host or None,
            created_us=self._start_us,
        )

    def _head(self) -> Iterator[Part]:
        for line in self._damage:
            yield Unmapped(what="damaged parts of the file", example=line)
        yield Config(values={key: v for key, v in self._config.items() if not _is_private(key)}, ts=self._start_us)
        for key, value in (("wandb.entity", self._run.entity), ("wandb.sweep_id", self._run.sweep_id)):
            if value:
                yield RunTag(key=key, value=value, ts=self._start_us)
        for name, defined in self._defined.items():
            word = next(iter(defined.words)) if len(defined.words) == 1 else ""
            axis = self._steps.get(defined.step_metric)
            is_step = axis is not None and axis.is_whole and not axis.is_apart
            yield Definition(
                name=name,
                ts=self._start_us,
                summary="last" if word == "copy" else word,
                step_metric="" if is_step else defined.step_metric,  # its values stay at the steps of its rows
                is_hidden=defined.is_hidden,
            )

    def _final_summary(self) -> dict[str, Any]:
        values = _with_media(self._summary)
        kept = {key: value for key, value in values.items() if not (_is_private(key) or _has_media(value))}
        return {key: self._of_one_word(key, value) for key, value in kept.items()}

    def _of_one_word(self, key: str, value: Any) -> Any:
        """Return the value in `{"min": value}`, as which W&B has a metric with one word of `define_metric`."""
        is_word = isinstance(value, dict) and len(value) == 1 and set(value) <= set(_WORDS)
        if is_word and any(defined.words and _matches(name, key) for name, defined in self._defined.items()):
            return next(iter(value.values()))
        return value

    def _saved_files(self) -> Iterator[Part]:
        for name in dict.fromkeys(self._saved):
            if invalid_path_reason(name) is not None:
                yield Unmapped(what="files that are saved from elsewhere", example=name)
                continue
            for path in [self._files / name] if not any(c in name for c in "*?[") else sorted(self._files.glob(name)):
                yield SavedFile(path=path.relative_to(self._files).as_posix(), content=path, ts=self._last_us)

    def _end(self) -> Iterator[Part]:
        if self._exit is None:
            reason = "its .wandb file has no end: it was killed, or still ran when the file was copied"
            yield End(state="crashed", reason=reason, ended_us=self._last_us)
        else:
            code = self._exit.exit_code
            yield End(state="failed" if code else "finished", exit_code=code, ended_us=self._last_us)

    # -- the second reading --

    def _row(self, record: Any) -> Iterator[Part]:
        row = _row_of(record)
        ts = self._time_of(row)
        row_step = record.step.num if record.HasField("step") else _whole(row.get("_step")) or 0
        values = {key: value for key, value in _with_media(row).items() if not _is_private(key)}
        numbers: dict[int, dict[str, float]] = {}
        for key, value in values.items():
            step = self._step_of(key, row, row_step)
            number = number_of(value)
            if number is not None:
                numbers.setdefault(step, {})[key] = number
            elif isinstance(value, str):
                yield Text(key=key, step=step, ts=ts, value=value)
            elif _is_media(value):
                yield from media_parts(key, step, ts, value, self._files)
            else:
                yield Unmapped(what="values that are neither numbers nor texts", example=key)
        for step, found in numbers.items():
            yield from self._points.add(step, ts, found)

    def _step_of(self, key: str, row: Mapping[str, Any], step: int) -> int:
        """Return the step of a metric: what its step metric has in the row, else the row's."""
        axis = self._step_metric_of(key)
        known = self._steps.get(axis or key)
        if known is None or not known.is_whole or not (axis or known.is_apart):
            return step
        value = _whole(row.get(axis or key))
        return step if value is None else value

    def _time_of(self, row: Mapping[str, Any]) -> int:
        seconds = number_of(row.get("_timestamp"))
        if seconds is not None and abs(seconds) < 1e11:
            self._note_time(round(seconds * 1e6))
            return round(seconds * 1e6)
        return self._last_us

    def _note_time(self, ts: int) -> None:
        self._last_us = max(self._last_us, ts)

    def _stats(self, record: Any) -> Iterator[Part]:
        ts = _microseconds(record.timestamp)
        self._note_time(ts)
        values = {item.key: number_of(_json(item.value_json)) for item in record.item}
        yield SystemSample(ts=ts, values={key: value for key, value in values.items() if value is not None})

    def _output(self, record: Any) -> Iterator[Part]:
        stream = _STREAMS[bool(record.output_type)]
        splitter, ts = self._splitters[stream], _microseconds(record.timestamp)
        yield from self._lines(stream, splitter.settle(ts / 1e6))
        self._note_time(ts)
        yield from self._lines(stream, splitter.feed(record.line, ts / 1e6))

    def _lines(self, stream: str, lines: list[str]) -> Iterator[Part]:
        for line in lines:
            yield ConsoleLine(line=line, stream=stream, ts=self._last_us)

    def _alert(self, record: Any) -> Iterator[Part]:
        level = _LEVELS.get(record.level, "info")
        yield Notice(kind="alert", level=level, message=record.title, ts=self._last_us, body={"text": record.text})

    def _environment(self, record: Any) -> Iterator[Part]:
        facts = {"commit": record.git.commit, "directory": record.root, "python": record.python, "host": record.host}
        facts |= {"os": record.os, "gpu": record.gpu_type, "cuda": record.cuda_version}
        known = {name: value for name, value in facts.items() if value}
        if record.program:
            known["command"] = [record.program, *record.args]
        if known:
            yield Notice(kind="environment", level="info", message="as W&B recorded it", ts=self._start_us, body=known)

    _HANDLERS: Mapping[str, Callable[["_WandbRun", Any], Iterator[Part]]] = {
        "history": _row,
        "stats": _stats,
        "output": _output,
        "output_raw": _output,
        "alert": _alert,
        "environment": _environment,
    }


def _name(item: Any) -> str:
    return "/".join(item.nested_key) or str(item.key)


def _key_of(name: str) -> str:
    """Return the key of a name of `define_metric`, where a dot leads into a nested dict and a backslash escapes one."""
    return _DOT.sub("/", name).replace("\\.", ".")


def _matches(name: str, key: str) -> bool:
    return name == key or (name.endswith("*") and key.startswith(name[:-1]))


def _name_of(record: Any) -> str:
    return str(getattr(record, "name", ""))


def _is_private(key: str) -> bool:
    return key.partition("/")[0] in _PRIVATE


def _json(text: str) -> Any:
    """Return the value of a JSON text; NaN and infinities are numbers there."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _row_of(record: Any) -> dict[str, Any]:
    """Return the values of a row of the history. W&B wrote dicts as they are up to 0.17, later each of their values."""
    row: dict[str, Any] = {}
    for item in record.item:
        _flatten(_name(item), _json(item.value_json), row)
    return row


def _flatten(key: str, value: Any, target: dict[str, Any]) -> None:
    if isinstance(value, dict) and value and not _is_media(value):
        for name, part in value.items():
            _flatten(f"{key}/{name}", part, target)
    else:
        target[key] = value


def _apply(target: dict[str, Any], change: Any) -> None:
    for item in change.update:
        target[_name(item)] = _json(item.value_json)
    for item in change.remove:
        target.pop(_name(item), None)


def _with_media(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with media as one value each; W&B has their parts as `KEY/_type`, `KEY/path` …"""
    found: dict[str, Any] = dict(values)
    keys = [name.removesuffix("/_type") for name in values if name.endswith("/_type")]
    for key in sorted(keys, key=len):  # the layers that are drawn over an image are parts of it
        if f"{key}/_type" in found:
            parts = [part for part in found if part.startswith(f"{key}/")]
            found[key] = {part.removeprefix(f"{key}/"): found.pop(part) for part in parts}
    return found


def _is_media(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("_type"), str)


def _has_media(value: Any) -> bool:
    return _is_media(value) or (isinstance(value, dict) and any(map(_has_media, value.values())))


def _whole(value: Any) -> int | None:
    """Return a value that is a whole number of 64 bits, or None."""
    number = number_of(value)
    if number is None or isinstance(value, bool) or not number.is_integer() or int(number) not in _INT64:
        return None
    return int(number)


def _microseconds(time: Any) -> int:
    return int(time.seconds) * 1_000_000 + int(time.nanos) // 1000
