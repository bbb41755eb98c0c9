"""Images: from arrays, tensors, figures, Pillow and files to bytes."""

import copy
import pickle
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from chiplog.media.image import Image
from chiplog.values.media_value import MediaError, MediaValue

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
SIZE = {"format": "png", "width": 5, "height": 6}


def pixels_of(image: Image) -> np.ndarray:
    return np.asarray(Pillow.open(BytesIO(image.to_content().data)))


def problem_of(image: Image) -> str:
    with pytest.raises(MediaError) as caught:
        image.to_content()
    return str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        PIXELS,
        PIXELS.astype(np.int64),
        (PIXELS / 255.0).clip(0, 1) + 0.001 * (PIXELS > 0) * (PIXELS < 255),
        PIXELS.tolist(),
        torch.tensor(PIXELS).permute(2, 0, 1),
        torch.tensor(PIXELS).permute(2, 0, 1)[None].float().requires_grad_(),
        Pillow.fromarray(PIXELS),
        Image(PIXELS),
    ],
    ids=["uint8", "int64", "floats", "lists", "tensor", "float tensor", "pillow", "image"],
)
def test_pixels_are_stored_as_png(value: Any) -> None:
    content = Image(value).to_content()
    assert (content.kind, content.metadata, content.parts) == ("image", SIZE, ())
    assert (pixels_of(Image(value)) == PIXELS).all()


def test_later_changes_of_the_source_are_not_logged(tmp_path: Path) -> None:
    array, tensor, picture = PIXELS.copy(), torch.tensor(PIXELS).permute(2, 0, 1), Pillow.fromarray(PIXELS)
    path = tmp_path / "a.png"
    picture.save(path)
    images = [Image(array), Image(tensor), Image(picture), Image(path), Image(Image(array))]
    array[:] = 0
    tensor[:] = 0
    picture.paste(0, (0, 0, 5, 6))
    path.unlink()
    assert all((pixels_of(image) == PIXELS).all() for image in images)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.webp", "a.bmp"])
def test_files_of_known_formats_keep_their_bytes(tmp_path: Path, name: str) -> None:
    Pillow.fromarray(PIXELS).save(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    for value in (tmp_path / name, str(tmp_path / name), data):
        content = Image(value, caption="c").to_content()
        assert content.data == data
        assert content.metadata == SIZE | {"format": name[2:].replace("jpg", "jpeg"), "caption": "c"}


def test_other_files_become_png(tmp_path: Path) -> None:
    Pillow.fromarray(PIXELS).save(tmp_path / "a.tiff")
    assert (pixels_of(Image(tmp_path / "a.tiff")) == PIXELS).all()


def test_files_are_stored_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Pillow.fromarray(PIXELS).save(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)  # type: ignore[arg-type]
    assert Image(tmp_path / "a.png").to_content().metadata == {"format": "png"}
    assert problem_of(Image(PIXELS)) == "an image needs Pillow, which is not installed; pip install 'chiplog[media]'"


def test_mode_file_type_and_normalize() -> None:
    assert Pillow.open(BytesIO(Image(PIXELS, mode="L").to_content().data)).mode == "L"
    content = Image(PIXELS, file_type="jpg").to_content()
    assert (content.metadata["format"], Pillow.open(BytesIO(content.data)).format) == ("jpeg", "JPEG")
    assert pixels_of(Image(np.ones((2, 2)))).max() == 255
    assert pixels_of(Image(np.ones((2, 2)), normalize=False)).max() == 1
    assert "file_type 'tiff' is unknown; use one of png" in problem_of(Image(PIXELS, file_type="tiff"))


def test_pictures_of_32_bits_are_scaled_as_arrays() -> None:
    assert pixels_of(Image(Pillow.fromarray(np.ones((2, 2), np.float32)))).tolist() == [[255, 255], [255, 255]]


def test_what_lies_over_an_image_is_metadata_and_parts() -> None:
    corners = {"minX": 0.1, "maxX": 0.2, "minY": 0.3, "maxY": 0.4}
    given = {
        "caption": "a cat",
        "grouping": 2,
        "classes": [{"id": 1, "name": "cat"}],
        "boxes": {"predicted": {"box_data": [{"position": corners, "class_id": 1}], "class_labels": {1: "cat"}}},
        "masks": {"truth": {"mask_data": np.ones((6, 5), int), "class_labels": {1: "cat"}}},
    }
    content = Image(PIXELS, **given).to_content()  # type: ignore[arg-type]
    assert content.metadata == SIZE | {
        "caption": "a cat",
        "grouping": 2,
        "classes": {"1": "cat"},
        "boxes": {"predicted": {"box_data": [{"position": corners, "class_id": 1}], "class_labels": {"1": "cat"}}},
        "masks": ["truth"],
    }
    [(name, mask)] = content.parts
    assert (name, mask.kind, mask.metadata["class_labels"]) == ("truth", "mask", {"1": "cat"})
    copied = Image(Image(PIXELS, **given), caption="again").to_content()  # type: ignore[arg-type]
    assert copied.metadata == SIZE | {"caption": "again", "grouping": 2, "classes": {"1": "cat"}}
    assert copied.parts == ()
    first = Image(PIXELS)
    assert first.to_content().metadata == Image(first).to_content().metadata == SIZE


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda: 1, "a value of type function is not an image; log an array, a tensor, a figure or a path"),
        (None, "a value of type NoneType is not an image"),
        (np.zeros((1, 2, 3, 4, 5)), "it has the shape (1, 2, 3, 4, 5)"),
        (np.zeros((0, 5)), "it has 0 pixels"),
        (Pillow.new("RGB", (0, 5)), "it has 0 pixels, its size is (0, 5)"),
        (np.full((2, 2), np.nan), "none of its values is a finite number"),
        ("missing.png", "the file 'missing.png' cannot be opened: No such file or directory"),
        (b"text", "Pillow cannot open it: its format is unknown"),
        ([[1, 2], [3]], "it cannot be read: ValueError"),
        (Image("missing.png"), "the file 'missing.png' cannot be opened"),
    ],
)
def test_what_is_not_an_image_is_said_by_to_content(value: Any, reason: str) -> None:
    assert problem_of(Image(value)).startswith(reason)


def test_an_image_is_a_media_value_that_pickles_and_copies() -> None:
    image = Image(PIXELS, caption="x")
    assert isinstance(image, MediaValue)
    assert pickle.loads(pickle.dumps(image)).to_content() == copy.deepcopy(image).to_content() == image.to_content()
    assert pickle.loads(pickle.dumps(image)).to_content() == image.to_content()
