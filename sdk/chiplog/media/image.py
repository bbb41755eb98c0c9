"""Images: pixels, figures and files of pictures."""

import sys
from typing import Any

from chiplog.media.encoding.arrays import host_array, is_tensor
from chiplog.media.encoding.captured import CapturedMedia, caption_metadata
from chiplog.media.encoding.figures import draw_png, is_drawn
from chiplog.media.encoding.files import is_path, read_file
from chiplog.media.encoding.pictures import FORMATS, encode_picture, open_picture, picture_format, pillow
from chiplog.media.encoding.pixels import to_pixels
from chiplog.media.overlays import read_boxes, read_classes, read_masks
from chiplog.safety.lenient_calls import hide_unknown_arguments
from chiplog.values.media_value import Content, MediaError

_KEPT_FORMATS = ("png", "jpeg", "gif", "webp", "bmp")  # what browsers show; others become PNG


class Image(CapturedMedia):
    """An image, logged as one value. It is read at once: later changes of the array or file are not logged.

    Never raises: `log()` counts a value that cannot be stored, and says why in one line.

    Args:
        data_or_path: One of these.

            - An array of the shape (height, width) or (height, width, channels) with 1, 3 or 4 channels: numpy, JAX,
              TensorFlow, lists.
            - A tensor of torch of the shape (height, width) or (channels, height, width). The call waits until a GPU
              has computed it.
            - An image of Pillow, a figure of matplotlib (also its axes, or `plt` for the current one), an `Image`.
            - The path of a file. PNG, JPEG, GIF, WebP and BMP keep their bytes, other formats become PNG.
            - The bytes of such a file.
        mode: A mode of Pillow to convert to, such as "L" or "RGB". Not for files in a kept format.
        caption: A text below the image.
        grouping: A number of a group of images.
        classes: Names of classes by ID: [{"id": 1, "name": "cat"}], or a dict.
        boxes: Layers of boxes, as W&B has them: {"predictions": {"box_data": [{"position": {"minX": 0.1, "maxX": 0.2,
            "minY": 0.3, "maxY": 0.4}, "class_id": 1, "scores": {"iou": 0.9}}], "class_labels": {1: "cat"}}}. Positions
            are fractions of the image, with "domain": "pixel" pixels.
        masks: Layers of masks: {"truth": {"mask_data": ids, "class_labels": {1: "cat"}}}, with integers from 0 to 65535
            of the shape (height, width), or a "path" to a PNG.
        file_type: png, jpg, bmp, webp or gif, for pixels that are not a file yet.
        normalize: Map floats between 0 and 1, or -1 and 1, to 0 … 255. False takes all numbers as 0 … 255.

    Booleans become black and white. Numbers outside of 0 … 255 are clipped, NaN becomes black. The metadata count both
    as `n_clipped` and `n_nan`.

    Examples:
        >>> run.log({"sample": chiplog.Image(pixels, caption="epoch 3")})
    """

    @hide_unknown_arguments
    def __init__(
        self,
        data_or_path: Any = None,
        mode: str | None = None,
        caption: str | None = None,
        grouping: int | None = None,
        classes: Any = None,
        boxes: Any = None,
        masks: Any = None,
        file_type: str | None = None,
        normalize: bool = True,
        *more: Any,
        **unknown: Any,
    ) -> None:
        self._data: bytes | None = None  # of a file in a kept format
        self._picture: Any = None  # of Pillow, to be encoded
        self._format = "png"
        self._metadata: dict[str, Any] = {}
        self._masks: tuple[tuple[str, Content], ...] = ()

        def read() -> None:
            self._read(data_or_path, mode, file_type, normalize)
            self._metadata |= caption_metadata(caption)
            if grouping is not None:
                self._metadata["grouping"] = int(grouping)
            if classes is not None:
                self._metadata["classes"] = read_classes(classes)
            if boxes:
                self._metadata["boxes"] = read_boxes(boxes)
            if masks:
                self._masks = read_masks(masks)
                self._metadata["masks"] = [name for name, _ in self._masks]

        self._capture(data_or_path, read, more, unknown)

    def _read(self, value: Any, mode: str | None, file_type: str | None, normalize: bool) -> None:
        if file_type is not None and str(file_type).lower() not in FORMATS:
            raise MediaError(f"file_type {file_type!r:.20} is unknown; use one of {', '.join(FORMATS)}")
        self._format = str(file_type or "png").lower().replace("jpg", "jpeg")
        if isinstance(value, Image):
            self._copy(value)
        elif is_path(value):
            self._keep(read_file(value), mode)
        elif isinstance(value, bytes | bytearray):
            self._keep(bytes(value), mode)
        elif is_drawn(value):
            self._keep(draw_png(value), mode, is_drawn=True)
        else:
            pil = sys.modules.get("PIL.Image")
            if pil is not None and isinstance(value, pil.Image):
                self._copy_picture(value, mode)
            else:
                self._read_pixels(value, mode, normalize)

    def _copy(self, other: "Image") -> None:
        """Take pixels and metadata of another image, but not what is drawn over it, as W&B does."""
        if other._problem:
            raise MediaError(other._problem)
        self._data, self._picture, self._format = other._data, other._picture, other._format
        self._metadata = {key: entry for key, entry in other._metadata.items() if key not in ("boxes", "masks")}

    def _keep(self, data: bytes, mode: str | None, *, is_drawn: bool = False) -> None:
        """Keep the bytes of a picture, or have them converted."""
        found = picture_format(data)
        if found in _KEPT_FORMATS and not (is_drawn and (mode or self._format != "png")):
            self._data, self._format = data, found
            if "PIL" in sys.modules or not is_drawn:
                self._measure(data)
        else:
            self._copy_picture(open_picture(data), mode)

    def _measure(self, data: bytes) -> None:
        """Note the size that is in the header of a file, if Pillow is there."""
        try:
            pillow()
        except MediaError:
            return  # the bytes are stored all the same
        picture = open_picture(data)
        self._metadata |= {"width": picture.width, "height": picture.height}

    def _copy_picture(self, picture: Any, mode: str | None) -> None:
        if 0 in picture.size:
            raise MediaError(f"it has 0 pixels, its size is {picture.size}; log an image that has some")
        if picture.mode in ("F", "I"):  # of 32 bits, which no format holds
            self._read_pixels(picture, mode, True)
            return
        self._picture = picture.convert(mode) if mode and mode != picture.mode else picture.copy()

    def _read_pixels(self, value: Any, mode: str | None, normalize: bool) -> None:
        array = host_array(value)
        if array is None:
            what = type(value).__name__
            raise MediaError(f"a value of type {what} is not an image; log an array, a tensor, a figure or a path")
        pixels = to_pixels(array, channels_first=is_tensor(value), normalize=normalize)
        self._picture = pillow().fromarray(pixels.array)
        if mode and mode != self._picture.mode:
            self._picture = self._picture.convert(mode)
        self._metadata |= pixels.metadata

    def _encode(self) -> Content:
        if self._data is None:
            self._metadata |= {"width": self._picture.width, "height": self._picture.height}
            self._data = encode_picture(self._picture, self._format)
            self._picture = None
        return Content("image", self._data, {"format": self._format, **self._metadata}, self._masks)
