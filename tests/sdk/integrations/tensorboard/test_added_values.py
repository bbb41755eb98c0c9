"""What the methods of a SummaryWriter are given, as values that a run logs."""

import inspect
from typing import Any

import matplotlib
import numpy as np
import pytest
import tensorboardX
from matplotlib import pyplot

from chiplog.integrations.tensorboard.added_values import METHODS
from chiplog.media.audio import Audio
from chiplog.media.figure import Figure
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


def test_curves_are_those_of_the_event_file() -> None:
    labels, scores = np.array([0, 1, 0, 1, 1]), np.array([0.1, 0.4, 0.6, 0.8, 1.0])
    summary = tensorboardX.summary.pr_curve("a", labels, scores, 5).value[0].tensor
    wanted = np.array(summary.float_val).reshape([each.size for each in summary.tensor_shape.dim])
    [table] = METHODS["add_pr_curve"]("a", labels, scores, 1, 5)[0].values()
    assert [row[0] for row in table.data] == [0, 0.25, 0.5, 0.75, 1]
    np.testing.assert_allclose(np.array(table.data)[:, 1:].T, wanted, rtol=1e-6)


@pytest.mark.parametrize("more", [(1, "HWC", ["cat"]), ("HWC", ["cat"])], ids=["torch", "tensorboardX"])
def test_boxes_are_those_of_either_class(more: tuple[Any, ...]) -> None:
    given = np.zeros((8, 9, 3)), np.array([[1, 2, 3, 4]])
    [image] = METHODS["add_image_with_boxes"]("a", *given, 1, None, *more)[0].values()
    [box] = image.to_content().metadata["boxes"]["boxes"]["box_data"]
    assert box == {
        "position": {"minX": 1, "minY": 2, "maxX": 3, "maxY": 4},
        "domain": "pixel",
        "box_caption": "cat",
    }


def test_figures_are_drawn_and_closed() -> None:
    matplotlib.use("Agg")
    first, second = pyplot.figure(), pyplot.figure()
    for figure in (first, second):
        figure.add_subplot().plot([1, 2])
    [drawn] = METHODS["add_figure"]("a", [first], 1, close=False)[0].values()
    assert isinstance(drawn[0], Figure) and pyplot.fignum_exists(first.number)
    METHODS["add_figure"]("a", [first, second], 1)
    assert not pyplot.get_fignums()


def test_an_error_names_the_method_or_the_value() -> None:
    with pytest.raises(TypeError, match=r"add_scalar\(\) missing"):
        METHODS["add_scalar"]("a")
    with pytest.raises(TypeError, match="'x' is not an array"):
        METHODS["add_image"]("a", "x")


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
