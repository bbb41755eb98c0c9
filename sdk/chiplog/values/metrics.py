"""Turn what users log into float64 values, short texts, histograms and media, and diagnose the rest."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from chiplog.native.loader import hot_path
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.foreign_names import is_stand_in
from chiplog.safety.text import REPR_CHARS, clean_utf8, is_encodable, short_repr
from chiplog.values.media_value import MediaValue
from chiplog_schemas.interrupts import handlers_held, unless_interrupt
from chiplog_schemas.limits import KEY_BYTES_MAX, NESTING_MAX, TEXT_CHARS_MAX

FLOAT_TYPES: set[type] = {float, int}  # struct packs these as float64; numpy's scalar types are added when seen
if hot_path is not None:
    hot_path.set_value_types(FLOAT_TYPES, None, None)
# By the package of a type that is logged as media.
_REMEDIES = {"PIL": "log chiplog.Image(it)"} | dict.fromkeys(("matplotlib", "plotly"), "log chiplog.Figure(it)")
DEVICE_TYPES = {"cuda"}  # of torch: tensors there are read later, others at once


@dataclass(frozen=True, slots=True, init=False)
class Histogram:
    """Counts between edges, logged as one value.

    Args:
        edges: n + 1 ascending numbers, if counts are given; else the values to count, as `sequence`.
        counts: n numbers.
        sequence: Values to count: anything that numpy can convert to an array. NaN and infinities are ignored.
        np_histogram: What `numpy.histogram` returned: (counts, edges).
        num_bins: Number of bins of equal width, if values are counted.

    Never raises: `problem` describes a bad argument, and `log()` counts it as a bad value.

    Examples:
        >>> run.log({"weights": chiplog.Histogram(model.weight)})
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    problem: str  # '' if the histogram can be logged

    def __init__(
        self,
        edges: Any = None,
        counts: Any = None,
        *,
        sequence: Any = None,
        np_histogram: Any = None,
        num_bins: int = 64,
    ) -> None:
        try:
            if edges is None and sequence is None:
                counts, edges = np_histogram if np_histogram is not None else counts
            elif counts is None:
                edges, counts = _count(edges if sequence is None else sequence, num_bins)
            found, problem = (tuple(map(float, edges)), tuple(map(float, counts))), ""
            if len(found[0]) != len(found[1]) + 1:
                problem = f"{len(found[1])} counts need {len(found[1]) + 1} edges, not {len(found[0])}"
        except unless_interrupt(Exception) as error:  # numpy or a foreign type may raise anything
            values = edges if sequence is None else sequence
            found = (), ()
            problem = (
                f"no histogram of {type(values).__name__}: {type(error).__name__} {_error_text(error)}; give it numbers"
            )
            problem = clean_utf8(problem)
        for name, value in zip(("edges", "counts", "problem"), (*found, problem), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: Any, bins: int = 64) -> "Histogram":
        """Return the histogram of some values, counted in bins of equal width. Never raises.

        Args:
            values: Anything that numpy can make an array of. NaN and infinities are left out.
            bins: Number of bins.

        Returns:
            A histogram that `log()` takes.

        Examples:
            >>> run.log({"weights": chiplog.Histogram.of(model.weight)})
        """
        return cls(sequence=values, num_bins=bins)


def _count(values: Any, bins: int) -> tuple[Any, Any]:
    """Return edges and counts of the finite values."""
    if is_stand_in(values):
        raise ValueError("it holds no values")
    if "numpy" not in sys.modules:
        with handlers_held():  # an interrupted import of numpy cannot be repeated in the same process
            import numpy  # noqa: F401
    import numpy as np  # importing chiplog must not cost numpy

    # Convert a tensor to float64 first: numpy has no bfloat16, the type of many gradients.
    array = np.asarray(values.detach().cpu().double() if hasattr(values, "detach") else values, dtype=np.float64)
    array = array[np.isfinite(array)].ravel()
    try:
        with np.errstate(all="ignore"):
            counts, edges = np.histogram(array, bins=bins)
    except unless_interrupt(ValueError):  # too narrow or too wide to divide into float64 bins: use one bin
        low, high = float(array.min()), float(array.max())
        return (math.nextafter(low, -math.inf), math.nextafter(high, math.inf)), (float(array.size),)
    return edges.tolist(), counts.tolist()


@dataclass(frozen=True, slots=True)
class DeviceScalar:
    """A tensor of one element whose value is on a device; reading it now would block."""

    tensor: Any


Media = MediaValue | tuple[MediaValue, ...]  # one, or what a list of them holds
Logged = float | str | Histogram | DeviceScalar | Media


def flatten(
    data: Mapping[Any, Any],
    is_over: Callable[[str], bool] = lambda key: False,
    prefix: str = "",
    depth: int = 0,
) -> Iterator[tuple[str, Logged] | Diagnostic]:
    """Walk a dict of values, nested keys joined with `/`: yield (key, value), or a Diagnostic if it cannot be logged.

    is_over: returns True for a key that must be dropped; called before its value is read.
    """
    for key, value in _entries(data, prefix):
        if isinstance(value, Diagnostic) and key is None:
            yield value
            return
        if not isinstance(key, str):
            text = short_repr(key)
            yield Diagnostic("key_not_string", text, f"key {text} is not a string; use str() of it")
            continue
        name = f"{prefix}/{key}" if prefix else key
        if type(value) not in FLOAT_TYPES and _is_mapping(value):
            if depth >= NESTING_MAX:
                yield Diagnostic(
                    "nested_too_deep", name, f"{name!r:.80} nests deeper than {NESTING_MAX} dicts; flatten it"
                )
            else:
                yield from flatten(value, is_over, name, depth + 1)
            continue
        if is_over(name):
            continue
        size = len(name.encode("utf-8", "surrogatepass"))
        if size > KEY_BYTES_MAX or not name:
            message = f"key {name!r:.60} has {size} bytes, the limit is {KEY_BYTES_MAX}; shorten it"
            if not name:
                message = "a value has no name: its key is ''; give it a name"
            yield Diagnostic("key_length", name[:REPR_CHARS], message)
            continue
        if not is_encodable(name):
            yield Diagnostic(
                "key_not_text", short_repr(name), f"key {short_repr(name)} has lone surrogates; use valid Unicode"
            )
            continue
        try:
            media = _media_of(value)
            converted = convert_value(name, value) if media is None else media
        except unless_interrupt(Exception) as error:  # a foreign type may raise anything
            why = f"{type(error).__name__} {_error_text(error)}"
            message = f"{name!r:.80} cannot be read: {why}; log a number or short text"
            converted = Diagnostic("unreadable", name, message)
        yield converted if isinstance(converted, Diagnostic) else (name, converted)


def _entries(data: Mapping[Any, Any], name: str) -> Iterator[tuple[Any, Any]]:
    """Walk the items of a dict or dict-like object. If that raises, the last item is (None, Diagnostic)."""
    try:
        entries = iter(data.items())
    except unless_interrupt(Exception) as error:
        yield None, _unreadable(name, error)
        return
    while True:
        try:
            key, value = next(entries)
        except StopIteration:
            return
        except unless_interrupt(Exception) as error:
            yield None, _unreadable(name, error)
            return
        yield key, value


def _unreadable(name: str, error: Exception) -> Diagnostic:
    what = f"the dict {name!r:.80}" if name else "the dict that log() was given"
    message = f"{what} cannot be read on: {type(error).__name__} {_error_text(error)}"
    return Diagnostic("unreadable", name, message)


def _is_mapping(value: Any) -> bool:
    try:
        return isinstance(value, Mapping)
    except unless_interrupt(Exception):  # from a __class__ that is a property
        return False


def _error_text(error: Exception) -> str:
    try:
        return clean_utf8(str(error))[:200]
    except unless_interrupt(Exception):  # an exception whose str() raises
        return ""


def convert_value(key: str, value: Any) -> Logged | Diagnostic:
    """Convert one value for logging, or return a diagnostic."""
    kind = type(value)
    if kind in FLOAT_TYPES or isinstance(value, bool):
        return _to_float(key, value)
    if isinstance(value, str):
        if len(value) > TEXT_CHARS_MAX:
            message = f"text of {len(value)} characters under {key!r} exceeds {TEXT_CHARS_MAX}; log it as a file"
            return Diagnostic("text_too_long", key, message)
        return value if is_encodable(value) else clean_utf8(value)
    if isinstance(value, Histogram):
        return Diagnostic("not_a_histogram", key, f"{key!r:.80}: {value.problem}") if value.problem else value
    if is_stand_in(value):  # safeguard: stand-in-is-no-value
        message = f"{key!r:.80} is of a name that chiplog does not have: it is not recorded; log a number or short text"
        return Diagnostic("stand_in", key, message)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _convert_tensor(torch, key, value)
    if kind.__module__ == "numpy" or hasattr(value, "__array__"):
        shape = getattr(value, "shape", None)
        if shape is None:
            return _not_a_number(key, value)
        if shape == () and getattr(value, "dtype", None) is not None and value.dtype.kind in "fiub":
            if kind.__name__ != "ndarray":
                FLOAT_TYPES.add(kind)
            return _to_float(key, value)
        return _one_element(key, value, tuple(shape), math.prod(shape))
    if isinstance(value, Real) or (hasattr(value, "__float__") and not isinstance(value, complex)):
        return _to_float(key, value)
    return _not_a_number(key, value)


def _media_of(value: Any) -> Media | None:
    if isinstance(value, MediaValue):
        return value
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return tuple(value) if is_list and all(isinstance(item, MediaValue) for item in value) else None


def _convert_tensor(torch: Any, key: str, tensor: Any) -> Logged | Diagnostic:
    """Read a tensor, or return a DeviceScalar. Keeps no graph alive and causes no communication."""
    if tensor.numel() == 1:
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # sharded, fake, asynchronous …
            local = _replicated_local(tensor)
            if local is None:
                what = type(tensor).__name__
                message = f"{key!r} is a {what}, whose value is not here; log its full_tensor(), or a plain tensor"
                return Diagnostic("wrapped_tensor", key, message)
            tensor = local
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            message = f"{key!r} is a value inside of a torch.func transformation; return it, and log it outside"
            return Diagnostic("wrapped_tensor", key, message)
        if tensor.device.type in DEVICE_TYPES and not tensor.dtype.is_complex:
            return DeviceScalar(tensor.detach())
        if hot_path is not None:  # it reads the next ones
            hot_path.set_value_types(FLOAT_TYPES, torch.Tensor, torch._C._functorch.is_functorch_wrapped_tensor)
    return _one_element(key, tensor.detach(), tuple(tensor.shape), tensor.numel())


def _replicated_local(tensor: Any) -> Any:
    """Return the local part of a DTensor that is replicated on every rank; None for anything else."""
    placements = getattr(tensor, "placements", None)
    if placements and all(placement.is_replicate() for placement in placements):
        return tensor.to_local()
    return None


def _one_element(key: str, value: Any, shape: tuple[int, ...], n_elements: int) -> Logged | Diagnostic:
    if n_elements != 1:
        message = f"{key!r} is an array of shape {shape}; log a scalar such as its mean, or chiplog.Histogram.of(it)"
        return Diagnostic("array", key, message)
    return _to_float(key, value.item())


def _to_float(key: str, value: Any) -> Logged | Diagnostic:
    try:
        return float(value)
    except unless_interrupt(OverflowError):
        return Diagnostic(
            "number_too_large", key, f"the number under {key!r} does not fit a float64; log its logarithm"
        )
    except unless_interrupt(Exception):  # safeguard: interrupt-is-no-bad-value
        return _not_a_number(key, value)


def _not_a_number(key: str, value: Any) -> Diagnostic:
    if value is None:
        remedy = "leave it out, or log float('nan')"
    elif isinstance(value, list | tuple | set | frozenset):
        remedy = "log each under a name of its own, their mean, or chiplog.Histogram.of(it)"
    elif isinstance(value, complex):
        remedy = "log its abs(), or its real and imag"
    else:
        remedy = _REMEDIES.get(str(type(value).__module__).partition(".")[0], "log float(value) or str(value)")
    message = f"{key!r:.80} is a {type(value).__name__}, not a number or short text; {remedy}"
    return Diagnostic("not_a_number", key, message)
