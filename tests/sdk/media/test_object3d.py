"""Objects in three dimensions."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chiplog.media.object3d import Object3D
from chiplog.values.media_value import Content, MediaError


def json_of(content: Content) -> Any:
    return json.loads(content.data)


@pytest.mark.parametrize("width", [3, 4, 6])
def test_points_become_json(width: int) -> None:
    points = np.arange(2 * width, dtype=float).reshape(2, width)
    for given in (Object3D(points, caption="c"), Object3D(torch.tensor(points), "c"), Object3D(points.tolist(), "c")):
        content = given.to_content()
        assert content.metadata == {"format": "pts.json", "n_points": 2, "caption": "c"}
        assert (content.kind, json_of(content)) == ("object3d", points.tolist())


def test_points_that_are_not_numbers_are_counted() -> None:
    content = Object3D.from_numpy(np.array([[0, 0, 0], [1, np.nan, 1], [np.inf, 1, 1]])).to_content()
    assert (json_of(content), content.metadata["n_nan"], content.metadata["n_points"]) == ([[0, 0, 0]], 2, 1)


def test_a_scene_has_points_boxes_and_vectors() -> None:
    boxes = [{"corners": np.zeros((8, 3)), "label": "car", "color": (1, np.float32(0.5), 0)}]
    scene = Object3D.from_point_cloud(points=[[1, 2, 3]], boxes=boxes, vectors=[{"start": [0, 0, 0], "end": [1, 1, 1]}])
    assert json_of(scene.to_content()) == {
        "type": "lidar/beta",
        "points": [[1, 2, 3]],
        "boxes": [{"corners": [[0.0] * 3] * 8, "label": "car", "color": [1, 0.5, 0]}],
        "vectors": [{"start": [0, 0, 0], "end": [1, 1, 1]}],
    }
    assert json_of(Object3D({"type": "lidar/beta"}).to_content())["points"] == []


def test_files_keep_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "cube.OBJ"
    path.write_bytes(b"v 0 0 0")
    with open(path, "rb") as file:
        values = [Object3D(path), Object3D(str(path)), Object3D(file), Object3D(b"v 0 0 0", file_type="obj")]
    values += [Object3D.from_file(io.StringIO("v 0 0 0"), file_type="obj")]
    path.unlink()
    contents = [value.to_content() for value in values]
    assert all((content.data, content.metadata) == (b"v 0 0 0", {"format": "obj"}) for content in contents)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "a value of type NoneType is not an object in 3D; log a path, or points as an array"),
        (lambda: 1, "a value of type function is not an object in 3D"),
        (np.zeros((2, 5)), "points have the shape (2, 5); log (n, 3), (n, 4) or (n, 6)"),
        (np.zeros(3), "points have the shape (3,)"),
        (np.broadcast_to(np.float32(0), (2_000_001, 3)), "it has 2000001 points, the limit is 2000000"),
        (np.full((2, 3), np.nan), "it has no points that are finite numbers"),
        (np.zeros((2, 3), object), "a value of type ndarray is not an object in 3D"),
        ("missing.obj", "the file 'missing.obj' cannot be opened"),
        (__file__, "is unknown; use a file of pts.json, obj"),
        (b"v", "the format of '.None' is unknown"),
        ({"type": "other"}, "a scene of type 'other' is unknown; its type is 'lidar/beta'"),
        ({"type": "lidar/beta", "boxes": [{"score": float("nan")}]}, "it cannot be read: ValueError"),
    ],
)
def test_what_is_not_an_object_is_said_by_to_content(value: Any, reason: str) -> None:
    with pytest.raises(MediaError) as caught:
        Object3D(value).to_content()
    assert reason in str(caught.value)
