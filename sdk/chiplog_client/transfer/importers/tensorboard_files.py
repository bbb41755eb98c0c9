"""Runs in event files of TensorBoard, as its own loader reads them: one for each directory that has some."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chiplog.integrations.tensorboard.added_values import METHODS
from chiplog.media.audio import wav_metadata
from chiplog.media.image import Image
from chiplog.values.media_value import Content
from chiplog_client.transfer.importers.formats import Options
from chiplog_client.transfer.importers.imported_run import (
    Config,
    End,
    HistogramOf,
    ImportedRun,
    ImporterError,
    MediaOf,
    Part,
    PointBuffer,
    Text,
    Unmapped,
)

_NAME = "tfevents"  # in the names of event files (tensorboard/backend/event_processing/io_wrapper.py)
_FRAME_BYTES = 16  # of a record: its length, and the checksums of length and payload (TFRecord)
_TEXT_SUFFIX = "/text_summary"  # which SummaryWriter.add_text of torch and tensorboardX appends to a tag
_DIGEST_CHARS = 12  # of a run ID: 48 bits
_STATES = {1: "finished", 2: "failed", 3: "running"}  # Status of tensorboard/plugins/hparams/api.proto
_DAMAGED = "parts of files, from a record that is damaged or cut off to the end, which TensorBoard skips, too"
_TIME_MAX_S = 1 << 37  # the year 6325; later times are damage


def is_one(path: Path) -> bool:
    """Return True if a path is an event file, or a directory that has one at any depth."""
    if path.is_dir():
        return next(path.rglob(f"*{_NAME}*"), None) is not None
    return _NAME in path.name and path.is_file()


def read(path: Path, options: Options) -> Iterator[Part]:
    """Yield the runs of an event file or a log directory, grouped and ordered as by TensorBoard."""
    try:
        from tensorboard.backend.event_processing import io_wrapper
    except ImportError as error:
        raise ImporterError(
            f"{path}: event files are read by TensorBoard's own loader; pip install 'chiplog[tensorboard]'"
        ) from error
    directories = list(map(Path, io_wrapper.GetLogdirSubdirectories(str(path)))) if path.is_dir() else [path]
    reports: list[Unmapped] = []  # they belong to no run
    known: set[str] = set()
    for directory in sorted(directories, key=lambda place: (len(place.parts), place)):  # a copy is deeper, mostly
        names = map(str, directory.iterdir()) if directory.is_dir() else [str(directory)]
        # In the order of their names, as DirectoryWatcher of TensorBoard reads them.
        files = sorted(map(Path, filter(io_wrapper.IsSummaryEventsFile, names)))
        yield from _RunReader(path, directory, files, reports.append).parts(known)
    if not known:
        reason = f" ({reports[0].example}: {reports[0].what})" if reports else ""
        raise ImporterError(f"{path} has no event of TensorBoard that can be read{reason}; name a log directory")
    yield from reports


class _RunReader:
    """Reads the event files of one run. report: called with what belongs to no run."""

    def __init__(self, root: Path, directory: Path, files: Sequence[Path], report: Callable[[Unmapped], None]) -> None:
        self._root = root
        self._directory = directory
        self._files = files
        self._report = report
        self._points = PointBuffer()
        self._plugins: dict[str, str] = {}  # by tag: only the first value of a tag has metadata
        self._ts = 0

    def parts(self, known: set[str]) -> Iterator[Part]:
        """Yield the run and its parts. known: the IDs of those before; its own is added."""
        has_events = False
        for path in self._files:
            for event in _events(path, self._report):
                if not has_events:
                    has_events = True
                    run = self._run_of(path, event)
                    if run.run_id in known:
                        self._report(Unmapped(what="copies of runs", example=str(self._directory)))
                        return
                    known.add(run.run_id)
                    yield run
                self._ts = _microseconds(event.wall_time, self._ts)
                yield from self._parts_of(event)
        yield from self._points.flush()

    def _run_of(self, path: Path, first_event: Any) -> ImportedRun:
        """Return the run. Its ID follows from what a copy of the directory has, too."""
        own_name = path.resolve().parent.name
        described = f"{own_name}\n{path.name}\n{first_event.wall_time!r}"
        digest = hashlib.sha256(described.encode("utf-8", "surrogateescape")).hexdigest()
        is_root = self._directory == self._root
        return ImportedRun(
            source=self._directory,
            run_id=f"tensorboard-{digest[:_DIGEST_CHARS]}",
            project=own_name if is_root else self._root.resolve().name,
            name=own_name if is_root else str(self._directory.relative_to(self._root)),
            of_path=frozenset({"name", "project"}),
        )

    def _parts_of(self, event: Any) -> Iterator[Part]:
        what = event.WhichOneof("what")
        if what == "summary":
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    yield from self._points.add(event.step, self._ts, {value.tag: value.simple_value})
                else:
                    yield from self._other_value(value, event.step)
        elif what == "session_log" and event.session_log.status == event.session_log.START:
            # TensorBoard hides what was logged before at this step and later ones.
            yield Unmapped(what="purges at a restart (purge_step): the values before it are kept")
        elif what not in (None, "file_version", "session_log"):
            yield Unmapped(what=f"events with a {what}")

    def _other_value(self, value: Any, step: int) -> Iterator[Part]:
        plugin = self._plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
        kind = value.WhichOneof("value")
        form = f"tensor of {plugin}" if kind in ("tensor", None) and plugin else kind
        reader = _READERS.get(form)
        if reader is None:
            yield Unmapped(what=f"values of kind {form or 'none'}", example=value.tag)
            return
        try:
            for part in reader(value, step, self._ts):
                if isinstance(part, dict):
                    yield from self._points.add(step, self._ts, part)
                else:
                    yield part
        except Exception as error:  # of a value that another program wrote
            yield Unmapped(what=f"values of kind {form} that cannot be read", example=f"{value.tag}: {error}")


def _events(path: Path, report: Callable[[Unmapped], None]) -> Iterator[Any]:
    """Yield the events of a file that TensorBoard's loader reads; report if it stops before the end."""
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    size, n_read = path.stat().st_size, 0
    for record in RawEventFileLoader(str(path)).Load():
        try:
            yield Event.FromString(record)
        except DecodeError as error:
            raise ImporterError(f"{path}: the record at byte {n_read} is no event; move the file away") from error
        n_read += _FRAME_BYTES + len(record)
    if n_read < size:
        report(Unmapped(what=_DAMAGED, example=f"{path} at byte {n_read:,} of {size:,}"))


def _microseconds(wall_time: float, default: int) -> int:
    return round(wall_time * 1e6) if abs(wall_time) < _TIME_MAX_S else default


# -- values: readers of (value, step, ts); a dict has numbers by key --


def _histogram(value: Any, step: int, ts: int) -> Iterator[Part]:
    """Read a HistogramProto: `bucket_limit` are the upper ends, which can be ±DBL_MAX.

    As in tensorboard/data_compat.py, empty buckets at both ends are left out, and the ends are the least and the
    greatest value. Unlike there, the numbers stay float64.
    """
    histogram = value.histo
    filled = [place for place, count in enumerate(histogram.bucket) if count > 0]
    begin, end = (filled[0], filled[-1]) if filled else (0, -1)
    inner = histogram.bucket_limit[begin:end] if filled else []
    edges = [histogram.min, *inner, histogram.max] if filled else []
    yield HistogramOf(key=value.tag, step=step, ts=ts, edges=edges, counts=histogram.bucket[begin : end + 1])


def _histogram_tensor(value: Any, step: int, ts: int) -> Iterator[Part]:
    """Read a tensor of the shape (n, 3): left end, right end and count of each bucket."""
    buckets = _array(value).astype(float)
    edges = [*buckets[:, 0].tolist(), *buckets[-1:, 1].tolist()]
    yield HistogramOf(key=value.tag, step=step, ts=ts, edges=edges, counts=buckets[:, 2].tolist())


def _scalar_tensor(value: Any, step: int, ts: int) -> Iterator[dict[str, float]]:
    yield {value.tag: float(_array(value).item())}


def _text(value: Any, step: int, ts: int) -> Iterator[Part]:
    lines = [item.decode("utf-8", "replace") for item in _array(value).ravel().tolist()]
    yield Text(key=value.tag.removesuffix(_TEXT_SUFFIX), step=step, ts=ts, value="\n".join(lines))


def _image(value: Any, step: int, ts: int) -> Iterator[Part]:
    yield from _media(value.tag, step, ts, [Image(value.image.encoded_image_string).to_content()])


def _images(value: Any, step: int, ts: int) -> Iterator[Part]:
    """Read a tensor of strings: width, height, and the files."""
    yield from _media(value.tag, step, ts, [Image(data).to_content() for data in value.tensor.string_val[2:]])


def _audio(value: Any, step: int, ts: int) -> Iterator[Part]:
    yield from _media(value.tag, step, ts, [_sound(value.audio.encoded_audio_string)])


def _audios(value: Any, step: int, ts: int) -> Iterator[Part]:
    """Read a tensor of files, or of the shape (n, 2): each file with its label."""
    files = _array(value)
    yield from _media(value.tag, step, ts, list(map(_sound, (files[:, 0] if files.ndim == 2 else files).tolist())))


def _pr_curve(value: Any, step: int, ts: int) -> Iterator[Part]:
    """Read a tensor of the shape (6, thresholds), as a table like that of chiplog's SummaryWriter."""
    added, _ = METHODS["add_pr_curve_raw"](value.tag, *_array(value))
    yield from _media(value.tag, step, ts, [added[value.tag].to_content()])


def _sound(data: bytes) -> Content:
    return Content("audio", data, {"format": "wav", **wav_metadata(data)})


def _media(key: str, step: int, ts: int, contents: Sequence[Content]) -> Iterator[Part]:
    for number, content in enumerate(contents):
        metadata = {**content.metadata, **({"item": number} if len(contents) > 1 else {})}
        yield MediaOf(key=key, step=step, ts=ts, kind=content.kind, content=content.data, metadata=metadata)


def _hparams(value: Any, step: int, ts: int) -> Iterator[Part]:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
    match data.WhichOneof("data"):
        case "session_start_info":
            hparams = sorted(data.session_start_info.hparams.items())  # a map of protobuf has no order
            yield Config(values={name: _plain(hparam) for name, hparam in hparams}, ts=ts)
        case "session_end_info":
            info = data.session_end_info
            ended_us = _microseconds(info.end_time_secs, ts) if info.end_time_secs else None
            if info.status in _STATES:
                yield End(state=_STATES[info.status], ended_us=ended_us)
        case "experiment":  # which values hparams may have: add_hparams writes it beside those that they have
            pass
        case _:
            yield Unmapped(what="descriptions of hparams")


def _plain(value: Any) -> Any:
    """Return a google.protobuf.Value as plain values of JSON."""
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(value)


def _array(value: Any) -> Any:
    from tensorboard.util.tensor_util import make_ndarray

    return make_ndarray(value.tensor)


_READERS: dict[str | None, Callable[[Any, int, int], Iterator[Any]]] = {
    "histo": _histogram,
    "image": _image,
    "audio": _audio,
    "tensor of scalars": _scalar_tensor,
    "tensor of histograms": _histogram_tensor,
    "tensor of text": _text,
    "tensor of images": _images,
    "tensor of audio": _audios,
    "tensor of hparams": _hparams,
    "tensor of pr_curves": _pr_curve,
}
