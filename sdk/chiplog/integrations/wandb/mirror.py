"""`mirror()`: the real wandb stays, and chiplog records what its runs are given, too. To try before switching."""

import importlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from chiplog.identity.identity import is_rank_of_launcher
from chiplog.integrations.wandb.errors import warn
from chiplog.integrations.wandb.start import init
from chiplog.integrations.wandb.wandb_run import Run
from chiplog_schemas.interrupts import unless_interrupt

_log = logging.getLogger("chiplog")
_followers: "WeakKeyDictionary[Any, Run]" = WeakKeyDictionary()  # by run of the real wandb
_MARK = "_chiplog_mirror"
# Settings that W&B alone follows: where it sends, and what it raises.
_OF_WANDB = frozenset({"mode", "strict", "silent", "monitor_gym"})


def mirror() -> None:
    """Record what runs of the installed wandb are given, from now on. Call it before `wandb.init()`.

    Its calls go to W&B first, and what they return or raise stays. `init`, `log`, `define_metric`, `alert`, `save`,
    `finish`, config and summary are followed; artifacts and `watch` are W&B's alone.
    """
    try:
        real: Any = importlib.import_module("wandb")
    except ImportError:
        warn("mirror() needs an installed wandb; without one, import chiplog.integrations.wandb as wandb")
        return
    if real.__name__ != "wandb":
        warn("mirror() does nothing here: wandb is chiplog's drop-in already")
    elif not hasattr(real.init, _MARK):
        _follow(real)


def _follow(real: Any) -> None:
    kind = importlib.import_module("wandb.sdk.wandb_run").Run
    real.init = _after(real.init, _begin)
    for name in ("define_metric", "alert", "save"):
        setattr(kind, name, _after(getattr(kind, name), _passed_on(name)))
    for name in ("name", "notes", "tags"):
        text = getattr(kind, name)
        setattr(kind, name, property(text.fget, _after(text.fset, _assigned(name)), doc=text.__doc__))
    kind.log = _log_both(kind.log)
    # finish(), the end of a with block and that of the process lead there.
    kind._atexit_cleanup = _after(kind._atexit_cleanup, _finish)
    kind._config_callback = _after(kind._config_callback, _take_config)
    kind._summary_update_callback = _after(kind._summary_update_callback, _take_summary)


def _after(call: Callable[..., Any], follow: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a call and then follows it, given the result and the arguments."""

    @wraps(call)
    def both(*given: Any, **named: Any) -> Any:
        result = call(*given, **named)
        try:
            follow(result, *given, **named)
        except unless_interrupt(Exception) as error:
            _log.debug("chiplog: %s is not mirrored: %s", getattr(call, "__name__", call), error)
        return result

    setattr(both, _MARK, True)
    return both


def _log_both(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return W&B's log(), followed. Values are converted before the call, which replaces those in nested dicts."""

    @wraps(call)
    def both(run: Any, data: Any, *given: Any, **named: Any) -> Any:
        try:
            values = converted(data)
        except unless_interrupt(Exception):
            values = data  # chiplog's log() reports what it cannot take
        return _after(call, lambda *_, **__: _of(run).log(values, *given, **named))(run, data, *given, **named)

    setattr(both, _MARK, True)
    return both


def _finish(_: Any, run: Any, *given: Any, **named: Any) -> None:
    _of(run).finish(run._exit_code)


def _assigned(name: str) -> Callable[..., Any]:
    return lambda _, run, value: setattr(_of(run), name, value)


def _begin(real_run: Any, *given: Any, **named: Any) -> None:
    """Open chiplog's run beside a new one of W&B."""
    if real_run in _followers or real_run.disabled:
        return
    # W&B's own files and server are one thing, what chiplog records is another: WANDB_MODE=offline is of the former.
    settings = _settings_of(named.get("settings"))
    named = {**named, "mode": os.environ.get("CHIPLOG_MODE") or "online", "settings": settings}
    named["monitor_gym"] = None  # W&B logs the videos, to both
    if named.get("id") is None and not is_rank_of_launcher(os.environ):
        named["id"] = real_run.id
    if real_run.settings.mode == "shared":
        named["mode"], settings["x_label"] = "shared", real_run.settings.x_label
    _followers[real_run] = init(*given, **named)


def _settings_of(given: Any) -> dict[str, Any]:
    """Return the settings that `init` was given, without W&B's defaults and without what W&B alone follows."""
    if not isinstance(given, Mapping):
        given = {name: getattr(given, name) for name in getattr(given, "model_fields_set", ())}
    return {name: value for name, value in given.items() if name not in _OF_WANDB}


def _of(real_run: Any) -> Run:
    return _followers[real_run]


def _passed_on(name: str) -> Callable[..., Any]:
    return lambda _, run, *given, **named: getattr(_of(run), name)(*given, **named)


def _take_config(_: Any, run: Any, key: Any = None, val: Any = None, data: Any = None) -> None:
    entries = dict(data or {}) if key is None else {"/".join(key) if isinstance(key, tuple) else key: val}
    _of(run).config.update({name: value for name, value in entries.items() if not name.startswith("_wandb")})


def _take_summary(_: Any, run: Any, record: Any) -> None:
    for item in record.update:
        _of(run).summary["/".join(item.key)] = item.value
    for item in record.remove:
        _of(run).summary.pop("/".join(item.key), None)


# -- values --


def converted(value: Any) -> Any:
    """Return a value of W&B, or what holds some, as chiplog's."""
    if isinstance(value, dict):
        return {key: converted(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [converted(entry) for entry in value]
    convert = _CONVERT.get(type(value).__name__) if type(value).__module__.startswith("wandb.") else None
    return value if convert is None else convert(value)


def _media(name: str) -> Any:
    return getattr(importlib.import_module(f"chiplog.media.{name.lower()}"), name)


def _histogram(value: Any) -> Any:
    from chiplog.values.metrics import Histogram

    return Histogram(edges=value.bins, counts=value.histogram)


def _image(value: Any) -> Any:
    # The file is what W&B stores, of an image and of each mask.
    boxes = {
        name: {"box_data": layer._val, "class_labels": layer._class_labels} for name, layer in _layers(value._boxes)
    }
    masks = {name: _mask(layer) for name, layer in _layers(value._masks)}
    return _media("Image")(
        value._image if value._path is None else value._path,
        caption=value._caption,
        grouping=value._grouping,
        classes=value._classes,
        boxes=boxes,
        masks=masks,
    )


def _layers(of_image: dict[str, Any] | None) -> Iterable[tuple[str, Any]]:
    return (of_image or {}).items()


def _mask(layer: Any) -> dict[str, Any]:
    labels = getattr(layer, "_val", {}).get("class_labels")  # a mask of a file has none
    return {"path": layer._path} if labels is None else {"path": layer._path, "class_labels": labels}


def _table(value: Any) -> Any:
    return _media("Table")(columns=list(value.columns), data=[converted(row) for row in value.data])


def _of_file(name: str) -> Callable[[Any], Any]:
    return lambda value: _media(name)(value._path, caption=value._caption)


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "Histogram": _histogram,
    "Html": lambda value: _media("Html")(value.html, inject=False, data_is_not_path=True),
    "Image": _image,
    "Table": _table,
    **{name: _of_file(name) for name in ("Audio", "Object3D", "Video")},
}
