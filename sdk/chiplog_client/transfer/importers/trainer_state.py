"""The state of Hugging Face's Trainer: trainer_state.json of a checkpoint or of the output folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chiplog_client.transfer.importers.formats import Options
from chiplog_client.transfer.importers.imported_run import (
    Config,
    ImportedRun,
    ImporterError,
    Part,
    PointBuffer,
    Summary,
    Text,
    Unmapped,
    number_of,
    run_id_of_path,
)

_FILE = "trainer_state.json"
_CHECKPOINT = "checkpoint-"
# What the state says of the end of a run; the rest of it are settings.
_SUMMARY = ("best_metric", "best_model_checkpoint", "best_global_step", "epoch", "global_step", "total_flos")
_NO_SETTINGS = ("log_history", "stateful_callbacks", "is_local_process_zero", "is_world_process_zero")
_STEPS = range(-(1 << 63), 1 << 63)
_BYTES_MAX = 1 << 30  # the whole file is one JSON value


def is_one(path: Path) -> bool:
    """Return True if a path is such a file, or a folder with one."""
    return _file_of(path) is not None


def _file_of(path: Path) -> Path | None:
    """Return the state of the output folder, or else of its newest checkpoint."""
    if path.is_file():
        return path if path.name == _FILE else None
    checkpoints = [file for file in path.glob(f"{_CHECKPOINT}*/{_FILE}") if _step_of(file).isdigit()]
    newest = max(checkpoints, key=lambda file: int(_step_of(file)), default=None)
    return path / _FILE if (path / _FILE).is_file() else newest


def _step_of(file: Path) -> str:
    return file.parent.name.removeprefix(_CHECKPOINT)


def read(path: Path, options: Options) -> Iterator[Part]:
    """Yield the run of a trainer."""
    file = path if path.is_file() else _file_of(path)
    if file is None:
        raise ImporterError(f"{path}: no {_FILE} in it or its checkpoints; name the output folder of a Trainer")
    state = _state_of(file)
    folder = file.resolve().parent
    folder = folder.parent if folder.name.startswith(_CHECKPOINT) else folder
    ts = file.stat().st_mtime_ns // 1000
    yield ImportedRun(
        source=file,
        run_id=run_id_of_path("huggingface", folder),
        name=folder.name,
        of_path=frozenset({"name"}),
        file_us=ts,
    )
    settings = {name: value for name, value in state.items() if name not in (*_SUMMARY, *_NO_SETTINGS)}
    yield Config(values={name: value for name, value in settings.items() if value is not None}, ts=ts)
    points = PointBuffer()
    for place, entry in enumerate(state["log_history"], 1):
        if not isinstance(entry, dict) or type(entry.get("step")) is not int or entry["step"] not in _STEPS:
            raise ImporterError(f"{file}: entry {place} of log_history has no step: {entry!r:.80}; correct the file")
        numbers: dict[str, float] = {}
        for key, value in entry.items():
            if key == "step":
                continue
            if (number := number_of(value)) is not None:
                numbers[key] = number
            elif isinstance(value, str):
                yield Text(key=key, step=entry["step"], ts=ts, value=value)
            else:
                yield Unmapped(what="values that are neither numbers nor texts", example=key)
        yield from points.add(entry["step"], ts, numbers)
    yield from points.flush()
    yield Summary(values={name: state[name] for name in _SUMMARY if state.get(name) is not None}, ts=ts)


def _state_of(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _BYTES_MAX:
        raise ImporterError(f"{file}: it has more than {_BYTES_MAX:,} bytes; log less often, or split log_history")
    try:
        state = json.loads(file.read_bytes())
    except UnicodeDecodeError as error:
        raise ImporterError(f"{file}: byte {error.start} is not UTF-8; copy the file again") from error
    except json.JSONDecodeError as error:
        place = f"{file}:{error.lineno}"
        raise ImporterError(f"{place}: {error.msg}: the copy is incomplete, or no JSON; copy the file again") from error
    except RecursionError as error:
        raise ImporterError(f"{file}: it nests too deep; copy the file again") from error
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise ImporterError(f"{file}: it has no log_history, which the state of a Trainer has; name another file")
    return state
