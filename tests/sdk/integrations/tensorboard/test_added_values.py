"""What the methods of a SummaryWriter are given, as values that a run logs."""

import inspect

import numpy as np
import pytest
import tensorboardX

from chiplog.integrations.tensorboard.added_values import METHODS
from chiplog.media.audio import Audio
from chiplog.media.image import Image
from chiplog.media.video import Video
from chiplog.values.metrics import Histogram


@pytest.mark.parametrize("name", METHODS)
def test_arguments_are_those_of_the_class(name: str) -> None:
    theirs = list(inspect.signature(getattr(tensorboardX.SummaryWriter, name)).parameters)[1:]
    for own, parameter in inspect.signature(METHODS[name]).parameters.items():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            assert own == theirs.pop(0)


def test_scalars_histograms_and_texts() -> None:
    assert METHODS["add_scalar"]("a", 0.1, 3, 99.0) == ({"a": 0.1}, 3)
    assert METHODS["add_scalars"]("a", {"b": 1, "c": 2}) == ({"a/b": 1, "a/c": 2}, None)
    assert METHODS["add_text"]("a", "words", 1) == ({"a": "words"}, 1)
    [histogram] = METHODS["add_histogram"]("a", np.arange(10), 1)[0].values()
    assert isinstance(histogram, Histogram) and sum(histogram.counts) == 10
    raw, step = METHODS["add_histogram_raw"]("a", 0, 4, 3, 6, 14, [1.0, 4.0], [1, 2], global_step=5)
    assert (raw, step) == ({"a": Histogram([0.0, 1.0, 4.0], [1, 2])}, 5)


def test_hyperparameters_are_not_values_and_the_step_is_the_last_argument() -> None:
    assert METHODS["add_hparams"]({"lr": 1}, {"m": 2.0}, None, "name", 7) == ({"m": 2.0}, 7)
    assert METHODS["add_hparams"]({"lr": 1}, {"m": 2.0}, "name", 7) == ({"m": 2.0}, 7)
    assert METHODS["add_hparams"]({"lr": 1}, {"m": 2.0}, "name") == ({"m": 2.0}, None)
    assert METHODS["add_hparams"]({"lr": 1}, {"m": 2.0}, global_step=7, name="x") == ({"m": 2.0}, 7)


def test_pixels_are_those_of_the_event_file_in_each_order_of_axes() -> None:
    pixels = np.random.default_rng(1).random((3, 4, 5))
    expected = Image((pixels * 255).astype("uint8").transpose(1, 2, 0))
    [first] = METHODS["add_image"]("a", pixels, 1)[0].values()
    [second] = METHODS["add_image"]("a", pixels.transpose(2, 1, 0), 1, dataformats="WHC")[0].values()
    [[third]] = METHODS["add_images"]("a", pixels[None], 1)[0].values()
    assert isinstance(first, Image)
    assert _bytes(first) == _bytes(second) == _bytes(third) == _bytes(expected)
    [grey] = METHODS["add_image"]("a", np.zeros((4, 5), "uint8"), dataformats="HW")[0].values()
    assert isinstance(grey, Image)


def test_videos_and_sounds_are_media() -> None:
    [video] = METHODS["add_video"]("a", np.zeros((1, 2, 3, 8, 8)), 1, fps=2)[0].values()
    [audio] = METHODS["add_audio"]("a", np.zeros((1, 100)), 1, 8_000)[0].values()
    assert isinstance(video, Video) and isinstance(audio, Audio)


def _bytes(image: Image) -> bytes:
    return bytes(image.to_content().data)
