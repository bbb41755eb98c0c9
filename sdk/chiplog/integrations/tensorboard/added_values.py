"""What the methods of a SummaryWriter are given, as values that a run logs.

Each function takes the arguments of one method of torch's and tensorboardX's class, and returns values by tag, and the
step. Pixels are those of the event file; numbers keep their precision.
"""

from collections.abc import Callable, Mapping
from typing import Any

from chiplog.media.arrays import host_array
from chiplog.values.metrics import Histogram

Added = tuple[dict[str, Any], Any]  # values by tag; the step or None


def _scalar(tag: str, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any) -> Added:
    return {tag: scalar_value}, global_step


def _scalars(main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, *_: Any, **__: Any) -> Added:
    return {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}, global_step


def _histogram(tag: str, values: Any, global_step: Any = None, *_: Any, **__: Any) -> Added:
    return {tag: Histogram.of(values)}, global_step


def _raw_histogram(
    tag: str,
    min: Any,
    max: Any,
    num: Any,
    sum: Any,
    sum_squares: Any,
    bucket_limits: Any,
    bucket_counts: Any,
    global_step: Any = None,
    *_: Any,
    **__: Any,
) -> Added:
    limits = [float(limit) for limit in bucket_limits]  # the upper end of each bucket
    return {tag: Histogram([float(min), *limits], list(bucket_counts))}, global_step


def _image(
    tag: str, img_tensor: Any, global_step: Any = None, walltime: Any = None, dataformats: str = "CHW", **_: Any
) -> Added:
    from chiplog.media.image import Image  # a training that adds no images does not need it

    axes = dataformats.upper()
    pixels = _pixels(img_tensor, axes, "".join(axis for axis in "NHWC" if axis in axes))
    return {tag: [Image(each) for each in pixels] if "N" in axes else Image(pixels)}, global_step


def _images(
    tag: str, img_tensor: Any, global_step: Any = None, walltime: Any = None, dataformats: str = "NCHW", **_: Any
) -> Added:
    return _image(tag, img_tensor, global_step, walltime, dataformats)


def _video(
    tag: str,
    vid_tensor: Any,
    global_step: Any = None,
    fps: Any = 4,
    walltime: Any = None,
    dataformats: str = "NTCHW",
    **_: Any,
) -> Added:
    from chiplog.media.video import Video  # a training that adds no videos does not need it

    return {tag: Video(_pixels(vid_tensor, dataformats.upper(), "NTCHW"), fps=fps)}, global_step


def _audio(tag: str, snd_tensor: Any, global_step: Any = None, sample_rate: Any = 44_100, *_: Any, **__: Any) -> Added:
    from chiplog.media.audio import Audio  # a training that adds no sounds does not need it

    return {tag: Audio(host_array(snd_tensor).squeeze(), sample_rate=sample_rate)}, global_step


def _text(tag: str, text_string: Any, global_step: Any = None, *_: Any, **__: Any) -> Added:
    return {tag: str(text_string)}, global_step


def _hparams(hparam_dict: Any, metric_dict: Any, *more: Any, global_step: Any = None, **_: Any) -> Added:
    # The step is the last argument: the third of tensorboardX, the fifth of torch.
    is_step = bool(more) and hasattr(more[-1], "__int__")
    return dict(metric_dict), more[-1] if is_step and global_step is None else global_step


# Not add_figure: it draws the figure, and gives the pixels to add_image.
METHODS: dict[str, Callable[..., Added]] = {
    "add_scalar": _scalar,
    "add_scalars": _scalars,
    "add_histogram": _histogram,
    "add_histogram_raw": _raw_histogram,
    "add_image": _image,
    "add_images": _images,
    "add_video": _video,
    "add_audio": _audio,
    "add_text": _text,
    "add_hparams": _hparams,
}


def _pixels(values: Any, axes: str, wanted: str) -> Any:
    """Return pixels as bytes, with the wanted order of axes: floats from 0 to 1 become 0 … 255, as in event files."""
    array = host_array(values).transpose([axes.index(axis) for axis in wanted])
    if array.dtype.kind == "f":
        array = (array * 255).clip(0, 255).astype("uint8")
    return array
