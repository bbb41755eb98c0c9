"""The media classes as W&B has them, with the helpers that scripts call on them."""

from collections.abc import Mapping, Sequence
from typing import Any

from chiplog.integrations.wandb.errors import harmless
from chiplog.media import audio, figure, html, image, object3d, table, video
from chiplog.media.encoding.pictures import open_picture

# Public names of objects of W&B's classes that do nothing here: what only its server and its own files need.
_SERVERS = """
    bind_to_run captions cast encode file_is_set from_json get_media_subdir has_been_logged index_ref init_from_json
    inject_head is_bound path_is_reference resolve_ref seq_to_json set_fk set_pk to_data_array to_json type_mapping
    all_boxes all_captions all_masks guess_mode with_suffix
"""
_HARMLESS = frozenset(_SERVERS.split())


class WBValue:
    """Base of the classes, by which libraries ask whether a value is one."""

    def __getattr__(self, name: str) -> Any:
        """Return what does nothing in place of a helper that chiplog lacks, and say so once."""
        if name not in _HARMLESS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return harmless(f"{type(self).__name__}.{name}")


class Image(WBValue, image.Image):
    """`chiplog.Image`: floats between 0 and 1 are scaled, where wandb 0.31 makes the image black."""

    MAX_ITEMS = 108
    MAX_DIMENSION = 65_500

    @property
    def format(self) -> str:
        """The format of the file: png, jpeg, bmp …"""
        return self._format

    @property
    def image(self) -> Any:
        """The image as Pillow has it; None of a value that is no image."""
        if self._picture is not None:
            return self._picture
        return None if self._data is None else open_picture(self._data)

    def to_data_array(self) -> list[Any]:
        """Return the pixels as lists of rows."""
        found = self.image
        if found is None:
            return []
        pixels = list(getattr(found, "get_flattened_data", found.getdata)())  # its name since Pillow 12
        return [pixels[start : start + found.width] for start in range(0, len(pixels), found.width)]


class Table(WBValue, table.Table):
    """`chiplog.Table`. It stores all rows; the limits are there to be read and set."""

    MAX_ROWS = 10_000
    MAX_ARTIFACT_ROWS = 200_000


class Audio(WBValue, audio.Audio):
    """`chiplog.Audio`."""

    @classmethod
    def durations(cls, audio_list: Sequence["Audio"]) -> list[float | None]:
        """Return how long each is, in seconds; None where that is not known."""
        return [sound._metadata.get("duration_s") for sound in audio_list]

    @classmethod
    def sample_rates(cls, audio_list: Sequence["Audio"]) -> list[int | None]:
        """Return the samples per second of each; None where that is not known."""
        return [sound._metadata.get("sample_rate") for sound in audio_list]


class Video(WBValue, video.Video):
    """`chiplog.Video`."""

    EXTS = ("gif", "mp4", "webm", "ogg")


class Html(WBValue, html.Html):
    """`chiplog.Html`."""


class Object3D(WBValue, object3d.Object3D):
    """`chiplog.Object3D`."""


class Plotly(WBValue, figure.Figure):
    """`chiplog.Figure`: of plotly as JSON, of matplotlib as PNG."""

    @classmethod
    def make_plot_media(cls, val: Any) -> "Plotly":
        """Return the figure as one value."""
        return cls(val)


class Classes(WBValue):
    """Names of classes, as `Image(classes=)` takes them: [{"id": 1, "name": "cat"}]."""

    def __init__(self, class_set: Sequence[dict[str, Any]]) -> None:
        self._class_set = class_set

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Classes) and self._class_set == other._class_set

    __hash__ = None  # type: ignore[assignment]  # its list may change


class BoundingBoxes2D(WBValue, dict[str, Any]):
    """A layer of boxes, as `Image(boxes=)` takes it: {"box_data": […], "class_labels": {…}}. The key is not used."""

    def __init__(self, val: Mapping[str, Any], key: str = "") -> None:
        super().__init__(val)


class ImageMask(BoundingBoxes2D):
    """A mask, as `Image(masks=)` takes it: {"mask_data": ids, "class_labels": {…}}. The key is not used."""
