"""Print what TensorBoard's own reader finds below a log directory, as JSON: for each run its values, by kind."""

import hashlib
import json
import sys
from importlib.metadata import version
from typing import Any

from tensorboard.backend.event_processing.directory_watcher import DirectoryWatcher
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.io_wrapper import GetLogdirSubdirectories, IsSummaryEventsFile
from tensorboard.util.tensor_util import make_ndarray


def read(directory: str) -> dict[str, list[Any]]:
    """Return the values of one run, each as key, step, microseconds and value."""
    found: dict[str, list[Any]] = {"scalars": [], "text": [], "histograms": [], "images": [], "audio": []}
    plugins: dict[str, str] = {}
    for event in DirectoryWatcher(directory, EventFileLoader, IsSummaryEventsFile).Load():
        for value in event.summary.value:
            plugin = plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
            if plugin in found:
                place = value.tag, event.step, round(event.wall_time * 1e6)
                found[plugin] += [(*place, read) for read in _values(plugin, make_ndarray(value.tensor))]
    return found


def _values(plugin: str, array: Any) -> list[Any]:
    match plugin:
        case "scalars":
            return [repr(float(array.item()))]
        case "text":
            return [text.decode() for text in array.ravel()]
        case "histograms":
            return [array.tolist()]
        case "images":
            return [hashlib.sha256(data).hexdigest() for data in array[2:]]
        case _:
            return [hashlib.sha256(data).hexdigest() for data in array]


root = sys.argv[1]
runs = {directory: read(directory) for directory in GetLogdirSubdirectories(root)}
print(json.dumps({"version": version("tensorboard"), "runs": runs}))
