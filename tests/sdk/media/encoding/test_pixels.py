"""Pixels of any type and range as bytes."""

from typing import Any

import numpy as np
import pytest

from chiplog.media.encoding.pixels import PIXEL_BYTES_MAX, Pixels, to_bytes, to_pixels
from chiplog.values.media_value import MediaError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "pixels", "metadata"),
    [
        ([0, 7, 255], [0, 7, 255], {}),
        ([-1, 7, 256], [0, 7, 255], {"n_clipped": 2}),
        ([True, False], [255, 0], {}),
        ([0.0, 0.5, 1.0], [0, 127, 255], {}),  # as W&B: floats of 0 … 1
        ([-1.0, 0.0, 1.0], [0, 127, 255], {}),  # of -1 … 1
        ([0.0, 1.9, 254.9], [0, 1, 254], {}),  # of 0 … 255
        ([-3.0, 300.0, 2.0], [0, 255, 2], {"n_clipped": 2}),
        ([NAN, 0.5, 1.0], [0, 127, 255], {"n_nan": 1}),
        ([NAN, -1.0, INF, 0.0, -INF], [0, 0, 255, 127, 0], {"n_nan": 1, "n_clipped": 2}),
    ],
)
def test_values_become_bytes(values: list[Any], pixels: list[int], metadata: dict[str, int]) -> None:
    found = to_bytes(np.array(values), normalize=True)
    assert (found.array.dtype, found.array.tolist(), found.metadata) == (np.uint8, pixels, metadata)


def test_without_normalize_floats_are_bytes_already() -> None:
    assert to_bytes(np.array([0.5, 1.0, 2.0, -0.5]), normalize=False).array.tolist() == [0, 1, 2, 0]


def test_narrow_floats_keep_their_range() -> None:
    assert to_bytes(np.array([0, 1], dtype=np.float16), normalize=True).array.tolist() == [0, 255]


def test_pixels_share_no_memory_with_their_source() -> None:
    source = np.zeros((4, 4), np.uint8)
    found = to_pixels(source, channels_first=False, normalize=True)
    source[:] = 9
    assert not found.array.any()


@pytest.mark.parametrize(
    ("shape", "channels_first", "result"),
    [
        ((2, 5), False, (2, 5)),
        ((2, 5, 1), False, (2, 5)),
        ((2, 5, 3), False, (2, 5, 3)),
        ((2, 5, 4), False, (2, 5, 4)),
        ((1, 2, 5), False, (2, 5)),
        ((1, 2, 5, 3), False, (2, 5, 3)),
        ((1, 2, 3), False, (1, 2, 3)),
        ((3, 2, 5), True, (2, 5, 3)),
        ((1, 2, 5), True, (2, 5)),
        ((1, 4, 2, 5), True, (2, 5, 4)),
        ((2, 5), True, (2, 5)),
    ],
)
def test_shapes_of_one_image(shape: tuple[int, ...], channels_first: bool, result: tuple[int, ...]) -> None:
    found: Pixels = to_pixels(np.zeros(shape), channels_first=channels_first, normalize=True)
    assert found.array.shape == result


@pytest.mark.parametrize(
    ("array", "channels_first", "reason"),
    [
        (np.zeros((1, 2, 3, 4, 5)), False, "log one image of (height, width)"),
        (np.zeros((2, 4, 4, 3)), False, "log one image of (height, width)"),
        (np.zeros(3), False, "log one image of (height, width)"),
        (np.zeros((0, 3)), False, "it has 0 pixels, its shape is (0, 3)"),
        (np.zeros((4, 4, 0)), False, "it has 0 pixels"),
        (np.zeros((3, 5, 5)), False, "an array is (height, width, channels), with 1, 3 or 4 channels"),
        (np.zeros((5, 5, 3)), True, "a tensor is (channels, height, width), with 1, 3 or 4 channels"),
        (np.zeros((5, 5, 2)), False, "with 1, 3 or 4 channels"),
        (np.full((3, 3), NAN), False, "none of its values is a finite number"),
        (np.zeros((3, 3), complex), False, "its values have the type complex128"),
        (np.zeros((3, 3), object), False, "its values have the type object"),
        (np.broadcast_to(np.uint8(0), (1, 65_501)), False, "it has 65501 x 1 pixels, which is too many; resize it"),
        (np.broadcast_to(np.uint8(0), (1 << 15, PIXEL_BYTES_MAX >> 14)), False, "too many; resize it"),
    ],
)
def test_what_is_not_an_image_is_refused(array: np.ndarray, channels_first: bool, reason: str) -> None:
    with pytest.raises(MediaError) as caught:
        to_pixels(array, channels_first=channels_first, normalize=True)
    assert reason in str(caught.value)
