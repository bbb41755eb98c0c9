"""Pictures: encoded by Pillow, or recognised by their first bytes."""

from io import BytesIO

import pytest
from PIL import Image

from chiplog.media.encoding.pictures import FORMATS, encode_picture, open_picture, picture_format
from chiplog.values.media_value import MediaError


@pytest.mark.parametrize("file_type", FORMATS)
def test_each_format_is_written_and_recognised(file_type: str) -> None:
    data = encode_picture(Image.new("RGB", (4, 3), "red"), file_type)
    assert picture_format(data) == file_type.replace("jpg", "jpeg")
    assert open_picture(data).size == (4, 3)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I;16", "La", "RGBa"]
)
def test_each_mode_of_pillow_is_written(mode: str) -> None:
    picture = Image.new("RGBA", (2, 2), (255, 0, 0, 128)).convert("La" if mode == "La" else "RGBA")
    picture = Image.new(mode, (2, 2)) if mode in ("I;16", "LAB", "La", "RGBa") else picture.convert("RGB").convert(mode)
    for file_type in FORMATS:
        assert Image.open(BytesIO(encode_picture(picture, file_type))).size == (2, 2)


def test_transparency_is_kept_by_png_and_dropped_by_jpeg() -> None:
    picture = Image.new("RGBA", (2, 2), (255, 0, 0, 128))
    assert Image.open(BytesIO(encode_picture(picture))).getpixel((0, 0)) == (255, 0, 0, 128)
    assert Image.open(BytesIO(encode_picture(picture, "jpg"))).mode == "RGB"


@pytest.mark.parametrize("data", [b"", b"text", b"\x89PNG\r\n\x1a\n damaged"])
def test_what_pillow_cannot_open_is_refused(data: bytes) -> None:
    with pytest.raises(MediaError, match="Pillow cannot open it: its format is unknown; log a PNG"):
        open_picture(data)


def test_a_picture_that_would_fill_the_memory_is_refused() -> None:
    size = (30_000).to_bytes(4, "little")
    bomb = b"BM" + bytes(8) + (54).to_bytes(4, "little") + (40).to_bytes(4, "little") + size + size
    with pytest.raises(MediaError, match="it is too large"):
        open_picture(bomb + b"\x01\x00\x18\x00" + bytes(24))
