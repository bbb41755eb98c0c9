"""Media of a W&B run as parts of a run: what a row of its history says of them, and the files beside it."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chiplog.media.audio import Audio
from chiplog.media.html import Html
from chiplog.media.image import Image
from chiplog.media.object3d import Object3D
from chiplog.media.table import Table
from chiplog.media.video import Video
from chiplog.values.media_value import Content, MediaError
from chiplog_client.transfer.importers.imported_run import HistogramOf, MediaOf, Part, Unmapped
from chiplog_schemas.storage.content_files import invalid_path_reason

_LISTS = {"images/separated": "image-file", "object3D": "object3D-file", "images": "image-file"}
_LISTS_OF_DICTS = {"audio": "audio", "videos": "videos", "html": "html"}  # and where their items are
_CANNOT = "media that cannot be read"


def media_parts(key: str, step: int, ts: int, value: Mapping[str, Any], files: Path) -> Iterator[Part]:
    """Yield the parts that one value with a `_type` becomes. files: the run's directory of that name."""
    kind = value["_type"]
    if kind == "histogram":
        yield from _histogram(key, step, ts, value)
        return
    try:
        items = _items(kind, value)
        for number, item in enumerate(items):
            place = {"item": number} if kind in (*_LISTS, *_LISTS_OF_DICTS) else {}
            if item["_type"] not in _READERS:
                yield Unmapped(what=f"media of the type {item['_type']!r:.40}", example=key)
                continue
            yield from _of_content(key, step, ts, _READERS[item["_type"]](item, files), place)
    except (MediaError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        yield Unmapped(what=_CANNOT, example=f"{key} of step {step}: {error}")


def _of_content(key: str, step: int, ts: int, content: Content, place: dict[str, int]) -> Iterator[MediaOf]:
    for name, part in content.parts:
        yield from _of_content(f"{key}/{name}", step, ts, part, place)
    metadata = {**content.metadata, **place}
    yield MediaOf(key=key, step=step, ts=ts, kind=content.kind, content=content.data, metadata=metadata)


def _histogram(key: str, step: int, ts: int, value: Mapping[str, Any]) -> Iterator[Part]:
    try:
        counts = [float(count) for count in value["values"]]
        if packed := value.get("packedBins"):
            edges = [packed["min"] + packed["size"] * number for number in range(packed["count"] + 1)]
        else:
            edges = [float(edge) for edge in value["bins"]]
    except (KeyError, TypeError, ValueError) as error:
        yield Unmapped(what=_CANNOT, example=f"{key} of step {step}: {error}")
        return
    yield HistogramOf(key=key, step=step, ts=ts, edges=edges, counts=counts)


def _items(kind: str, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the single values of a list of media; the value itself if it is one."""
    if kind in _LISTS_OF_DICTS and isinstance(value.get(_LISTS_OF_DICTS[kind]), list):
        return [dict(item) for item in value[_LISTS_OF_DICTS[kind]]]
    if kind not in _LISTS:
        return [dict(value)]
    names = value["filenames"]
    columns = {"caption": value.get("captions"), "boxes": value.get("all_boxes"), "masks": value.get("all_masks")}
    return [
        {"_type": _LISTS[kind], "path": name}
        | {word: column[place] for word, column in columns.items() if column and column[place] is not None}
        for place, name in enumerate(names)
    ]


def _path_in(files: Path, name: str) -> Path:
    if (reason := invalid_path_reason(name)) is not None:
        raise MediaError(f"{name!r:.80}: {reason}")
    return files / name


def _image(item: Mapping[str, Any], files: Path) -> Content:
    boxes = {
        name: json.loads(_path_in(files, layer["path"]).read_text(encoding="utf-8"))
        for name, layer in _layers(item, "boxes").items()
    }
    masks = {name: {"path": str(_path_in(files, layer["path"]))} for name, layer in _layers(item, "masks").items()}
    path = _path_in(files, item["path"])
    return Image(str(path), caption=item.get("caption"), boxes=boxes or None, masks=masks or None).to_content()


def _layers(item: Mapping[str, Any], word: str) -> dict[str, dict[str, Any]]:
    """Return the layers over an image: a dict, or parts like `boxes/NAME/path`."""
    found: dict[str, dict[str, Any]] = {name: dict(layer) for name, layer in (item.get(word) or {}).items()}
    for place, part in item.items():
        if place.startswith(f"{word}/"):
            name, _, entry = place.removeprefix(f"{word}/").rpartition("/")
            found.setdefault(name, {})[entry] = part
    return found


def _audio(item: Mapping[str, Any], files: Path) -> Content:
    return Audio(str(_path_in(files, item["path"])), caption=item.get("caption")).to_content()


def _video(item: Mapping[str, Any], files: Path) -> Content:
    return Video(str(_path_in(files, item["path"])), caption=item.get("caption")).to_content()


def _html(item: Mapping[str, Any], files: Path) -> Content:
    return Html(_path_in(files, item["path"]), inject=False).to_content()


def _object3d(item: Mapping[str, Any], files: Path) -> Content:
    return Object3D(str(_path_in(files, item["path"])), caption=item.get("caption")).to_content()


def _plotly(item: Mapping[str, Any], files: Path) -> Content:
    return Content("figure", _path_in(files, item["path"]).read_bytes(), {"format": "plotly.json"})


def _table(item: Mapping[str, Any], files: Path) -> Content:
    table = json.loads(_path_in(files, item["path"]).read_text(encoding="utf-8"))
    return Table(columns=table["columns"], data=table["data"]).to_content()


_READERS: dict[str, Callable[[Mapping[str, Any], Path], Content]] = {
    "image-file": _image,
    "audio-file": _audio,
    "video-file": _video,
    "html-file": _html,
    "object3D-file": _object3d,
    "plotly-file": _plotly,
    "table-file": _table,
}
