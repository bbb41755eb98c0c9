"""What an importer yields: a run, and the parts that follow it, up to the next run.

Times are microseconds since the epoch, UTC. A part belongs to a label; the order of a label's parts is the order of its
events. Numbers come in arrays of bounded size, everything else one object at a time.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAIN = "main"  # the label of a source that knows one writer
POINTS_MAX = 65_536  # of one Points: 3 MB
_DIGEST_CHARS = 12  # of a run ID that follows from a path: 48 bits

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]


class ImporterError(Exception):
    """A source that cannot be imported. The text is one line: file, place, reason and remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """The beginning of a run. Another one with the same `run_id` and `piece` replaces what it says of the run.

    Args:
        source: The file or directory, for messages.
        run_id: The source's own ID, or `run_id_of_path()`.
        piece: What distinguishes the sources of one run, such as the start of a resumed part; they become attempts.
        host: The machine, if it is known.
        created_us: The beginning of the run; None: the first time of its parts.
        of_path: Which fields follow from the path: another spelling of it is the same source.
        file_us: The time of the file, which parts without a time have: a copy has another one.
    """

    source: Path
    run_id: str
    piece: str = ""
    project: str | None = None
    name: str | None = None
    notes: str | None = None
    group: str | None = None
    job_type: str | None = None
    tags: Sequence[str] = ()
    host: str | None = None
    created_us: int | None = None
    of_path: frozenset[str] = frozenset()
    file_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Numbers, at most POINTS_MAX.

    Args:
        keys: The names of the metrics.
        key_of: For each value the index of its name in `keys`.
        steps, times, values: For each value.
        rows: For each value a number that does not descend: neighbours with the same one were logged by one call, at
            one step and time, with different keys. None: each value by its own call.
    """

    keys: Sequence[str]
    key_of: Int64s
    steps: Int64s
    times: Int64s
    values: Float64s
    rows: Int64s | None = None
    label: str = MAIN

    @classmethod
    def of_series(cls, key: str, steps: Int64s, times: Int64s, values: Float64s, label: str = MAIN) -> "Points":
        """Return the numbers of one metric."""
        return cls(
            keys=[key], key_of=np.zeros(len(steps), np.int64), steps=steps, times=times, values=values, label=label
        )


class PointBuffer:
    """Collects numbers that come one by one, and yields them as Points of bounded size."""

    def __init__(self, label: str = MAIN) -> None:
        self._label = label
        self._clear()

    def _clear(self) -> None:
        self._keys: dict[str, int] = {}
        self._key_of: list[int] = []
        self._steps: list[int] = []
        self._times: list[int] = []
        self._values: list[float] = []
        self._rows: list[int] = []
        self._n_rows = 0

    def add(self, step: int, ts: int, values: Mapping[str, float]) -> Iterator[Points]:
        """Add the numbers of one call. Yield what was collected if it is enough."""
        keys = self._keys
        for key, value in values.items():
            self._key_of.append(keys.setdefault(key, len(keys)))
            self._values.append(value)
        n = len(values)
        self._steps += [step] * n
        self._times += [ts] * n
        self._rows += [self._n_rows] * n
        self._n_rows += 1
        if len(self._values) >= POINTS_MAX:
            yield from self.flush()

    def flush(self) -> Iterator[Points]:
        """Yield what was collected, if there is something. Call it before parts whose order matters, and at the end."""
        if self._values:
            yield Points(
                keys=list(self._keys),
                key_of=np.array(self._key_of, np.int64),
                steps=np.array(self._steps, np.int64),
                times=np.array(self._times, np.int64),
                values=np.array(self._values, np.float64),
                rows=np.array(self._rows, np.int64),
                label=self._label,
            )
        self._clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text at a step."""

    key: str
    step: int
    ts: int
    value: str
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramOf:
    """n counts between n + 1 edges, at a step."""

    key: str
    step: int
    ts: int
    edges: Sequence[float]
    counts: Sequence[float]
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaOf:
    """An image, a table … at a step. content: a file, or its bytes. kind: as in the view `media`."""

    key: str
    step: int
    ts: int
    kind: str
    content: Path | bytes
    metadata: Mapping[str, Any] = field(default_factory=dict)
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleLine:
    """A line that the run printed. stream: stdout or stderr."""

    line: str
    ts: int
    stream: str = "stdout"
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSample:
    """A sample of the machine. device: '' for the host; names as chiplog's own, where the source's mean the same."""

    ts: int
    values: Mapping[str, float]
    device: str = ""
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """A file of the run. path: relative, with `/`. content: where it is, or its bytes."""

    path: str
    content: Path | bytes
    ts: int
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Values of the config, plain ones of JSON. The last one of a key counts."""

    values: Mapping[str, Any]
    ts: int
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Values of the summary that do not follow from the metrics, plain ones of JSON."""

    values: Mapping[str, Any]
    ts: int
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What `define_metric` said. name: may end with `*`. summary: one of SUMMARIES or ''."""

    name: str
    ts: int
    summary: str = ""
    step_metric: str = ""
    is_hidden: bool | None = None
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTag:
    """A tag with a value, as MLflow has them."""

    key: str
    value: str
    ts: int
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A row of `events`, such as an alert. level: debug, info, warning or error."""

    kind: str
    level: str
    message: str
    ts: int
    body: Mapping[str, Any] = field(default_factory=dict)
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Who a label is. Without it, a label has no rank."""

    label: str
    rank: int | None = None
    world_size: int | None = None
    started_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a label ended. Without it, it has finished at its last time.

    state: finished, failed, crashed or running. reason: one line.
    """

    state: str
    ended_us: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    label: str = MAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmapped:
    """What chiplog has no place for. what: in a few words, the same for all of a kind: they are counted."""

    what: str
    count: int = 1
    example: str = ""


Part = (
    ImportedRun
    | Points
    | Text
    | HistogramOf
    | MediaOf
    | ConsoleLine
    | SystemSample
    | SavedFile
    | Config
    | Summary
    | Definition
    | RunTag
    | Notice
    | Label
    | End
    | Unmapped
)


def run_id_of_path(format_name: str, path: Path) -> str:
    """Return the run ID of a source without one: the same for the same format and place."""
    resolved = str(path.resolve())
    digest = hashlib.sha256(f"{format_name}\n{resolved}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"{format_name}-{digest[:_DIGEST_CHARS]}"


def spelled(path: Path) -> str:
    """Return a path for a message. A URI has its slashes again: a Path has one for several."""
    scheme, separator, rest = str(path).partition(":/")
    if not separator or not scheme.replace("+", "").isalnum() or path.exists():
        return str(path)
    return f"{scheme}:{'///' if scheme in ('sqlite', 'file') else '//'}{rest}"


def number_of(value: Any) -> float | None:
    """Return a value of JSON as a number, or None if it is none. True is 1."""
    try:
        return float(value) if isinstance(value, bool | int | float) else None
    except OverflowError:  # an integer beyond float64
        return None
