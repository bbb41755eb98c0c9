"""Objects in three dimensions: files of meshes, and clouds of points as JSON."""

import json
import os
from collections.abc import Mapping
from typing import Any

from chiplog.media.encoding.arrays import host_array
from chiplog.media.encoding.captured import CapturedMedia, caption_metadata
from chiplog.media.encoding.files import is_path, read_file, read_stream
from chiplog.media.encoding.libraries import load_library
from chiplog.safety.lenient_calls import hide_unknown_arguments
from chiplog.safety.text import short_repr
from chiplog.values.media_value import Content, MediaError

_FORMATS = ("pts.json", "obj", "gltf", "glb", "babylon", "stl", "ply")  # W&B's, and PLY
_WIDTHS = (3, 4, 6)
_SCENE = "lidar/beta"  # W&B's name of points with boxes and vectors
_POINTS_MAX = 2_000_000  # as JSON they have about 30 bytes a number, and turning them into text takes seconds


class Object3D(CapturedMedia):
    """An object in three dimensions, logged as one value. It is read at once, and offered for download.

    Never raises: `log()` counts a value that cannot be stored, and says why in one line.

    Args:
        data_or_path: One of these.

            - The path of a file: obj, gltf, glb, babylon, stl, ply or pts.json.
            - An open file or bytes of such a file; `file_type` names the format.
            - Points, as an array of the shape (n, 3) with x, y, z; (n, 4) with a category from 1 to 14; or (n, 6) with
              red, green and blue from 0 to 255. Points with NaN or infinity are left out, and counted as `n_nan`.
            - A scene as W&B has it: {"type": "lidar/beta", "points": …, "boxes": …, "vectors": …}.
        caption: A text below the object.
        file_type: The format of an open file or bytes.

    Examples:
        >>> run.log({"cloud": chiplog.Object3D(points)})
    """

    @hide_unknown_arguments
    def __init__(
        self,
        data_or_path: Any = None,
        caption: str | None = None,
        file_type: str | None = None,
        *more: Any,
        **unknown: Any,
    ) -> None:
        self._data = b""
        self._metadata: dict[str, Any] = {}

        def read() -> None:
            self._read(data_or_path, file_type)
            self._metadata |= caption_metadata(caption)

        self._capture(data_or_path, read, more, unknown)

    @classmethod
    def from_file(cls, data_or_path: Any, file_type: str | None = None) -> "Object3D":
        """Return the object in a file.

        Args:
            data_or_path: A path, or an open file.
            file_type: The format of an open file.
        """
        return cls(data_or_path, file_type=file_type)

    @classmethod
    def from_numpy(cls, data: Any) -> "Object3D":
        """Return a cloud of points.

        Args:
            data: An array of the shape (n, 3), (n, 4) or (n, 6).
        """
        return cls(data)

    @classmethod
    def from_point_cloud(
        cls, points: Any, boxes: Any = (), vectors: Any = None, point_cloud_type: str = _SCENE
    ) -> "Object3D":
        """Return points with boxes and vectors around them.

        Args:
            points: An array of the shape (n, 3), (n, 4) or (n, 6).
            boxes: Dicts with eight "corners", a "label" and a "color".
            vectors: Dicts with a "start" and an "end".
            point_cloud_type: Only "lidar/beta".
        """
        return cls({"type": point_cloud_type, "points": points, "boxes": boxes, "vectors": vectors or ()})

    def _read(self, value: Any, file_type: str | None) -> None:
        if is_path(value):
            self._keep(read_file(value), _format_of(os.fsdecode(value)))
        elif isinstance(value, bytes | bytearray):
            self._keep(bytes(value), _format_of(f".{file_type}"))
        elif hasattr(value, "read"):
            name = getattr(value, "name", None)
            named = name if isinstance(name, str) and file_type is None else f".{file_type}"
            self._keep(read_stream(value), _format_of(named))
        elif isinstance(value, Mapping):
            self._read_scene(value)
        else:
            self._keep_json(self._read_points(value))

    def _keep(self, data: bytes, form: str) -> None:
        self._data, self._metadata["format"] = data, form

    def _keep_json(self, value: Any) -> None:
        self._keep(json.dumps(value, separators=(",", ":"), allow_nan=False).encode(), "pts.json")

    def _read_scene(self, scene: Mapping[str, Any]) -> None:
        if scene.get("type") != _SCENE:
            raise MediaError(f"a scene of type {short_repr(scene.get('type'))} is unknown; its type is {_SCENE!r}")
        points = scene.get("points")
        rest = {name: _plain(scene.get(name, ())) for name in ("boxes", "vectors")}
        has_points = points is not None and len(points) > 0
        self._keep_json({"type": _SCENE, "points": self._read_points(points) if has_points else [], **rest})

    def _read_points(self, value: Any) -> list[list[float]]:
        np = load_library("numpy", "numpy", "a cloud of points")
        array = host_array(value)
        if array is None or array.dtype.kind not in "iuf":
            kind = type(value).__name__
            raise MediaError(f"a value of type {kind} is not an object in 3D; log a path, or points as an array")
        if array.ndim != 2 or array.shape[1] not in _WIDTHS:
            raise MediaError(f"points have the shape {tuple(array.shape)}; log (n, 3), (n, 4) or (n, 6)")
        if len(array) > _POINTS_MAX:
            raise MediaError(f"it has {len(array)} points, the limit is {_POINTS_MAX}; log a sample of them")
        is_finite = np.isfinite(array).all(axis=1)
        if not is_finite.any():
            raise MediaError("it has no points that are finite numbers; log some")
        if n_nan := int(len(array) - is_finite.sum()):
            self._metadata["n_nan"] = n_nan
        self._metadata["n_points"] = int(is_finite.sum())
        found: list[list[float]] = array[is_finite].tolist()
        return found

    def _encode(self) -> Content:
        return Content("object3d", self._data, self._metadata)


def _format_of(path: str) -> str:
    for form in _FORMATS:
        if path.lower().endswith(f".{form}"):
            return form
    raise MediaError(f"the format of {short_repr(path)} is unknown; use a file of {', '.join(_FORMATS)}")


def _plain(value: Any) -> Any:
    """Return nested arrays, lists and dicts as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    array = host_array(value)
    if array is not None:
        return _plain(array.tolist())
    return value.item() if hasattr(value, "item") else value
