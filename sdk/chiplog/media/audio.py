"""Sound: samples as WAV, or the bytes of a file."""

import io
import wave
from typing import Any

from chiplog.media.encoding.arrays import host_array, is_tensor
from chiplog.media.encoding.captured import CapturedMedia, caption_metadata
from chiplog.media.encoding.files import extension_of, is_path, read_file
from chiplog.media.encoding.libraries import load_library
from chiplog.safety.lenient_calls import hide_unknown_arguments
from chiplog.values.media_value import Content, MediaError

_CHANNELS_MAX = 64  # more is a transposed array
_RATE_MAX = 1_000_000  # per second; WAV holds its product with the bytes of a frame in 32 bits
_SIZES = {"uint8": 1, "int16": 2, "int32": 4}  # bytes of a sample in WAV
_FORMATS = ("wav", "flac", "ogg", "mp3")


class Audio(CapturedMedia):
    """A sound, logged as one value. It is read at once: later changes of the array or file are not logged.

    Never raises: `log()` counts a value that cannot be stored, and says why in one line.

    Args:
        data_or_path: One of these.

            - Samples, as an array of the shape (frames,) or (frames, channels), or a tensor of torch of the shape
              (frames,) or (channels, frames). Floats from -1 to 1 become 16 bits: those outside are clipped, NaN
              becomes 0, and the metadata count both as `n_clipped` and `n_nan`. int16, int32 and uint8 are stored as
              they are, other integers as int16 if they fit.
            - The path of a file of any format, whose bytes are stored.
        sample_rate: Frames per second, in Hz. Arrays need it.
        caption: A text below the sound.
        file_type: wav, or with the package soundfile flac, ogg or mp3, for arrays.

    Examples:
        >>> run.log({"speech": chiplog.Audio(samples, sample_rate=16_000)})
    """

    @hide_unknown_arguments
    def __init__(
        self,
        data_or_path: Any = None,
        sample_rate: int | None = None,
        caption: str | None = None,
        file_type: str = "wav",
        *more: Any,
        **unknown: Any,
    ) -> None:
        self._data: bytes | None = None
        self._samples: Any = None
        self._metadata: dict[str, Any] = {}

        def read() -> None:
            if is_path(data_or_path):
                self._keep(read_file(data_or_path), extension_of(data_or_path), sample_rate)
            else:
                self._read_samples(data_or_path, sample_rate, file_type)
            self._metadata |= caption_metadata(caption)

        self._capture(data_or_path, read, more, unknown)

    def _keep(self, data: bytes, form: str, sample_rate: int | None) -> None:
        self._data = data
        self._metadata = {"format": form} | ({} if sample_rate is None else {"sample_rate": int(sample_rate)})
        if form == "wav":
            self._metadata |= wav_metadata(data)

    def _read_samples(self, value: Any, sample_rate: Any, file_type: str) -> None:
        np = load_library("numpy", "numpy", "an array")
        form = str(file_type).lower()
        if form not in _FORMATS:
            raise MediaError(f"file_type {file_type!r:.20} is unknown; use one of {', '.join(_FORMATS)}")
        array = host_array(value)
        if array is None:
            raise MediaError(f"a value of type {type(value).__name__} is not a sound; log samples or a path")
        if sample_rate is None:
            raise MediaError("sample_rate is missing; give the frames per second, as in Audio(samples, 16_000)")
        rate = int(sample_rate)
        if not 0 < rate <= _RATE_MAX:
            raise MediaError(f"sample_rate is {rate}; give the frames per second, from 1 to {_RATE_MAX}")
        samples = _arrange(array, is_tensor(value))
        self._samples, counts = _to_integers(np, samples)
        if form != "wav":
            load_library("soundfile", "soundfile", f"a sound as {form}")
        self._metadata = {"format": form, **_described(rate, *self._samples.shape), **counts}

    def _encode(self) -> Content:
        if self._data is None:
            rate, form = self._metadata["sample_rate"], self._metadata["format"]
            self._data = _to_wav(self._samples, rate) if form == "wav" else _to_other(self._samples, rate, form)
            self._samples = None
        return Content("audio", self._data, self._metadata)


def wav_metadata(data: bytes) -> dict[str, Any]:
    """Return what the header of a WAV file says; nothing of floats and compressed WAV, or of other files."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            return _described(file.getframerate(), file.getnframes(), file.getnchannels())
    except (wave.Error, EOFError, ZeroDivisionError):
        return {}


def _described(rate: int, n_frames: int, n_channels: int) -> dict[str, Any]:
    return {"sample_rate": rate, "n_channels": n_channels, "duration_s": n_frames / rate}


def _arrange(array: Any, channels_first: bool) -> Any:
    """Return samples as (frames, channels)."""
    if array.ndim not in (1, 2) or 0 in array.shape:
        raise MediaError(f"samples have the shape {tuple(array.shape)}; log (frames,) or (frames, channels)")
    if array.ndim == 1:
        return array[:, None]
    array = array.T if channels_first else array
    if array.shape[1] > _CHANNELS_MAX:
        raise MediaError(
            f"the sound has {array.shape[1]} channels; log (frames, channels), a tensor the other way round"
        )
    return array


def _to_integers(np: Any, array: Any) -> tuple[Any, dict[str, int]]:
    """Return samples as integers that WAV holds, sharing no memory, and how many could not be kept."""
    kind = array.dtype.kind
    if str(array.dtype) in _SIZES:
        return np.array(array, order="C"), {}
    if kind in "iu":
        if array.min() < -(1 << 15) or array.max() >= 1 << 15:
            raise MediaError(
                f"samples of type {array.dtype} do not fit 16 bits; log int16, int32, or floats from -1 to 1"
            )
        return array.astype(np.int16), {}
    if kind != "f":
        raise MediaError(f"samples have the type {array.dtype}; log floats from -1 to 1, or int16")
    if not np.isfinite(array).any():
        raise MediaError("none of its values is a finite number; log it when it has some")
    is_nan = np.isnan(array)
    n_nan, n_clipped = int(is_nan.sum()), int((np.abs(array) > 1).sum())
    whole = np.where(is_nan, 0, array).clip(-1, 1) * np.float32((1 << 15) - 1)
    counts = {name: n for name, n in (("n_nan", n_nan), ("n_clipped", n_clipped)) if n}
    return np.rint(whole).astype(np.int16), counts


def _to_wav(samples: Any, rate: int) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(_SIZES[str(samples.dtype)])
        file.setframerate(rate)
        file.writeframes(samples.astype(samples.dtype.newbyteorder("<")).tobytes())
    return buffer.getvalue()


def _to_other(samples: Any, rate: int, form: str) -> bytes:
    soundfile = load_library("soundfile", "soundfile", f"a sound as {form}")
    if str(samples.dtype) == "uint8":
        samples = (samples.astype("int16") - 128) << 8
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=form.upper())
    return buffer.getvalue()
