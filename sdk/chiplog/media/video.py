"""Videos: frames encoded by ffmpeg or Pillow, or the bytes of a file."""

import io
import os
import subprocess
import tempfile
from collections.abc import Iterable
from typing import Any

from chiplog.media.encoding.arrays import host_array
from chiplog.media.encoding.captured import CapturedMedia, caption_metadata
from chiplog.media.encoding.files import extension_of, is_path, read_file, read_stream
from chiplog.media.encoding.libraries import load_library
from chiplog.media.encoding.pictures import pillow
from chiplog.media.encoding.pixels import to_bytes
from chiplog.safety.lenient_calls import hide_unknown_arguments
from chiplog.values.media_value import Content, MediaError

# By ffmpeg, whose other presets take three to six times as long. Browsers play the first two.
_CODECS = {
    "mp4": ("libx264", "-preset", "veryfast"),
    "webm": ("libvpx-vp9", "-deadline", "realtime", "-cpu-used", "8", "-row-mt", "1"),
    "ogg": ("libtheora",),
}
_ANIMATED = {"gif": "GIF", "webp": "WEBP"}  # by Pillow
_FORMATS = (*_CODECS, *_ANIMATED)
_FRAME_BYTES_MAX = 1 << 28  # of all frames as bytes: encoding more takes the training tens of seconds
_FFMPEG_WAIT_S = 60.0  # the training waits for it: it must end
_FPS = 4  # W&B's
_FPS_MAX = 1_000


class Video(CapturedMedia):
    """A video, logged as one value. It is read at once: later changes of the array or file are not logged.

    Never raises: `log()` counts a value that cannot be stored, and says why in one line. `log()` encodes the frames,
    which takes up to half a second for a million pixels of noise; ffmpeg runs as a process of its own then.

    Args:
        data_or_path: One of these.

            - Frames, as an array or tensor of the shape (frames, channels, height, width), with 1, 3 or 4 channels.
              (batch, frames, channels, height, width) is drawn side by side. Values as those of `Image`.
            - The path of a file: mp4, webm, ogg, gif or webp, whose bytes are stored.
            - An open file or bytes of such a file; `format` names its format.
        caption: A text below the video.
        fps: Frames per second of an array; 4 if it is not given.
        format: mp4, webm or ogg by the package imageio-ffmpeg, gif or webp by Pillow. Arrays become mp4 if
            imageio-ffmpeg is installed, else webp.

    Examples:
        >>> run.log({"episode": chiplog.Video(frames, fps=30)})
    """

    @hide_unknown_arguments
    def __init__(
        self,
        data_or_path: Any = None,
        caption: str | None = None,
        fps: float | None = None,
        format: str | None = None,
        *more: Any,
        **unknown: Any,
    ) -> None:
        self._data: bytes | None = None
        self._frames: Any = None
        self._metadata: dict[str, Any] = {}

        def read() -> None:
            if is_path(data_or_path):
                self._keep(read_file(data_or_path), _known(extension_of(data_or_path), data_or_path))
            elif isinstance(data_or_path, bytes | bytearray):
                self._keep(bytes(data_or_path), _known(format, "the bytes"))
            elif hasattr(data_or_path, "read"):
                self._keep(read_stream(data_or_path), _known(format, "the open file"))
            else:
                self._read_frames(data_or_path, fps, format)
            self._metadata |= caption_metadata(caption)

        self._capture(data_or_path, read, more, unknown)

    def _keep(self, data: bytes, form: str) -> None:
        self._data, self._metadata = data, {"format": form}

    def _read_frames(self, value: Any, fps: float | None, form: str | None) -> None:
        form = _default_format() if form is None else _known(form, "the frames")
        rate = float(_FPS if fps is None else fps)
        if not 0 < rate <= _FPS_MAX:
            raise MediaError(f"fps is {rate}; give the frames per second, from above 0 to {_FPS_MAX}")
        array = host_array(value)
        if array is None:
            raise MediaError(f"a value of type {type(value).__name__} is not a video; log frames or a path")
        frames = _arrange(array)
        if form in _ANIMATED:
            pillow()
        else:
            load_library("imageio_ffmpeg", "imageio-ffmpeg", f"a video as {form}")
        pixels = to_bytes(frames, normalize=True)
        self._frames = pixels.array
        n_frames, height, width = self._frames.shape[:3]
        size = {"width": width, "height": height, "n_frames": n_frames, "fps": rate}
        self._metadata = {"format": form, **size, **pixels.metadata}

    def _encode(self) -> Content:
        if self._data is None:
            form, rate = self._metadata["format"], self._metadata["fps"]
            self._data = _animate(self._frames, rate, form) if form in _ANIMATED else _film(self._frames, rate, form)
            self._frames = None
        return Content("video", self._data, self._metadata)


def _known(form: Any, what: Any) -> str:
    found = str(form or "").lower()
    if found not in _FORMATS:
        formats = ", ".join(_FORMATS)
        raise MediaError(f"{what!s:.60} has the format {found or 'of no name'}; use one of {formats}")
    return found


def _default_format() -> str:
    try:
        load_library("imageio_ffmpeg", "imageio-ffmpeg", "a video")
    except MediaError:
        return "webp"
    return "mp4"


def _arrange(array: Any) -> Any:
    """Return frames as (frames, height, width, 3)."""
    shape = tuple(array.shape)
    order = "(frames, channels, height, width) with 1, 3 or 4 channels"
    if array.ndim not in (4, 5) or array.shape[-3] not in (1, 3, 4):
        raise MediaError(f"it has the shape {shape}; log {order}")
    if 0 in shape:
        raise MediaError(f"it has 0 frames or pixels, its shape is {shape}; log some")
    if array.size > _FRAME_BYTES_MAX:
        raise MediaError(f"it has {array.size} values, the limit is {_FRAME_BYTES_MAX}; log fewer or smaller frames")
    if array.ndim == 5:  # one beside the other
        array = array.transpose(1, 2, 3, 0, 4).reshape(*shape[1:4], shape[0] * shape[4])
    array = array.transpose(0, 2, 3, 1)
    return array.repeat(3, axis=-1) if array.shape[-1] == 1 else array[..., :3]


def _animate(frames: Any, rate: float, form: str) -> bytes:
    image = pillow()
    pictures: Iterable[Any] = map(image.fromarray, frames)
    if form == "gif":  # each frame has 256 colours; Pillow's own choice of them takes ten times as long
        pictures = (
            picture.quantize(method=image.Quantize.FASTOCTREE, dither=image.Dither.NONE) for picture in pictures
        )
    first, *others = pictures
    buffer = io.BytesIO()
    first.save(buffer, _ANIMATED[form], save_all=True, append_images=others, duration=round(1_000 / rate), loop=0)
    return buffer.getvalue()


def _film(frames: Any, rate: float, form: str) -> bytes:
    """Return what ffmpeg makes of frames. It writes into a file, whose header it completes at the end."""
    np = load_library("numpy", "numpy", "a video")
    ffmpeg = load_library("imageio_ffmpeg", "imageio-ffmpeg", f"a video as {form}")
    height, width = frames.shape[1:3]
    # Half the resolution for colours needs even sides.
    frames = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    frames = np.ascontiguousarray(frames)
    height, width = frames.shape[1:3]
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{rate:.6f}", "-i", "-"]
    written = ["-an", "-c:v", *_CODECS[form], "-pix_fmt", "yuv420p"]
    with tempfile.TemporaryDirectory(prefix="chiplog-video-") as folder:
        path = os.path.join(folder, f"video.{form}")
        command = [ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *given, *written, path]
        try:
            done = subprocess.run(command, input=frames.data, capture_output=True, timeout=_FFMPEG_WAIT_S)
        except subprocess.TimeoutExpired:
            raise MediaError(f"ffmpeg took longer than {_FFMPEG_WAIT_S:g} s; log fewer or smaller frames") from None
        if done.returncode:
            message = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"status {done.returncode}"]
            raise MediaError(f"ffmpeg failed: {message[-1][:200]}; use another format, such as webp")
        return read_file(path)
