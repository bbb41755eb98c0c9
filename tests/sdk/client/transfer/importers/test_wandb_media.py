"""Media of W&B become those that `log()` would have stored; what cannot be read is counted, with the reason."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from chiplog_client.transfer.importers.imported_run import HistogramOf, MediaOf, Part, Unmapped
from chiplog_client.transfer.importers.wandb_media import media_parts


def parts_of(value: dict[str, Any], files: Path) -> list[Part]:
    return list(media_parts("key", 3, 5, value, files))


def png(color: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2), color).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_keep_their_bytes_captions_and_layers(tmp_path: Path) -> None:
    for name, color in (("a.png", 1), ("b.png", 2), ("mask.png", 0)):
        (tmp_path / name).write_bytes(png(color))
    (tmp_path / "boxes.json").write_text(
        json.dumps({"box_data": [{"position": {"minX": 0, "maxX": 1, "minY": 0, "maxY": 1}, "class_id": 1}]})
    )
    value = {
        "_type": "images/separated",
        "filenames": ["a.png", "b.png"],
        "captions": ["first", "second"],
        "all_boxes": [None, {"truth": {"path": "boxes.json"}}],
        "all_masks": [{"plain": {"path": "mask.png"}}, None],
    }
    mask, first, second = (part for part in parts_of(value, tmp_path) if isinstance(part, MediaOf))
    assert (mask.key, mask.kind, mask.metadata["item"]) == ("key/plain", "mask", 0)
    assert (first.content, first.metadata["caption"], first.metadata["item"]) == (png(1), "first", 0)
    assert (second.kind, second.step, second.ts, second.metadata["item"]) == ("image", 3, 5, 1)
    assert second.metadata["boxes"]["truth"]["box_data"][0]["class_id"] == 1
    single = {"_type": "image-file", "path": "a.png", "masks/plain/path": "mask.png"}
    assert [part.kind for part in parts_of(single, tmp_path) if isinstance(part, MediaOf)] == ["mask", "image"]


def test_histograms_tables_and_other_files_have_their_kind(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"columns": ["x", "y"], "data": [[1, "a"], [2, None]]}))
    (tmp_path / "p.html").write_text("<p>hi</p>")
    (tmp_path / "f.json").write_text("{}")
    [plain] = parts_of({"_type": "histogram", "bins": [0, 1, 2], "values": [3, 4]}, tmp_path)
    packed = {"_type": "histogram", "packedBins": {"min": 0, "size": 1, "count": 2}, "values": [3, 4]}
    assert parts_of(packed, tmp_path) == [plain]
    assert isinstance(plain, HistogramOf) and (plain.edges, plain.counts) == ([0, 1, 2], [3, 4])
    found = {}
    for kind, name in (("table-file", "t.json"), ("html-file", "p.html"), ("plotly-file", "f.json")):
        [part] = parts_of({"_type": kind, "path": name}, tmp_path)
        assert isinstance(part, MediaOf)
        found[part.kind] = part
    assert found["table"].metadata["n_rows"] == 2
    assert (found["html"].content, found["figure"].metadata["format"]) == (b"<p>hi</p>", "plotly.json")


@pytest.mark.parametrize(
    ("value", "what", "example"),
    [
        ({"_type": "molecule-file", "path": "m"}, "media of the type 'molecule-file'", "key"),
        ({"_type": "image-file", "path": "absent.png"}, "media that cannot be read", "key of step 3: "),
        ({"_type": "image-file", "path": "../../etc/passwd"}, "media that cannot be read", "'../../etc/passwd'"),
        ({"_type": "image-file"}, "media that cannot be read", "path"),
        ({"_type": "table-file", "path": "broken.json"}, "media that cannot be read", "key of step 3: "),
        ({"_type": "histogram", "values": "x"}, "media that cannot be read", "could not convert"),
    ],
)
def test_what_cannot_be_read_is_counted(tmp_path: Path, value: dict[str, Any], what: str, example: str) -> None:
    (tmp_path / "broken.json").write_text("{")
    [part] = parts_of(value, tmp_path)
    assert isinstance(part, Unmapped)
    assert (part.what, example in part.example) == (what, True), part
