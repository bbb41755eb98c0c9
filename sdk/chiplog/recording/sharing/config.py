"""`run.config`, `run.summary` and `define_metric`."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any

from chiplog.safety.boundary import never_raises
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.text import clean_utf8, short_repr
from chiplog.settings import flag
from chiplog.values.config import Fingerprints, config_entries, to_plain
from chiplog.values.logged_values import LoggedValues, Tally
from chiplog_schemas.interrupts import unless_interrupt
from chiplog_schemas.limits import EVENT_BYTES_MAX, KEY_BYTES_MAX
from chiplog_schemas.model.events import SUMMARIES, EventKind

_DEFINITIONS_MAX = 1_000  # names and patterns of one label; only a loop makes more

_HASHES_INTERVAL_S = 1.0  # between two events: a config that changes in each step costs one event a second


def _ignore(_: Diagnostic) -> None:
    """Ignore a diagnostic: the run reported it when the value was set."""


class _ObservedDict(MutableMapping[str, Any]):
    """A dict that reports every change, by key or attribute: `run.config.lr = 0.5`."""

    def __init__(self, emit: Callable[[Mapping[str, Any]], None], report_fault: Callable[[Diagnostic], None]) -> None:
        self._emit = emit
        self._report_fault = report_fault
        self._values: dict[str, Any] = {}

    def _publish_update(self, values: Mapping[str, Any]) -> None:
        """Set many at once, as one event."""
        if values:
            self._values.update(values)
            self._emit(values)

    def _merge_remote(self, values: Mapping[str, Any]) -> None:
        """Adopt entries that another process has set and emitted."""
        self._values.update(values)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the entries as a plain dict: another process has no run for them."""
        plain = {key: to_plain(type(self).__name__.lower(), value, _ignore) for key, value in dict(self).items()}
        return dict, (plain,)

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return deepcopy(dict(self), memo)

    def update(self, *arguments: Any, **values: Any) -> None:
        """Set many at once, as one event. An argument that is not a dict is counted as bad, not raised."""
        try:
            changes = dict(*arguments, **values)
        except unless_interrupt(Exception) as error:
            name = type(self).__name__.lower()
            message = (
                f"{name}.update() takes a dict, not {', '.join(map(short_repr, arguments))} ({type(error).__name__})"
            )
            self._report_fault(Diagnostic("not_a_dict", name, message))
            return
        self._publish_update(changes)

    def __setitem__(self, key: str, value: Any) -> None:
        self._publish_update({str(key): value})

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __delitem__(self, key: str) -> None:
        """Remove a value in this process. Events that were emitted stay."""
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self[name] = value


class Config(_ObservedDict):
    """The configuration that the run started with. The primary's is the run's; changes on other ranks stay local.

    A dict whose entries are attributes, too. Values are stored as JSON, one row per key in the view `config`.

    Examples:
        >>> run.config["lr"] = 3e-4
        >>> run.config.update({"depth": 12, "width": 768})
        >>> run.config.lr
        0.0003
    """

    def update(self, *arguments: Any, allow_val_change: bool | None = None, **values: Any) -> None:
        """Set many entries as one event. A wrong argument is counted as bad, never raised.

        Args:
            *arguments: A dict, or what `dict()` takes.
            allow_val_change: Ignored: entries may always change. Taken because W&B's `config.update` has it.
            **values: Entries by name.
        """
        super().update(*arguments, **values)

    def setdefaults(self, values: Any) -> None:
        """Set the entries that are not set yet, as one event. A wrong argument is counted as bad, never raised.

        Args:
            values: Entries by name: a dict, or what `init(config=…)` takes.
        """
        try:
            given = config_entries(values)
        except unless_interrupt(Exception):
            self.update(values)  # names what is wrong with it
            return
        self.update({key: value for key, value in given.items() if key not in self})

    def as_dict(self) -> dict[str, Any]:
        """Return the entries as a plain dict."""
        return dict(self._values)


class Summary(_ObservedDict):
    """The summary of this label: what is set here, and of each other metric the last value that this process logged.

    A dict whose entries are attributes, too. `define_metric` chooses another default than the last value. A value on a
    device is awaited, for at most a second.

    Examples:
        >>> run.summary["best/epoch"] = 7
        >>> run.summary.accuracy = 0.93
        >>> run.log({"loss": 0.5})
        >>> run.summary["loss"]
        0.5
    """

    def __init__(
        self,
        emit: Callable[[Mapping[str, Any]], None],
        report_fault: Callable[[Diagnostic], None],
        logged: LoggedValues | None = None,
        await_values: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(emit, report_fault)
        self._logged = LoggedValues() if logged is None else logged
        self._await_values = await_values
        self._deleted: dict[str, Tally] = {}  # what a metric had then: it is back with the next value

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._await_values()
            return self._logged_value(key)
        return self._values[key]

    def _logged_value(self, key: str) -> float:
        """Return the value of a metric; raise KeyError if it has none here."""
        value = self._logged.summarize(key)
        if value is None or (key in self._deleted and self._deleted[key] == self._logged.tally(key)):
            raise KeyError(key)
        return value

    def __delitem__(self, key: str) -> None:
        """Remove a value in this process. Events that were emitted stay."""
        is_set = self._values.pop(key, self) is not self
        if (tally := self._logged.tally(key)) is not None:
            self._deleted[key] = tally
        elif not is_set:
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        self._await_values()
        return iter([*self._values, *(key for key in self._logged.list_keys() if self._is_shown(key))])

    def _is_shown(self, key: str) -> bool:
        try:
            return key not in self._values and self._logged_value(key) is not None
        except KeyError:
            return False

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of Python look these up
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class ConfigPublisher:
    """Emit events for config, summary and metric definitions. All labels emit hashes, only the primary the config.

    emit: appends an event. internal: called with internal errors, because nothing is raised here.
    is_silent: called with the name of the call. Returns True if the run is disabled or finished, and warns if finished.
    logged, await_values: of the summary.
    whole: whether init() got a config. If it did, a key that it lacks differs from the primary's too.
    """

    def __init__(
        self,
        emit: Callable[..., None],
        report_fault: Callable[[Diagnostic], None],
        internal: Callable[[str, Exception], None],
        *,
        is_primary: Callable[[], bool],
        is_silent: Callable[[str], bool],
        whole: bool = True,
        event_bytes_max: int = EVENT_BYTES_MAX,
        logged: LoggedValues | None = None,
        await_values: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = Config(self.publish_config, report_fault)
        self.summary = Summary(self.emit_summary, report_fault, logged, await_values)
        self._emit = emit
        self._report_fault = report_fault
        self._report_internal_error = internal
        self._is_primary = is_primary
        self._is_silent = is_silent
        self._event_bytes_max = event_bytes_max
        self._fingerprints = Fingerprints()
        self._whole = whole
        self._hashes_are_new = False
        self._hashes_at = 0.0
        self._hashes_lock = threading.Lock()  # between the sender thread and finish(), which must not overtake it
        self._definitions: dict[str, dict[str, Any]] = {}

    def publish_config(self, values: Mapping[str, Any]) -> None:
        """Emit entries of the config if this is the primary. Always remember their hashes."""
        if values and not self._is_silent("config"):
            self._publish_config(values)

    @never_raises("config")
    def _publish_config(self, values: Mapping[str, Any]) -> None:
        plain = self._plain("config", values)
        self._fingerprints.update(plain)
        self._hashes_are_new = True
        if self._is_primary():
            self._emit_json(EventKind.CONFIG, plain)

    def emit_summary(self, values: Mapping[str, Any]) -> None:
        """Emit entries of the summary."""
        if not self._is_silent("summary"):
            self._emit_summary(values)

    @never_raises("summary")
    def _emit_summary(self, values: Mapping[str, Any]) -> None:
        self._emit_json(EventKind.SUMMARY, self._plain("summary", values))

    def summary_kind(self, key: str) -> str:
        """Return how this label sums up a metric: an exact name counts, then the longest pattern."""
        kinds = [
            (name == key, len(name), name, definition["summary"])
            for name, definition in list(self._definitions.items())
            if "summary" in definition and (name == key or fnmatchcase(key, name))
        ]
        return max(kinds)[-1] if kinds else "last"

    @never_raises("define_metric")
    def define(self, name: Any, summary: Any, step_metric: Any, hidden: Any = None) -> None:
        """Emit how a metric, or all metrics of a pattern, is summarized and drawn."""
        if not self._is_name(name, "name", name):
            return
        definition: dict[str, Any] = {}
        if isinstance(summary, str) and summary in SUMMARIES:
            definition["summary"] = summary
        elif summary is not None:
            self._report_of(
                name, f"summary {short_repr(summary)} is not one of {', '.join(SUMMARIES)}; it is unchanged"
            )
        if step_metric is not None and self._is_name(name, "step_metric", step_metric):
            definition["step_metric"] = clean_utf8(step_metric)
        is_hidden, bad = flag("hidden", hidden)
        if bad is not None:
            self._report_of(name, f"hidden {short_repr(hidden)} is not True or False; it is unchanged")
        elif is_hidden is not None:
            definition["hidden"] = is_hidden
        name = clean_utf8(name)
        merged = self._definitions.get(name, {}) | definition
        if merged == self._definitions.get(name, {}):  # scripts repeat definitions in every epoch
            return
        if name not in self._definitions and len(self._definitions) >= _DEFINITIONS_MAX:
            self._report_of(name, f"the limit is {_DEFINITIONS_MAX} names; use a pattern such as val/*")
            return
        self._definitions[name] = merged
        if not self._is_silent("define_metric()"):
            self._emit(EventKind.DEFINE, name, merged)

    def _is_name(self, name: Any, what: str, given: Any) -> bool:
        size = len(given.encode("utf-8", "replace")) if isinstance(given, str) else 0
        if 0 < size <= KEY_BYTES_MAX:
            return True
        self._report_of(name, f"{what} {short_repr(given)} is not a text of 1 to {KEY_BYTES_MAX} bytes; name a metric")
        return False

    def _report_of(self, name: Any, what: str) -> None:
        self._report_fault(Diagnostic("bad_definition", short_repr(name), f"define_metric({short_repr(name)}): {what}"))

    def publish_hashes(self, now: float | None = None) -> None:
        """Emit the hashes of the config if it changed. With `now` in seconds, at most once per interval."""
        with self._hashes_lock:
            if self._hashes_are_new and (now is None or now - self._hashes_at >= _HASHES_INTERVAL_S):
                self._hashes_are_new = False
                self._hashes_at = now or 0.0
                self._emit(EventKind.CONFIG_HASHES, int(self._whole), self._fingerprints.as_event_fields())

    def reset_after_fork(self) -> None:
        """Drop pending hashes in a forked child: the parent emits them."""
        self._hashes_are_new = False
        self._hashes_lock = threading.Lock()  # the parent's sender may have held it

    def _plain(self, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
        plain = {}
        for key, value in values.items():
            name = key if isinstance(key, str) else short_repr(key)
            plain[clean_utf8(name)] = to_plain(f"{what} {short_repr(key)}", value, self._report_fault)
        return plain

    def _emit_json(self, kind: EventKind, plain: Mapping[str, Any]) -> None:
        definition = {key: json.dumps(value) for key, value in plain.items()}
        for part in _split(definition, self._event_bytes_max // 2):
            self._emit(kind, part)


def _split(definition: dict[str, str], chars_max: int) -> Iterator[dict[str, str]]:
    if len(definition) > 1 and sum(map(len, definition)) + sum(map(len, definition.values())) > chars_max:
        items = list(definition.items())
        yield from _split(dict(items[: len(items) // 2]), chars_max)
        yield from _split(dict(items[len(items) // 2 :]), chars_max)
    elif definition:
        yield definition
