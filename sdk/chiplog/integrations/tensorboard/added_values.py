"""What the methods of a SummaryWriter are given, as values that a run logs.

Each function takes the arguments of one method of torch's and tensorboardX's class, and returns values by tag, and the
step. Pixels are those of the event file; numbers keep their precision.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from chiplog.media.encoding.arrays import host_array
from chiplog.safety.text import short_repr
from chiplog.values.metrics import Histogram

_THRESHOLDS_MAX = 127  # as in both libraries: the default, and the most that torch's writes
_TINY = 1e-7  # as in both libraries, in place of a division by 0
_CURVE = (
    "threshold",
    "true_positives",
    "false_positives",
    "true_negatives",
    "false_negatives",
    "precision",
    "recall",
)
Added = tuple[dict[str, Any], Any]  # values by tag; the step or None


def _scalar(tag: str, scalar_value: Any, global_step: Any = None, walltime: Any = None, *_: Any, **__: Any) -> Added:
    return {tag: scalar_value}, global_step


def _scalars(
    main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, walltime: Any = None, *_: Any, **__: Any
) -> Added:
    return {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}, global_step


def _histogram(
    tag: str, values: Any, global_step: Any = None, bins: Any = None, walltime: Any = None, *_: Any, **__: Any
) -> Added:
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


def _audio(
    tag: str,
    snd_tensor: Any,
    global_step: Any = None,
    sample_rate: Any = 44_100,
    walltime: Any = None,
    *_: Any,
    **__: Any,
) -> Added:
    from chiplog.media.audio import Audio  # a training that adds no sounds does not need it

    return {tag: Audio(_array(snd_tensor).squeeze(), sample_rate=sample_rate)}, global_step


def _text(tag: str, text_string: Any, global_step: Any = None, walltime: Any = None, *_: Any, **__: Any) -> Added:
    return {tag: str(text_string)}, global_step


def _hparams(hparam_dict: Any, metric_dict: Any, *more: Any, global_step: Any = None, **_: Any) -> Added:
    # The step is the last argument: the third of tensorboardX, the fifth of torch.
    is_step = bool(more) and hasattr(more[-1], "__int__")
    return dict(metric_dict), more[-1] if is_step and global_step is None else global_step


def _image_with_boxes(
    tag: str,
    img_tensor: Any,
    box_tensor: Any,
    global_step: Any = None,
    walltime: Any = None,
    *more: Any,
    dataformats: str = "CHW",
    labels: Any = None,
    **_: Any,
) -> Added:
    from chiplog.media.image import Image  # a training that adds no images does not need it

    # torch has `rescale` before these two, tensorboardX has not.
    dataformats = next((each for each in more if isinstance(each, str)), dataformats)
    captions = next((each for each in more if isinstance(each, list)), labels) or ()
    corners = _array(box_tensor).reshape(-1, 4).tolist()
    boxes: list[dict[str, Any]] = [
        {"position": dict(zip(("minX", "minY", "maxX", "maxY"), corner, strict=True)), "domain": "pixel"}
        for corner in corners
    ]
    for box, caption in zip(boxes, captions, strict=False):
        box["box_caption"] = caption
    pixels = _pixels(img_tensor, dataformats.upper(), "".join(axis for axis in "HWC" if axis in dataformats.upper()))
    return {tag: Image(pixels, boxes={"boxes": {"box_data": boxes}})}, global_step


def _figure(tag: str, figure: Any, global_step: Any = None, close: bool = True, walltime: Any = None) -> Added:
    from chiplog.media.figure import Figure  # a training that adds no figures does not need it

    figures = figure if isinstance(figure, list) else [figure]
    drawn = [Figure(each) for each in figures]
    pyplot = sys.modules.get("matplotlib.pyplot")
    for each in figures if close and pyplot is not None else ():
        if isinstance(each, pyplot.Figure):  # type: ignore[union-attr]  # not plotly's
            pyplot.close(each)  # type: ignore[union-attr]
    return {tag: drawn if isinstance(figure, list) else drawn[0]}, global_step


def _pr_curve(
    tag: str,
    labels: Any,
    predictions: Any,
    global_step: Any = None,
    num_thresholds: int = _THRESHOLDS_MAX,
    weights: Any = None,
    walltime: Any = None,
) -> Added:
    """Return the table of the curve, as `compute_curve` in torch/utils/tensorboard/summary.py counts it."""
    import numpy as np

    n_thresholds = min(num_thresholds, _THRESHOLDS_MAX)
    is_true = _array(labels).astype(float).ravel()
    scores = _array(predictions).ravel()
    weighted = 1.0 if weights is None else _array(weights).ravel()
    buckets = np.floor(scores * (n_thresholds - 1)).astype(int)

    def counts(of: Any) -> Any:
        """Return by threshold how many have a score of at least it."""
        found, _ = np.histogram(buckets, n_thresholds, (0, n_thresholds - 1), weights=of * weighted)
        return np.cumsum(found[::-1])[::-1]

    true, false = counts(is_true), counts(1 - is_true)
    precision, recall = true / np.maximum(_TINY, true + false), true / np.maximum(_TINY, true[0])
    columns = true, false, false[0] - false, true[0] - true, precision, recall
    return _raw_pr_curve(tag, *columns, global_step=global_step)


def _raw_pr_curve(
    tag: str,
    true_positive_counts: Any,
    false_positive_counts: Any,
    true_negative_counts: Any,
    false_negative_counts: Any,
    precision: Any,
    recall: Any,
    global_step: Any = None,
    *_: Any,
    **__: Any,
) -> Added:
    from chiplog.media.table import Table  # a training that adds no curves does not need it

    given = true_positive_counts, false_positive_counts, true_negative_counts, false_negative_counts, precision, recall
    columns = [_array(each).astype(float).ravel().tolist() for each in given]
    n_thresholds = len(columns[0])
    thresholds = [index / max(1, n_thresholds - 1) for index in range(n_thresholds)]
    return {tag: Table(_CURVE, list(zip(thresholds, *columns, strict=True)))}, global_step


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
    "add_image_with_boxes": _image_with_boxes,
    "add_figure": _figure,
    "add_pr_curve": _pr_curve,
    "add_pr_curve_raw": _raw_pr_curve,
}


for _name, _function in METHODS.items():
    _function.__qualname__ = _name  # in the message of a call with missing arguments


def _array(value: Any) -> Any:
    array = host_array(value)
    if array is None:
        raise TypeError(f"{short_repr(value)} is not an array or tensor")
    return array


def _pixels(values: Any, axes: str, wanted: str) -> Any:
    """Return pixels as bytes, with the wanted order of axes: floats from 0 to 1 become 0 … 255, as in event files."""
    array = _array(values).transpose([axes.index(axis) for axis in wanted])
    if array.dtype.kind == "f":
        array = (array * 255).clip(0, 255).astype("uint8")
    return array
