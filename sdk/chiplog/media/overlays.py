"""What is drawn over an image: boxes and names of classes as metadata, masks as pictures of their own."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from chiplog.media.encoding.arrays import host_array, is_tensor
from chiplog.media.encoding.files import read_file
from chiplog.media.encoding.libraries import load_library
from chiplog.media.encoding.pictures import encode_picture, open_picture, picture_format, pillow
from chiplog.safety.text import clean_utf8, short_repr
from chiplog.values.media_value import Content, MediaError
from chiplog_schemas.interrupts import raise_interrupt

_NAMED_MAX = 1_000  # classes that get a name without one given: more are numbers of instances
_LABEL_MAX = 65_535  # of a mask: what a PNG of 16 bits holds
_CORNERS = ("minX", "maxX", "minY", "maxY")
_SIZES = ("width", "height")


def read_classes(classes: Any) -> dict[str, str]:
    """Return the names of classes by their IDs, from [{"id": 1, "name": "cat"}], W&B's Classes or a dict."""
    classes = getattr(classes, "_class_set", classes)
    if isinstance(classes, Mapping):
        return read_labels(classes)
    try:
        return read_labels({entry["id"]: entry["name"] for entry in classes})
    except (TypeError, KeyError) as error:
        raise_interrupt(error)
        raise MediaError('its classes are no list; pass classes=[{"id": 1, "name": "cat"}]') from None


def read_labels(labels: Mapping[Any, Any]) -> dict[str, str]:
    """Return the names of classes by their IDs as text."""
    return {clean_utf8(str(number)): clean_utf8(str(name)) for number, name in labels.items()}


def read_boxes(boxes: Any) -> dict[str, Any]:
    """Return layers of boxes as plain values: {"predictions": {"box_data": […], "class_labels": {…}}}."""
    found = {}
    for name, layer in _layers(boxes, "boxes").items():
        entries = layer.get("box_data", ()) if isinstance(layer, Mapping) else layer
        labels = layer.get("class_labels") if isinstance(layer, Mapping) else None
        if not isinstance(entries, list | tuple):
            raise MediaError(f'boxes {short_repr(name)} have no list; pass {{"box_data": [...]}}')
        read = [_read_box(name, index, box) for index, box in enumerate(entries)]
        if labels is None:
            numbers = sorted({box["class_id"] for box in read if "class_id" in box})
            labels = {number: f"class_{number}" for number in numbers}
        found[name] = {"box_data": read, "class_labels": read_labels(labels)}
    return found


def _read_box(layer: str, index: int, box: Any) -> dict[str, Any]:
    """Return one box as plain values, with the names that W&B gives them."""
    position = box.get("position") if isinstance(box, Mapping) else None
    try:
        if position is None:
            raise ValueError("position")
        if "middle" in position:
            middle = [_number(entry) for entry in position["middle"]]
            if len(middle) != 2:
                raise ValueError("middle")
            place: dict[str, Any] = {"middle": middle, **{name: _number(position[name]) for name in _SIZES}}
        else:
            place = {name: _number(position[name]) for name in _CORNERS}
        read: dict[str, Any] = {"position": place}
        if box.get("class_id") is not None:
            read["class_id"] = int(_number(box["class_id"]))
        if box.get("scores"):
            read["scores"] = {clean_utf8(str(name)): _number(score) for name, score in box["scores"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise_interrupt(error)
        remedy = 'give its "position" as minX, maxX, minY, maxY, or middle, width, height, all finite numbers'
        raise MediaError(f"box {index} of {short_repr(layer)} cannot be read; {remedy}") from None
    for name, given in (("domain", box.get("domain")), ("box_caption", box.get("box_caption"))):
        if given is not None:
            read[name] = clean_utf8(str(given))
    return read


def _number(value: Any) -> float | int:
    """Return a finite number as Python has it. Raises ValueError or TypeError."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def read_masks(masks: Any) -> tuple[tuple[str, Content], ...]:
    """Return layers of masks as pictures: each pixel is the ID of a class, as 8 or 16 bits."""
    return tuple((name, _read_mask(name, layer)) for name, layer in _layers(masks, "masks").items())


def _read_mask(name: str, layer: Any) -> Content:
    if not isinstance(layer, Mapping):
        layer = {"mask_data": layer}
    labels = layer.get("class_labels")
    if "path" in layer:
        data = read_file(layer["path"])
        picture = open_picture(data)
        if picture_format(data) != "png":
            data = encode_picture(picture)
        ids: Sequence[int] = ()
    else:
        array = _label_ids(name, layer.get("mask_data"))
        np = load_library("numpy", "numpy", "a mask")
        picture = pillow().fromarray(array)
        data = encode_picture(picture)
        ids = np.unique(array).tolist() if labels is None else ()
    if labels is None:
        labels = {number: f"class_{number}" for number in ids} if len(ids) <= _NAMED_MAX else {}
    metadata = {"format": "png", "width": picture.width, "height": picture.height, "class_labels": read_labels(labels)}
    return Content("mask", data, metadata)


def _label_ids(name: str, values: Any) -> Any:
    """Return the values of a mask as uint8 or uint16."""
    np = load_library("numpy", "numpy", "a mask")
    array = host_array(values)
    if array is None or array.dtype.kind not in "biuf":
        raise MediaError(f"mask {short_repr(name)} has no array of numbers; pass {{'mask_data': array}}")
    if array.ndim == 3 and 1 in (array.shape[0], array.shape[-1]):
        array = array[0] if is_tensor(values) or array.shape[0] == 1 else array[..., 0]
    if array.ndim != 2 or 0 in array.shape:
        raise MediaError(f"mask {short_repr(name)} has the shape {tuple(array.shape)}; pass (height, width)")
    if array.dtype.kind == "f" and not (array == np.floor(array)).all():  # NaN is not equal to itself
        raise MediaError(f"mask {short_repr(name)} has fractions or NaN; pass integer IDs of classes")
    if array.min() < 0 or array.max() > _LABEL_MAX:
        raise MediaError(f"mask {short_repr(name)} has IDs outside of 0 … {_LABEL_MAX}; number its classes from 0")
    return array.astype(np.uint8 if array.max() <= 255 else np.uint16)


def _layers(given: Any, what: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise MediaError(f"{what}= is a {type(given).__name__}; pass a dict from names of layers to {what}")
    return {clean_utf8(str(name)): layer for name, layer in given.items()}
