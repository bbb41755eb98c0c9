"""Boxes, classes and masks of an image."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from chiplog.media.overlays import read_boxes, read_classes, read_masks
from chiplog.values.media_value import MediaError

CORNERS = {"minX": 0.1, "maxX": 0.2, "minY": 0.3, "maxY": 0.4}


def test_classes_are_lists_dicts_or_objects_of_wandb() -> None:
    class Classes:
        _class_set = ({"id": 1, "name": "cat"},)

    for given in ([{"id": 1, "name": "cat"}], {1: "cat"}, Classes()):
        assert read_classes(given) == {"1": "cat"}
    with pytest.raises(MediaError, match="its classes are no list"):
        read_classes([1])


def test_boxes_become_plain_values() -> None:
    middle = {"middle": torch.tensor([150, 20]), "width": np.float32(68), "height": 112}
    boxes = [
        {"position": CORNERS, "class_id": np.int64(1), "scores": {"iou": torch.tensor(0.5)}, "box_caption": "a cat"},
        {"position": middle, "domain": "pixel", "class_id": 3},
    ]
    read = read_boxes({"predictions": {"box_data": boxes}, "truth": [{"position": CORNERS}]})
    assert read == {
        "predictions": {
            "box_data": [
                {"position": CORNERS, "class_id": 1, "scores": {"iou": 0.5}, "box_caption": "a cat"},
                {"position": {"middle": [150, 20], "width": 68.0, "height": 112}, "class_id": 3, "domain": "pixel"},
            ],
            "class_labels": {"1": "class_1", "3": "class_3"},
        },
        "truth": {"box_data": [{"position": CORNERS}], "class_labels": {}},
    }
    named = read_boxes({"p": {"box_data": [], "class_labels": {2: "dog"}}})
    assert named == {"p": {"box_data": [], "class_labels": {"2": "dog"}}}


@pytest.mark.parametrize(
    "box",
    [
        *(1, {}, {"position": 5}, {"position": {"minX": 1}}, {"position": {**CORNERS, "minX": float("nan")}}),
        *({"position": {**CORNERS, "minX": "1"}}, {"position": {"middle": [1], "width": 1, "height": 1}}),
        *({"position": CORNERS, "class_id": "cat"}, {"position": CORNERS, "scores": {"iou": None}}),
    ],
)
def test_a_wrong_box_is_named(box: Any) -> None:
    with pytest.raises(MediaError, match=r"box 1 of 'p' cannot be read; give its \"position\" as minX"):
        read_boxes({"p": [{"position": CORNERS}, box]})


def test_layers_are_dicts() -> None:
    with pytest.raises(MediaError, match="boxes= is a list; pass a dict"):
        read_boxes([CORNERS])
    with pytest.raises(MediaError, match="boxes 'p' have no list"):
        read_boxes({"p": {"box_data": 5}})
    with pytest.raises(MediaError, match="masks= is a ndarray; pass a dict"):
        read_masks(np.zeros((2, 2)))


def test_masks_are_pictures_of_8_or_16_bits(tmp_path: Path) -> None:
    small, large = np.array([[0, 1], [2, 255]]), np.array([[0, 65_535]])
    Image.fromarray(small.astype(np.uint8)).save(tmp_path / "mask.png")
    Image.fromarray(small.astype(np.uint8)).save(tmp_path / "mask.bmp")
    masks = {
        "small": {"mask_data": small, "class_labels": {1: "cat"}},
        "large": large,
        "tensor": {"mask_data": torch.tensor(small)[None].float()},
        "bool": small > 1,
        "png": {"path": tmp_path / "mask.png", "class_labels": {0: "sky"}},
        "bmp": {"path": str(tmp_path / "mask.bmp")},
    }
    found = dict(read_masks(masks))
    pixels = {name: np.asarray(Image.open(BytesIO(part.data))) for name, part in found.items()}
    assert {part.kind for part in found.values()} == {"mask"}
    assert (pixels["small"].dtype, pixels["large"].dtype) == (np.uint8, np.uint16)
    for name in ("small", "tensor", "png", "bmp"):
        assert (pixels[name] == small).all()
    assert (pixels["large"] == large).all() and (pixels["bool"] == (small > 1)).all()
    size = {"format": "png", "width": 2, "height": 2}
    assert found["small"].metadata == size | {"class_labels": {"1": "cat"}}
    assert found["large"].metadata["class_labels"] == {"0": "class_0", "65535": "class_65535"}
    assert found["png"].metadata == size | {"class_labels": {"0": "sky"}}


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (np.array([[0.5]]), "has fractions or NaN"),
        (np.array([[np.nan]]), "has fractions or NaN"),
        (np.array([[-1]]), "has IDs outside of 0 … 65535"),
        (np.array([[65_536]]), "has IDs outside of 0 … 65535"),
        (np.zeros((2, 2, 2)), "has the shape"),
        (np.zeros((0, 2)), "has the shape"),
        ({"mask_data": None}, "has no array of numbers"),
        ({}, "has no array of numbers"),
        ({"path": "missing.png"}, "the file 'missing.png' cannot be opened"),
    ],
)
def test_a_wrong_mask_is_named(mask: Any, reason: str) -> None:
    with pytest.raises(MediaError) as caught:
        read_masks({"m": mask})
    assert reason in str(caught.value)


def test_numbers_of_instances_get_no_names() -> None:
    many = np.arange(1_001)[None]
    assert dict(read_masks({"m": many}))["m"].metadata["class_labels"] == {}
