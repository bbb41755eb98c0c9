"""Pixels of any type and range as bytes from 0 to 255."""

from dataclasses import dataclass
from typing import Any

from chiplog.media.encoding.libraries import load_library
from chiplog.values.media_value import MediaError

_CHANNELS = (1, 3, 4)
PIXEL_BYTES_MAX = 1 << 28  # of one array as bytes: more takes seconds to encode, and rarely fits in MEDIA_BYTES_MAX
_DIMENSION_MAX = 65_500  # of a side: Pillow's limit for JPEG


@dataclass(frozen=True, slots=True)
class Pixels:
    """Pixels as bytes.

    Args:
        array: uint8 of the shape (height, width), or (height, width, 3 or 4). It shares no memory with its source.
        metadata: n_nan and n_clipped, the numbers of values that could not be kept, if there are any.

    """

    array: Any
    metadata: dict[str, int]


def to_pixels(array: Any, *, channels_first: bool, normalize: bool) -> Pixels:
    """Convert an array of one image. Raises MediaError."""
    array = _arrange(array, channels_first)
    height, width = array.shape[:2]
    if max(height, width) > _DIMENSION_MAX or array.size > PIXEL_BYTES_MAX:
        raise MediaError(f"it has {width} x {height} pixels, which is too many; resize it")
    return to_bytes(array, normalize=normalize)


def to_bytes(array: Any, *, normalize: bool) -> Pixels:
    """Convert the values of an array of any shape to uint8. Raises MediaError.

    Floats between 0 and 1 are multiplied by 255, those between -1 and 1 are mapped to 0 and 255, as wandb 0.26 did for
    its argument of this name (0.31 has none, and cuts fractions off). Booleans become 0 and 255. Other numbers are
    clipped to 0 … 255, and those changed are counted. NaN becomes 0 and is counted.
    """
    np = load_library("numpy", "numpy", "an array")
    kind = array.dtype.kind
    if kind == "b":
        return Pixels(array.astype(np.uint8) * 255, {})
    if kind in "iu":
        if array.dtype == np.uint8:
            return Pixels(np.array(array, order="C"), {})
        n_clipped = int(((array < 0) | (array > 255)).sum())
        return Pixels(array.clip(0, 255).astype(np.uint8), {"n_clipped": n_clipped} if n_clipped else {})
    if kind != "f":
        raise MediaError(f"its values have the type {array.dtype}; log integers, floats or booleans")
    return _floats_to_bytes(np, array, normalize)


def _floats_to_bytes(np: Any, array: Any, normalize: bool) -> Pixels:
    low, high = array.min(), array.max()
    if np.isfinite(low) and np.isfinite(high):
        scaled, n_clipped = _scale(np, array, low, high, normalize)
        return Pixels(scaled, {"n_clipped": n_clipped} if n_clipped else {})
    is_finite = np.isfinite(array)
    if not is_finite.any():
        raise MediaError("none of its values is a finite number; log it when it has some")
    finite = array[is_finite]
    low, high = finite.min(), finite.max()
    scaled, n_clipped = _scale(np, np.where(is_finite, array, low), low, high, normalize)
    is_above = array == np.inf
    scaled[~is_finite] = 0
    scaled[is_above] = 255
    n_nan = int(np.isnan(array).sum())
    n_clipped += array.size - finite.size - n_nan
    return Pixels(scaled, {name: n for name, n in (("n_nan", n_nan), ("n_clipped", n_clipped)) if n})


def _scale(np: Any, array: Any, low: Any, high: Any, normalize: bool) -> tuple[Any, int]:
    """Return finite values as bytes, and how many were clipped."""
    if normalize and low >= 0 and high <= 1:
        return (array * 255).astype(np.uint8), 0
    if normalize and low >= -1 and high <= 1:
        return (127.5 * (array + 1)).astype(np.uint8), 0
    if low >= 0 and high <= 255:
        return array.astype(np.uint8), 0
    n_clipped = int(((array < 0) | (array > 255)).sum())
    return array.clip(0, 255).astype(np.uint8), n_clipped


def _arrange(array: Any, channels_first: bool) -> Any:
    """Return an array as (height, width) or (height, width, 3 or 4)."""
    shape = tuple(array.shape)
    while array.ndim > 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim == 3 and array.shape[0] == 1 and (channels_first or array.shape[-1] not in _CHANNELS):
        array = array[0]
    if array.ndim not in (2, 3):
        raise MediaError(f"it has the shape {shape}; log one image of (height, width) or (height, width, channels)")
    if 0 in array.shape:
        raise MediaError(f"it has 0 pixels, its shape is {shape}; log an image that has some")
    if array.ndim == 3:
        if array.shape[0 if channels_first else -1] not in _CHANNELS:
            order = (
                "a tensor is (channels, height, width)" if channels_first else "an array is (height, width, channels)"
            )
            raise MediaError(f"its shape is {shape}; {order}, with 1, 3 or 4 channels")
        if channels_first:
            array = array.transpose(1, 2, 0)
        if array.shape[-1] == 1:
            array = array[..., 0]
    return array
