"""Sort the dict of a `log()` by what becomes of its values: numbers, values on a device, and events of their own."""

import struct
from collections.abc import Callable, Mapping
from typing import Any

from chiplog.recording.log.logged_keys import LoggedKeys
from chiplog.safety.diagnostics import Diagnostic
from chiplog.values.media_value import MediaValue
from chiplog.values.metrics import DeviceScalar, Histogram, Media, flatten
from chiplog_schemas.model.events import EventKind


class DictSorter:
    """Sorts the dicts of one label.

    emit: called with the kind and the fields of an event. log_media: called with the step, the key and the value.
    report: called for what is bad.
    """

    def __init__(
        self,
        keys: LoggedKeys,
        emit: Callable[..., None],
        log_media: Callable[[int, str, Media], None],
        report: Callable[[Diagnostic], None],
    ) -> None:
        self._keys = keys
        self._emit = emit
        self._log_media = log_media
        self._report = report

    def sort(self, data: Mapping[str, Any], step: int) -> tuple[dict[str, float], dict[str, Any]]:
        """Emit texts, histograms and media, report what is bad; return the numbers and the tensors on devices."""
        numbers: dict[str, float] = {}
        on_device: dict[str, Any] = {}
        for item in flatten(data, self._keys.exceeds_limit):
            if isinstance(item, Diagnostic):
                self._report(item)
                continue
            key, value = item
            if not self._keys.register(key):
                continue
            if key in numbers or key in on_device:
                message = f"{key!r:.80} appears twice in one log(), nested and with a slash; the later one is kept"
                self._report(Diagnostic("same_key", key, f"{message}, so rename one"))
            if isinstance(value, str):
                self._emit(EventKind.TEXT, step, key, value)
            elif isinstance(value, DeviceScalar):
                on_device[key] = value.tensor
            elif isinstance(value, Histogram):
                edges, counts = value.edges, value.counts
                packed = struct.pack(f"<{len(edges)}d", *edges), struct.pack(f"<{len(counts)}d", *counts)
                self._emit(EventKind.HISTOGRAM, step, key, *packed)
            elif isinstance(value, MediaValue | tuple):
                self._log_media(step, key, value)
            else:
                numbers[key] = value
        return numbers, on_device
