"""Encode pictures, and recognise those that are encoded already."""

from io import BytesIO
from typing import Any

from chiplog.media.encoding.libraries import load_library
from chiplog.values.media_value import MediaError
from chiplog_schemas.interrupts import raise_interrupt

FORMATS = {"png": "PNG", "jpg": "JPEG", "jpeg": "JPEG", "bmp": "BMP", "webp": "WEBP", "gif": "GIF"}  # names of Pillow
# Those that PNG stores as they are; Pillow converts others.
_PNG_MODES = frozenset(("1", "L", "LA", "I;16", "P", "RGB", "RGBA"))
_PREMULTIPLIED = {"La": "LA", "RGBa": "RGBA"}  # colours times alpha, which no format holds
# At level 1 a PNG of photographs is 5 % larger than at the default 6, and takes a third of the time.
_PNG_LEVEL = 1


def pillow() -> Any:
    """Return the module PIL.Image. Raises MediaError if it is not installed."""
    return load_library("PIL.Image", "Pillow", "an image")


def picture_format(data: bytes) -> str:
    """Return png, jpeg, gif, webp or bmp by the first bytes of a file, '' for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return "bmp" if data.startswith(b"BM") else ""


def open_picture(data: bytes) -> Any:
    """Return the picture in the bytes of a file; only its header is read. Raises MediaError."""
    image = pillow()
    try:
        return image.open(BytesIO(data))
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise_interrupt(error)
        reason = "it is too large" if isinstance(error, image.DecompressionBombError) else "its format is unknown"
        raise MediaError(f"Pillow cannot open it: {reason}; log a PNG, JPEG, GIF, WebP or BMP") from None


def encode_picture(picture: Any, file_type: str = "png") -> bytes:
    """Return a picture of Pillow as the bytes of a file."""
    name = FORMATS[file_type]
    if picture.mode in _PREMULTIPLIED:
        picture = picture.convert(_PREMULTIPLIED[picture.mode])
    if name == "JPEG" and picture.mode not in ("L", "RGB", "CMYK"):
        picture = picture.convert("RGB")
    elif picture.mode == "LA" and name != "PNG":
        picture = picture.convert("RGBA")
    elif picture.mode not in _PNG_MODES or (picture.mode == "I;16" and name != "PNG"):
        picture = picture.convert("RGBA" if picture.mode == "PA" else "RGB")
    buffer = BytesIO()
    options: dict[str, Any] = {"compress_level": _PNG_LEVEL} if name == "PNG" else {}
    picture.save(buffer, name, **options)
    return buffer.getvalue()
