"""A run as event files of TensorBoard: a directory for each label, which TensorBoard shows as a run."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from chiplog_client.transfer.export_format import directory_name
from chiplog_client.transfer.exporters.run_rows import HistogramRow, LogCall, MediaRow, RunRows, Value

TABLES = ("metrics", "texts", "histograms", "media")
_IMAGE = "image"
_VERSION = "brain.Event:2"  # of event files (tensorboard/summary/writer/event_file_writer.py)


class MissingLibraryError(Exception):
    """TensorBoard is not installed. The text names the remedy."""


def require_tensorboard() -> None:
    """Raise MissingLibraryError without TensorBoard."""
    try:
        import tensorboard.compat.proto.event_pb2
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise MissingLibraryError(
            f"event files are written by TensorBoard, which cannot be imported ({error}); "
            "pip install 'chiplog[tensorboard]'"
        ) from error


def write_event_files(
    rows: RunRows, directory: Path, read_content: Callable[[str], bytes | None]
) -> tuple[Counter[str], Counter[str]]:
    """Write the values of a run. Return the numbers by noun of what was written, and of what was left out.

    read_content: returns a content by its SHA-256, None if the collector does not have it.
    """
    from tensorboard.summary.writer.record_writer import RecordWriter

    written = Counter(points=0, texts=0, histograms=0, images=0)
    left_out: Counter[str] = Counter()
    for label, calls in groupby(rows.calls(*TABLES), key=lambda call: call.label):
        place = directory / directory_name(label)
        place.mkdir()
        summaries = _Summaries(read_content, written, left_out)
        first = next(calls)
        with open(place / f"events.out.tfevents.{first.us // 1_000_000}.chiplog", "wb") as file:
            records = RecordWriter(file)
            for event in summaries.events(first, calls):
                records.write(event.SerializeToString())
            records.flush()
            os.fsync(file.fileno())
    return written, left_out


class _Summaries:
    """The events of one label."""

    def __init__(
        self, read_content: Callable[[str], bytes | None], written: Counter[str], left_out: Counter[str]
    ) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2

        self._event, self._summary, self._types = event_pb2.Event, summary_pb2, types_pb2
        self._tensor, self._shape = tensor_pb2.TensorProto, tensor_shape_pb2.TensorShapeProto
        self._read_content = read_content
        self._written = written
        self._left_out = left_out
        self._plugins: dict[str, str] = {}  # by tag

    def events(self, first: LogCall, calls: Iterator[LogCall]) -> Iterator[Any]:
        """Yield the events of a file. first: the first call."""
        yield self._event(wall_time=first.us / 1e6, file_version=_VERSION)
        for (step, is_image, _), grouped in groupby(chain([first], calls), key=_place_of):
            same = list(grouped)
            values = self._images(same) if is_image else [self._value(*one) for call in same for one in call.values]
            if values := [value for value in values if value is not None]:
                yield self._event(wall_time=same[0].us / 1e6, step=step, summary=self._summary.Summary(value=values))

    def _value(self, key: str, value: Value) -> Any:
        if isinstance(value, float):
            self._written["points"] += 1
            # float32: TensorBoard shows no number of a tensor of float64 (2.21, with its data server).
            return self._summary.Summary.Value(tag=self._tag_of(key, "scalars"), simple_value=value)
        if isinstance(value, str):
            self._written["texts"] += 1
            return self._tagged(key, "text", self._types.DT_STRING, [1], string_val=[_bytes(value)])
        if isinstance(value, HistogramRow):
            self._written["histograms"] += 1
            left, right, counts = value.edges[:-1], value.edges[1:], value.counts
            numbers = [number for bucket in zip(left, right, counts, strict=True) for number in bucket]
            return self._tagged(key, "histograms", self._types.DT_DOUBLE, [len(counts), 3], double_val=numbers)
        self._left_out[f"media of kind {value.kind}"] += 1
        return None

    def _images(self, calls: list[LogCall]) -> list[Any]:
        """Return the images of one name and step as one value: width, height, and the files."""
        files: list[bytes] = []
        width = height = 0
        for call in calls:
            for _, image in call.values:
                assert isinstance(image, MediaRow)
                data = self._read_content(image.sha256) if image.is_stored else None
                if data is None:
                    self._left_out["images that the collector does not have"] += 1
                    continue
                files.append(data)
                width, height = (width or image.metadata.get("width", 0)), (height or image.metadata.get("height", 0))
        if not files:
            return []
        self._written["images"] += len(files)
        strings = [str(width).encode(), str(height).encode(), *files]
        key = calls[0].values[0][0]
        return [self._tagged(key, "images", self._types.DT_STRING, [len(strings)], string_val=strings)]

    def _tagged(self, key: str, plugin: str, dtype: int, shape: list[int], **values: Any) -> Any:
        """Return a tensor of a plugin of TensorBoard, under a tag."""
        dimensions = [self._shape.Dim(size=size) for size in shape]
        tensor = self._tensor(dtype=dtype, tensor_shape=self._shape(dim=dimensions), **values)
        n_tags = len(self._plugins)
        tag = self._tag_of(key, plugin)
        if len(self._plugins) == n_tags:  # the first value of a tag has its metadata
            return self._summary.Summary.Value(tag=tag, tensor=tensor)
        # TensorBoard derives the class of the data from these plugins' names (tensorboard/dataclass_compat.py).
        data = self._summary.SummaryMetadata.PluginData(plugin_name=plugin)
        metadata = self._summary.SummaryMetadata(plugin_data=data)
        return self._summary.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)

    def _tag_of(self, key: str, plugin: str) -> str:
        """Return the tag of a name: another one for its values of another kind, because a tag has one plugin."""
        tag = _bytes(key).decode()
        if self._plugins.setdefault(tag, plugin) != plugin:
            tag = f"{tag}/{plugin}"
            self._plugins.setdefault(tag, plugin)
        return tag


def _place_of(call: LogCall) -> tuple[int, bool, object]:
    """Return what the calls of one event share: images of one name and step are one value, others an event each."""
    [(key, value), *_] = call.values
    is_image = isinstance(value, MediaRow) and value.kind == _IMAGE
    return call.step, is_image, key if is_image else call


def _bytes(text: str) -> bytes:
    """Return a text as UTF-8, which protobuf requires."""
    return text.encode("utf-8", "backslashreplace")
