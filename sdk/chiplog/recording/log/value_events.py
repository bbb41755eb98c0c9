"""Numbers as events: each set of keys is packed once, and large ones are split."""

import struct
from collections.abc import Mapping
from math import isfinite
from time import time_ns

from chiplog.journal.event_sink import NullJournal
from chiplog.recording.log.logged_keys import LoggedKeys
from chiplog.recording.log.loop_calls import LoopCalls
from chiplog.safety.diagnostics import Diagnostics
from chiplog.values.logged_values import LoggedValues
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind

_INT_BYTES_MAX = 9  # of msgpack
_SHAPES_MAX = 4096  # cached tuples of keys; a script that generates more takes the slow path
_SHAPE_KEYS_MAX = 200_000  # keys in all of them: about 20 MB


class ValueEvents:
    """Append the numbers of one run. calls: has its journal, and the cache of key sets, which `log()` reads."""

    def __init__(
        self,
        calls: LoopCalls,
        keys: LoggedKeys,
        logged: LoggedValues,
        diagnostics: Diagnostics,
        event_bytes_max: int,
    ) -> None:
        self._calls = calls
        self._keys = keys
        self._logged = logged
        self._diagnostics = diagnostics
        self._event_bytes_max = event_bytes_max
        self._shape_keys = 0  # in the cache
        calls._key_sets = {}

    def append_metrics(self, step: int, numbers: Mapping[str, float], ts: int | None = None) -> None:
        """Append numbers whose keys are registered. ts: in microseconds since the epoch; default: now."""
        if not numbers:
            return
        if not isfinite(sum(numbers.values())):
            self._diagnostics.report_nonfinite(numbers, step)
        self.append(EventKind.METRICS, step, numbers, ts)

    def append_resolved(self, step: int, ts: int, numbers: Mapping[str, float]) -> None:
        """Append numbers of another time than now, and register their keys."""
        self.append_metrics(step, {key: value for key, value in numbers.items() if self._keys.register(key)}, ts)

    def append_times(self, step: int, ts: int, seconds: Mapping[str, float]) -> None:
        """Append the seconds of phases that another time than now has ended."""
        self.append(EventKind.PHASES, step, seconds, ts)

    def append(self, kind: EventKind, step: int, numbers: Mapping[str, float], ts: int | None = None) -> None:
        """Append numbers as an event of a kind, as several if they are too many for one."""
        calls = self._calls
        ts = ts or time_ns() // 1000
        keys = tuple(numbers)
        known = calls._key_sets.get(keys)
        if known is not None:
            self._note(kind, numbers)
            calls._journal.append(calls._pack((int(kind), ts, step, known[0], known[1](*numbers.values()))))
            return
        shape = pack(list(keys)), struct.Struct(f"<{len(keys)}d").pack
        payload = calls._pack((int(kind), ts, step, shape[0], shape[1](*numbers.values())))
        if len(payload) <= self._event_bytes_max:  # safeguard: large-call-split
            # The fast path does not check sizes: only shapes that fit with any step are cached.
            if len(payload) + _INT_BYTES_MAX <= self._event_bytes_max and not calls._finished:
                if len(calls._key_sets) >= _SHAPES_MAX or self._shape_keys + len(keys) > _SHAPE_KEYS_MAX:
                    self.forget_key_sets()
                is_numbered = not isinstance(calls._journal, NullJournal)
                calls._key_sets[keys] = (*shape, *self._logged.begin_set(keys, is_numbered=is_numbered))
                self._shape_keys += len(keys)
            self._note(kind, numbers)
            # Last: no call follows, so an exception of a signal handler in this function comes before the append.
            calls._journal.append(payload)
        elif len(numbers) > 1:  # thousands of long keys in one call: split into two events
            items = list(numbers.items())
            for half in (items[: len(items) // 2], items[len(items) // 2 :]):
                self.append(kind, step, dict(half), ts)

    def forget_key_sets(self) -> None:
        """Empty the cache: it is full, or what it holds is outdated."""
        self._calls._key_sets.clear()
        self._logged.forget_sets(getattr(self._calls, "_last_metrics_tally", None))
        self._shape_keys = 0

    def _note(self, kind: EventKind, numbers: Mapping[str, float]) -> None:
        if kind is EventKind.METRICS:
            self._logged.note((self._calls._journal.next_seq, tuple(numbers), tuple(numbers.values())))
