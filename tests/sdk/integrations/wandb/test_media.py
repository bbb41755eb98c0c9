"""The media classes of W&B, with the helpers that scripts call."""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from chiplog.integrations import wandb
from chiplog.integrations.wandb.media import Audio, Classes, Html, Image, Object3D, Plotly, Table, Video, WBValue
from chiplog.values.media_value import MediaError

PIXELS = np.array([[[0.2, 0.9, 1.0], [254.9, 17.5, 128.0]]] * 2)


def pixels_of(image: Image) -> Any:
    return np.asarray(Pillow.open(BytesIO(image.to_content().data)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (PIXELS, [[0, 0, 1], [254, 17, 128]]),
        (torch.tensor(PIXELS).permute(2, 0, 1), [[0, 0, 1], [254, 17, 128]]),
        (PIXELS / 255, [[0, 0, 1], [254, 17, 128]]),
    ],
)
def test_floats_are_0_to_255_and_those_between_0_and_1_are_scaled(given: Any, expected: list[Any]) -> None:
    assert np.abs(pixels_of(Image(given))[0].astype(int) - expected).max() <= 1


def test_an_image_has_its_picture_format_and_pixels(tmp_path: Path) -> None:
    image = Image(PIXELS, caption="c", file_type="bmp")
    assert (image.image.size, image.format) == ((2, 2), "bmp")
    assert image.to_data_array() == [[(0, 0, 1), (254, 17, 128)]] * 2
    image.to_content()
    assert Image(image).image.size == Image(image.image).image.size == (2, 2)
    assert Image(PIXELS, mode="L").image.mode == "L"
    broken = Image(object())
    assert broken.image is None and broken.to_data_array() == []
    assert "is not an image" in broken._problem


def test_what_cannot_be_pixels_is_said_as_by_chiplog() -> None:
    assert "have the type" in Image(np.array([["a"]]))._problem
    assert "its shape is" in Image(np.zeros((3, 5, 7)))._problem
    for value in (np.nan, np.inf):
        with pytest.raises(MediaError, match="none of its values is a finite number; log it when it has some"):
            Image(np.full((4, 4), value)).to_content()


def test_helpers_of_tables_and_sounds() -> None:
    table = Table(columns=["a", "b"], data=[[1, 2]])
    table.add_data(3, 4)
    table.add_column("c", [5, 6])
    assert table.get_column("c", convert_to="numpy").tolist() == [5, 6]
    assert [row for _, row in table.iterrows()] == table.data == [[1, 2, 5], [3, 4, 6]]
    assert (table.get_index(), Table.MAX_ROWS, Table.MAX_ARTIFACT_ROWS) == ([0, 1], 10_000, 200_000)
    sounds = [Audio(np.zeros(80), sample_rate=8_000), Audio(b"")]
    assert (Audio.durations(sounds), Audio.sample_rates(sounds)) == ([0.01, None], [8_000, None])


def test_other_helpers_do_nothing_with_one_line_and_unknown_names_raise(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        Table(columns=["a"]).set_pk("a")
    assert capsys.readouterr().err.splitlines() == [
        "chiplog: wandb.Table.set_pk is not available: its calls do nothing and record nothing"
    ]
    with pytest.raises(AttributeError, match="has no attribute 'of_tomorrow'"):
        _ = Table().of_tomorrow


def test_classes_name_what_boxes_and_masks_show() -> None:
    classes = Classes([{"id": 1, "name": "cat"}])
    assert Image(PIXELS, classes=classes).to_content().metadata["classes"] == {"1": "cat"}
    assert classes == Classes([{"id": 1, "name": "cat"}]) and classes != Classes([])


def test_layers_of_boxes_and_masks_have_classes() -> None:
    position = {"minX": 0.1, "maxX": 0.2, "minY": 0.3, "maxY": 0.4}
    boxes = wandb.data_types.BoundingBoxes2D({"box_data": [{"position": position, "class_id": 1}]}, "truth")
    mask = wandb.data_types.ImageMask({"mask_data": np.zeros((2, 2), int), "class_labels": {0: "sky"}}, "truth")
    content = Image(PIXELS, boxes={"truth": boxes}, masks={"truth": mask}).to_content()
    assert content.metadata["boxes"]["truth"]["box_data"] == [{"position": position, "class_id": 1}]
    assert content.parts[0][1].metadata["class_labels"] == {"0": "sky"}
    assert isinstance(boxes, WBValue) and issubclass(wandb.data_types.ImageMask, wandb.data_types.WBValue)


def test_a_figure_is_logged_by_the_name_plotly() -> None:
    class Figure:
        def to_plotly_json(self) -> dict[str, Any]:
            return {}

        def to_json(self) -> str:
            return "{}"

    assert Plotly.make_plot_media(Figure()).to_content().metadata == {"format": "plotly.json"}


@pytest.mark.parametrize("kind", [Audio, Html, Image, Object3D, Plotly, Table, Video])
def test_each_class_is_chiplogs_and_survives_pickling(kind: type[Any]) -> None:
    base = next(base for base in kind.__mro__ if base.__module__.startswith("chiplog.media."))
    assert isinstance(kind(None), WBValue) and issubclass(kind, base)
    assert type(pickle.loads(pickle.dumps(kind(None)))) is kind
    assert getattr(wandb, kind.__name__) is getattr(wandb.data_types, kind.__name__) is kind
