"""Turn a config of any type into plain values, and into hashes that are compared across ranks. Pure, never raises.

Accepts dicts, dataclasses, argparse namespaces, OmegaConf, attrs and pydantic objects, in any nesting. A type that JSON
lacks becomes text: a dtype `torch.float32`, a path, an enum's name, a function's full name.
"""

import dataclasses
import enum
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.foreign_names import is_stand_in
from chiplog.safety.text import clean_utf8, short_repr
from chiplog_schemas.interrupts import unless_interrupt
from chiplog_schemas.limits import KEY_BYTES_MAX

VALUES_MAX = 100_000  # in one config: more is a data set, and reading it would delay init()
TEXT_CHARS_MAX = 262_144  # of one text: four of them fit an event
HASHES_MAX = 1_000  # sent for one config, about 30 KB: with more keys only top-level keys are compared
_DEPTH_MAX = 64  # only an endless loop nests deeper
_REPR_CHARS_MAX = 1_000  # of an object of any other type
_ARRAY_VALUES_MAX = 1_000  # a larger array is described by its shape
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in a repr: different in each process
_INT_BITS_MAX = 4_096  # Python does not print more than 4,300 digits
# Last parts of keys that identify the process: their values are compared without digits.
PER_PROCESS = {"device", "device_id", "device_index", "gpu", "gpu_id", "gpu_ids", "local_gpu", "pid"} | {
    *("rank", "local_rank", "global_rank", "node_rank", "group_rank", "worker_rank"),
    *("process_index", "local_process_index"),
}

Report = Callable[[Diagnostic], None]


def config_entries(value: Any) -> dict[str, Any]:
    """Return the entries of a config as a dict, with unchanged values: `to_plain` converts them.

    Raises TypeError for a type without entries, such as a number or list, and anything that a foreign type raises.
    """
    if value is None:
        return {}
    if is_stand_in(value):
        raise TypeError
    entries = entries_of(value)
    if entries is None:
        items = getattr(value, "items", None)
        if not callable(items) and (not hasattr(value, "__dict__") or hasattr(value, "read")):
            raise TypeError  # an open file has attributes too
        entries = items() if callable(items) else vars(value).items()
    return {str(key): entry for key, entry in entries}


def entries_of(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """Return the (name, value) pairs of an object with named values, None for anything else."""
    kind = type(value)
    if isinstance(value, type):
        return None
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and isinstance(value, omegaconf.DictConfig):
        entries: Iterator[tuple[Any, Any]] = _omegaconf_entries(value, omegaconf.OmegaConf)
        return entries
    if isinstance(value, Mapping):
        return iter(value.items())
    if dataclasses.is_dataclass(value):
        return ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    if hasattr(kind, "__attrs_attrs__"):
        attributes: Any = kind
        return ((field.name, getattr(value, field.name, None)) for field in attributes.__attrs_attrs__)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        names: Any = kind._fields
        return iter(zip(names, value, strict=False))
    # pydantic 2, then pydantic 1.
    dump = getattr(kind, "model_dump", None) or (getattr(kind, "dict", None) if hasattr(kind, "__fields__") else None)
    if callable(dump):
        return iter(dict(dump(value)).items())
    if kind.__name__ in ("Namespace", "SimpleNamespace") and hasattr(value, "__dict__"):
        named: dict[str, Any] = vars(value)
        return iter(named.items())
    return None


def _omegaconf_entries(value: Any, to: Any) -> Iterator[tuple[Any, Any]]:
    """Yield resolved entries; a missing or unresolvable value as it was written: `???`, `${model.width}`."""
    written = to.to_container(value, resolve=False)
    if not isinstance(written, dict):  # a config that is itself None or missing
        return
    for key in written:
        try:
            yield key, value[key]
        except unless_interrupt(Exception):  # from OmegaConf or a resolver of the user
            yield key, written[key]


def _omegaconf_list(value: Any, to: Any) -> Iterator[Any]:
    written = to.to_container(value, resolve=False)
    for index, text in enumerate(written if isinstance(written, list) else []):
        try:
            yield value[index]
        except unless_interrupt(Exception):
            yield text


def to_plain(name: str, value: Any, report_fault: Report) -> Any:
    """Return a value as nested dicts, lists, texts, numbers, booleans and None.

    name: for diagnostics, such as `config lr`. An unreadable value becomes a placeholder text, and is reported.
    """
    return _PlainConverter(name, report_fault).plain(value)


class _PlainConverter:
    """Convert one value."""

    def __init__(self, name: str, report_fault: Report) -> None:
        self._name = name
        self._report_fault = report_fault
        self._budget = VALUES_MAX
        self._ancestors: set[int] = set()  # containers that enclose the current one

    def plain(self, value: Any) -> Any:
        self._budget -= 1
        kind = type(value)
        if kind is str:
            return self._text(value)
        if value is None or kind is bool or kind is float:
            return value
        if kind is int:
            return value if value.bit_length() <= _INT_BITS_MAX else f"<int of {value.bit_length()} bits>"
        try:
            return self._other(value, kind)
        except RecursionError:
            return self._placeholder(f"<{kind.__name__}>", "nests too deep")
        except unless_interrupt(Exception) as error:  # a foreign type may raise anything
            return self._placeholder(
                f"<{kind.__name__}>", f"cannot be read ({type(error).__name__} {_error_text(error)})"
            )

    def _other(self, value: Any, kind: type) -> Any:
        if is_stand_in(value):
            return self._placeholder("<not available in chiplog>", "is of a name that chiplog does not have")
        if isinstance(value, enum.Enum):
            return self._text(str(value.name))
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, os.PathLike):
            path = os.fspath(value)
            return self._text(path if isinstance(path, str) else os.fsdecode(path))
        if isinstance(value, int):  # of a derived class
            return self.plain(int.__index__(value))
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, list | tuple | AbstractSet) and not hasattr(kind, "_fields"):
            return self._list(value, len(value), iter(value), is_set=isinstance(value, AbstractSet))
        omegaconf = sys.modules.get("omegaconf")
        if omegaconf is not None and isinstance(value, omegaconf.ListConfig):
            return self._list(value, len(value), _omegaconf_list(value, omegaconf.OmegaConf))
        if getattr(kind, "__pydantic_root_model__", False):  # a model of one value, such as a list
            return self.plain(value.root)
        entries = entries_of(value)
        if entries is not None:
            return self._dict(value, entries)
        return self._described(value, kind)

    def _described(self, value: Any, kind: type) -> Any:
        """Return what is recorded for an object without entries: its name, its shape or its repr."""
        if isinstance(value, type) or (hasattr(value, "__qualname__") and hasattr(value, "__module__")):
            return self._text(f"{value.__module__}.{value.__qualname__}")
        if hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
            return {"partial": self.plain(value.func), "args": self.plain(value.args), "kw": self.plain(value.keywords)}
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple) and hasattr(value, "dtype"):
            return self._array(value, shape)
        if {kind.__repr__, kind.__str__} <= {object.__repr__, object.__str__}:
            return f"<{kind.__module__}.{kind.__qualname__}>"
        text = str(value)
        return self._text(_ADDRESS.sub("", text[:_REPR_CHARS_MAX]))

    def _array(self, value: Any, shape: tuple[int, ...]) -> Any:
        """Read small arrays of the host. Describe a tensor by its shape: it may be on a device, which would block."""
        if type(value).__module__.partition(".")[0] == "numpy" and math.prod(shape) <= _ARRAY_VALUES_MAX:
            return self.plain(value.tolist())
        return f"<{type(value).__name__} of shape {tuple(shape)}, {value.dtype}>"

    def _list(self, value: Any, length: int, entries: Iterator[Any], *, is_set: bool = False) -> Any:
        if is_set and self._fits(value, length):
            # In the same order in all processes: the order of a set of texts differs.
            entries = iter(sorted(value, key=lambda entry: (type(entry).__name__, short_repr(entry))))
        return self._guarded(value, length, lambda: [self.plain(entry) for entry in entries])

    def _dict(self, value: Any, entries: Iterator[tuple[Any, Any]]) -> Any:
        length = len(value) if hasattr(value, "__len__") else 0
        return self._guarded(
            value, length, lambda: {clean_utf8(_key(key)): self.plain(entry) for key, entry in entries}
        )

    def _guarded(self, value: Any, length: int, walk: Callable[[], Any]) -> Any:
        mark = id(value)
        if mark in self._ancestors:
            return self._placeholder("<cycle>", "holds itself")
        if not self._fits(value, length):
            text = f"<{type(value).__name__} of {length} values>"
            return self._placeholder(
                text, f"has a {type(value).__name__} of {length} values, the limit is {VALUES_MAX}"
            )
        if len(self._ancestors) >= _DEPTH_MAX:
            return self._placeholder(f"<{type(value).__name__}>", f"nests deeper than {_DEPTH_MAX}")
        self._ancestors.add(mark)
        try:
            return walk()
        finally:
            self._ancestors.discard(mark)

    def _fits(self, value: Any, length: int) -> bool:
        return length <= max(self._budget, 0)

    def _text(self, text: str) -> str:
        if len(text) > TEXT_CHARS_MAX:
            end = f"… ({len(text)} characters)"
            self._placeholder("", f"has a text of {len(text)} characters, the limit is {TEXT_CHARS_MAX}; it is cut")
            text = text[: TEXT_CHARS_MAX - len(end)] + end
        return clean_utf8(text)

    def _placeholder(self, kept: str, what: str) -> str:
        message = f"{self._name} {what}; {f'{kept} is recorded instead, ' if kept else ''}use plain values"
        self._report_fault(Diagnostic("not_json", self._name, clean_utf8(message)))
        return kept


def _key(key: Any) -> str:
    return key if isinstance(key, str) else key.name if isinstance(key, enum.Enum) else str(key)


def _error_text(error: Exception) -> str:
    try:
        return str(error)[:200]
    except unless_interrupt(Exception):  # an exception whose str() raises
        return ""


# -- hashes --


class Fingerprints:
    """Hashes of a config by key, nested keys joined with `/`, to compare ranks without sending values."""

    def __init__(self) -> None:
        self._hashes: dict[str, dict[str, str]] = {}  # by top-level key, then by path

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def update(self, plain: Mapping[str, Any]) -> None:
        """Set top-level entries from `to_plain`, replacing earlier ones of the same names."""
        for key, value in plain.items():
            self._hashes[key] = {path: _hash(path, leaf) for path, leaf in _leaves(key, value)}

    def as_event_fields(self) -> dict[str, str]:
        """Return path → 8 hex digits, at most HASHES_MAX. Beyond that: by top-level key, or one hash of all."""
        hashes = dict(self._hashes)  # a copy: the training may set an entry at the same time
        if sum(map(len, hashes.values())) <= HASHES_MAX:
            return {path: digest for paths in hashes.values() for path, digest in paths.items()}
        whole = {key: _digest(sorted(paths.items())) for key, paths in hashes.items()}
        return whole if len(whole) <= HASHES_MAX else {"*": _digest(sorted(whole.items()))}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _leaves(f"{path}/{key}", entry)
    else:
        yield path.encode("utf-8", "replace")[:KEY_BYTES_MAX].decode("utf-8", "replace"), value


def _hash(path: str, value: Any) -> str:
    text = json.dumps(value)
    if path.rpartition("/")[2].lower() in PER_PROCESS:
        text = re.sub(r"-?\d+", "", text)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]
