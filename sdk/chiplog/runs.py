"""One opened run in one process: `log()` and everything else that training code calls. Nothing here raises into it."""

import math
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from chiplog import agreement
from chiplog.complaints import Complaints, alert_level, ending_of
from chiplog.console import Console
from chiplog.identity import PARENT_RUN, with_rank
from chiplog.journal import Journal
from chiplog.phases import Phase
from chiplog.sender import SenderThread
from chiplog.settings import Settings, identity_map
from chiplog.shared import Config, Summary, as_json
from chiplog.stand_ins import AfterFork, Appendable, Nowhere
from chiplog.values import FLOAT_TYPES, Bad, Histogram, cleaned, encodable, flatten, shown
from chiplog_schemas.codec import pack, packer
from chiplog_schemas.events import PRODUCER_BYTES, EventKind, encode
from chiplog_schemas.limits import FINISH_WAIT_S, KEY_BYTES_MAX
from chiplog_schemas.places import check_root

_INT_BYTES_MAX = 9  # of msgpack
_SHAPES_MAX = 4096  # tuples of keys remembered; a script that makes up more pays the slow path
_SHAPE_KEYS_MAX = 200_000  # keys in all of them: some 20 MB, however many one call has


class Run:
    """A run as this process sees it. Made by `chiplog.init`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._bounds = bounds = settings.bounds
        self._identity = settings.identity
        self._started_us = time.time_ns() // 1000
        self._pid = os.getpid()
        self._pack = packer().pack
        # Tuples of keys seen before: their msgpack, and the function that packs their values.
        self._shapes: dict[tuple[str, ...], tuple[bytes, Callable[..., bytes]]] = {}
        self._shape_keys = 0
        self._keys: set[str] = set()
        self._next_step = 0
        self._last_step = 0
        self._phases: dict[str, float] = {}
        self._complaints = Complaints(self._say)
        self._exit: tuple[str, int | None, str | None] = ("finished", 0, None)
        self._finished = False
        self._finish_lock = threading.Lock()
        self._disk_warned = False
        self._console: Console | None = None
        self._sender: SenderThread | None = None
        self._journal: Appendable = Nowhere()
        self.config = Config(self._say_config, lambda bad: self._complaints.note(bad))
        self.summary = Summary(self._say_summary, lambda bad: self._complaints.note(bad))
        if settings.mode != "disabled":
            self._open()
        self.config.adopt(settings.config)
        if settings.capture_console and settings.mode != "disabled":
            rate, burst = bounds.console_lines_per_s, bounds.console_burst_lines
            told = (self._say_line, self._say_lines_lost, self._has_room_for_lines)
            self._console = Console(*told, lines_per_s=rate, burst_lines=burst)

    # -- what it is --

    @property
    def id(self) -> str:
        """The run ID. Under a launcher that shares nothing it may change once torch.distributed is initialised."""
        return self._identity.run_id

    @property
    def label(self) -> str:
        """The name of this writer in the run."""
        return self._identity.label

    @property
    def attempt(self) -> int:
        """The launcher's hint at which incarnation of the label this is; the index decides."""
        return self._identity.restart

    @property
    def rank(self) -> int | None:
        """The rank, as far as it is known."""
        return self._identity.rank

    @property
    def is_primary(self) -> bool:
        """Whether this label claims to be the one that writes config and run state."""
        return self._identity.primary

    @property
    def mode(self) -> str:
        """One of online, offline and disabled."""
        return self._settings.mode

    @property
    def produced(self) -> int:
        """How many events this process has given a seq."""
        return self._journal.next_seq

    def __repr__(self) -> str:
        return f"<chiplog run {self.id} as {self.label}, {self.mode}>"

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.mark_exit(error)
        self.finish()

    # -- logging --

    def log(self, data: Mapping[str, Any], step: int | None = None) -> None:
        """Log a dict of numbers, short texts, histograms and nested dicts of them. Never raises.

        Host values are durable when this returns: they survive SIGKILL of the process. step: int64; without it the
        label counts its own. Steps may come in any order.
        """
        try:
            values = data.values()
            shape = self._shapes.get(tuple(data))
            if shape is None or not FLOAT_TYPES.issuperset(map(type, values)) or self._phases:
                self._log_slow(data, step)
                return
            if step is None:
                step = self._next_step
                self._next_step += 1
            elif type(step) is not int or not -0x8000000000000000 <= step <= 0x7FFFFFFFFFFFFFFF:
                step = self._step(step)
            self._last_step = step
            if not math.isfinite(math.hypot(*values)):  # in C doubles: a sum of numpy's small types would overflow
                self._complaints.note_nonfinite(data, step)
            keys, pack_values = shape
            payload = self._pack((1, time.time_ns() // 1000, step, keys, pack_values(*values)))
        except Exception:
            self._log_slow(data, step)  # no dict, or an int that no float64 holds: the slow path names it
            return
        try:
            self._journal.append(payload)
        except Exception as error:
            self._complaints.internal("log", error)

    def _log_slow(self, data: Mapping[str, Any], step: Any) -> None:
        try:
            if self._finished:
                self._refuse()
                return
            step = self._last_step = self._step(step)
            if self._phases:
                phases, self._phases = self._phases, {}
                self._append_matrix(EventKind.PHASES, step, phases)
            if not isinstance(data, Mapping):
                message = f"log() takes a dict, not a {type(data).__name__}; log {{'name': value}}"
                self._complaints.note(Bad("not_a_dict", type(data).__name__, message))
                return
            numbers: dict[str, float] = {}
            for item in flatten(data, self._is_over):
                if isinstance(item, Bad):
                    self._complaints.note(item)
                    continue
                key, value = item
                if not self._admit_key(key):
                    continue
                if isinstance(value, str):
                    self._say(EventKind.TEXT, step, key, value)
                elif isinstance(value, Histogram):
                    edges, counts = value.edges, value.counts
                    packed = struct.pack(f"<{len(edges)}d", *edges), struct.pack(f"<{len(counts)}d", *counts)
                    self._say(EventKind.HISTOGRAM, step, key, *packed)
                else:
                    numbers[key] = value
            if numbers:
                if not math.isfinite(sum(numbers.values())):
                    self._complaints.note_nonfinite(numbers, step)
                self._append_matrix(EventKind.METRICS, step, numbers)
        except Exception as error:
            self._complaints.internal("log", error)

    def _refuse(self) -> None:
        self._complaints.counts["after_finish"] += 1
        message = f"log() after finish() of {self.id} is not recorded; call init() again"
        self._complaints.warn_once(("finished", ""), message)

    def _append_matrix(self, kind: EventKind, step: int, numbers: Mapping[str, float]) -> None:
        keys = tuple(numbers)
        shape = self._shapes.get(keys) or (pack(list(keys)), struct.Struct(f"<{len(keys)}d").pack)
        payload = self._pack((int(kind), time.time_ns() // 1000, step, shape[0], shape[1](*numbers.values())))
        if len(payload) <= self._bounds.event_bytes_max:
            self._journal.append(payload)
            # The fast path looks at no size: a shape fits it whatever the step.
            fits_always = len(payload) + _INT_BYTES_MAX <= self._bounds.event_bytes_max
            if fits_always and kind is EventKind.METRICS and keys not in self._shapes and not self._finished:
                if len(self._shapes) >= _SHAPES_MAX or self._shape_keys + len(keys) > _SHAPE_KEYS_MAX:
                    self._shapes.clear()
                    self._shape_keys = 0
                self._shapes[keys] = shape
                self._shape_keys += len(keys)
        elif len(numbers) > 1:  # thousands of long keys in one call: two events say the same
            items = list(numbers.items())
            for half in (items[: len(items) // 2], items[len(items) // 2 :]):
                self._append_matrix(kind, step, dict(half))

    def _step(self, step: Any) -> int:
        if step is None:
            self._next_step += 1
            return self._next_step - 1
        try:
            number = int(step.item() if hasattr(step, "item") else step)
        except Exception:  # whatever a foreign type raises
            number = 1 << 70
        if -(1 << 63) <= number < 1 << 63:
            return number
        message = f"step {shown(step)} is no 64-bit integer; the label's own count is used instead"
        self._complaints.note(Bad("bad_step", shown(step), message))
        return self._step(None)

    def _admit_key(self, key: str) -> bool:
        if self._is_over(key):
            return False
        self._keys.add(key)
        return True

    def _is_over(self, key: str) -> bool:
        """Tell whether a key is one too many, and count it: without a message for each, for there may be millions."""
        if len(self._keys) < self._bounds.keys_max or key in self._keys:
            return False
        self._complaints.note_key_over(key, self._bounds.keys_max)
        return True

    # -- everything else that is said --

    def phase(self, name: str) -> Phase:
        """Time a phase of the step: `with run.phase("forward"):`, or as a decorator. Belongs to the next `log()`."""
        key = cleaned(str(name))
        size = len(key.encode())
        if not 0 < size <= KEY_BYTES_MAX:
            message = f"phase {key!r:.60} has {size} bytes, the limit is 1 to {KEY_BYTES_MAX}; it is not recorded"
            self._complaints.note(Bad("key_length", key[:60], message))
        elif self._admit_key(key):
            return Phase(self._phases_of, key)
        return Phase(dict, key)  # timed into a dict that nobody keeps

    def _phases_of(self) -> dict[str, float]:
        return self._phases

    def alert(self, title: str, text: str = "", level: str = "warning") -> None:
        """Leave a row in `events` that people look at. level: debug, info, warning or error; else it is a warning."""
        try:
            body = {"text": cleaned(str(text))}
            self._say(EventKind.NOTICE, "alert", alert_level(level), cleaned(str(title)), body)
        except Exception as error:
            self._complaints.internal("alert", error)

    def finish(self, exit_code: int = 0) -> None:
        """End the run for this label. Waits at most a second for the agent; what is left then is delivered later."""
        with self._finish_lock:
            if self._finished:
                return
            self._finished = True
        try:
            self._finish(exit_code)
        except Exception as error:
            self._complaints.internal("finish", error)

    def _finish(self, exit_code: int) -> None:
        self._shapes = {}  # whoever logs now takes the slow path, which says so
        if self._console is not None:
            self._console.close()
        if self._phases:
            self._append_matrix(EventKind.PHASES, self._last_step, self._phases)
        if isinstance(self._journal, Journal) and self._journal.deferred_dropped:
            self._complaints.counts["dropped_in_signal_handlers"] = self._journal.deferred_dropped
        self._complaints.report()
        if exit_code and self._exit[0] == "finished":
            self.mark_failed(f"finish(exit_code={exit_code})", exit_code)
        state, code, reason = self._exit
        body = {"state": state, "exit_code": code, "reason": reason}
        said = {name: value for name, value in body.items() if value is not None}
        last = encode(EventKind.STATE, time.time_ns() // 1000, said)
        journal = self._journal
        if not isinstance(journal, Journal):
            journal.append(last, urgent=True)
        else:
            if not journal.seal(last, self._refuse):  # called by a signal handler in the middle of log(): at exit then
                self._finished = False
                return
            # Another thread may have been logging: what it got in comes before the last event.
            journal.mark_finished()
            delivered = self._sender.stop(FINISH_WAIT_S) if self._sender is not None else False
            self._complaints.note_ending(journal.only_in_memory, journal.disk_error)
            journal.close(remove=delivered)
            self._journal = Nowhere(journal.next_seq, self._refuse)
        if os.environ.get(PARENT_RUN, "").startswith(f"{os.getpid()}:"):
            del os.environ[PARENT_RUN]  # what this process starts from now on is no part of this run

    def mark_failed(self, reason: str, exit_code: int = 1) -> None:
        """Note that this process is ending badly; `finish` reports it."""
        self._exit = ("failed", exit_code, cleaned(reason))

    def mark_exit(self, error: BaseException) -> None:
        """Note the exception that this process ends by, unless another ending was noted."""
        code, reason = ending_of(error)
        if code and self._exit[0] == "finished":
            self.mark_failed(reason, code)

    def _say(self, kind: EventKind, *fields: Any, urgent: bool = False) -> None:
        payload = encode(kind, time.time_ns() // 1000, *fields)
        if len(payload) <= (limit := self._bounds.event_bytes_max):
            self._journal.append(payload, urgent=urgent)
        else:
            message = f"{kind.name.lower()} of {len(payload)} bytes exceeds the limit of {limit}; split it"
            self._complaints.note(Bad("event_too_large", kind.name.lower(), message))

    def _say_config(self, values: Mapping[str, Any]) -> None:
        self._say_map(EventKind.CONFIG, values)

    def _say_summary(self, values: Mapping[str, Any]) -> None:
        self._say_map(EventKind.SUMMARY, values)

    def _say_map(self, kind: EventKind, values: Mapping[str, Any]) -> None:
        if self._finished or (kind is EventKind.CONFIG and not self.is_primary):
            return  # every rank passes the same config; the primary's is the run's
        try:
            for said in as_json(kind.name.lower(), values, self._complaints.note, self._bounds.event_bytes_max):
                self._say(kind, said)
        except Exception as error:
            self._complaints.internal(kind.name.lower(), error)

    def _say_line(self, stream: int, line_no: int, line: str) -> None:
        self._say(EventKind.CONSOLE, stream, line_no, line if encodable(line) else cleaned(line))

    def _say_lines_lost(self, count: int) -> None:
        message = f"{count} lines above the rate limit, or while the journal was nearly full"
        self._say(EventKind.NOTICE, "console_lost", "warning", message, {"lines": count}, urgent=True)

    def _has_room_for_lines(self) -> bool:
        journal = self._journal
        return not (isinstance(journal, Journal) and journal.is_crowded)

    # -- the journal and its sender --

    def _identity_map(self) -> dict[str, Any]:
        return identity_map(self._settings, self._identity, self._started_us, self._pid)

    def _open(self) -> None:
        settings = self._settings
        producer = secrets.token_bytes(PRODUCER_BYTES)
        info = self._identity_map()
        offline = settings.mode == "offline"
        parent = settings.places.local / "offline" if offline else settings.places.journals
        bytes_max = self._bounds.spool_bytes_max if offline else self._bounds.journal_bytes_max
        memory = self._bounds.journal_memory_bytes_max
        packed, first = pack(info), encode(EventKind.IDENTITY, self._started_us, info)
        try:
            path = parent / producer.hex()
            check_root(settings.places)
            journal = Journal(path, producer, packed, bytes_max=bytes_max, memory_bytes_max=memory)
            journal.append(first)
            journal.publish()
        except OSError as error:
            message = f"no journal in {parent}: {error}; events are kept in memory only, bounded"
            self._complaints.warn_once(("disk", ""), message)
            journal = Journal(None, producer, packed, bytes_max=memory)
            journal.append(first)
            journal.append(encode(EventKind.NOTICE, self._started_us, "journal_memory", "warning", message[:500], {}))
            self._disk_warned = True
        self._journal = journal
        self._sender = SenderThread(
            journal,
            settings.places,
            info,
            agent_address=settings.agent_address,
            online=not offline,
            on_tick=self._tick,
            warn=lambda message: self._complaints.warn_once(("sender", message[:20]), message),
        )
        self._sender.start()

    def _tick(self) -> None:
        """Run by the sender thread at every interval."""
        if self._finished:
            return
        try:
            self._look_around()
            self._complaints.report(time.monotonic())
        except Exception as error:  # sending must go on
            self._complaints.internal("tick", error)

    def _look_around(self) -> None:
        """Tell of a disk that refuses, and ask torch.distributed for what the launcher did not tell."""
        journal = self._journal
        if isinstance(journal, Journal) and journal.disk_error is not None and not self._disk_warned:
            self._disk_warned = True
            message = f"journal cannot grow on disk: {journal.disk_error}; events are kept in memory, bounded"
            self._complaints.warn_once(("disk", ""), message)
            self._say(EventKind.NOTICE, "journal_memory", "warning", message, {})
        if self._identity.needs_agreement:
            agreed = agreement.ask_group(self._identity.run_id)
            if agreed is not None:
                self._become(agreed)

    def _become(self, agreed: agreement.Agreed) -> None:
        run_id = self._identity.run_id if self._settings.run_id_given else agreed.run_id
        self._identity = with_rank(
            self._identity, agreed.rank, agreed.world_size, run_id, label_given=self._settings.label_given
        )
        info = self._identity_map()
        if isinstance(self._journal, Journal):
            self._journal.set_identity(pack(info))
        self._say(EventKind.IDENTITY, info)
        if self.is_primary:
            self._say_config(self.config)

    # -- fork --

    def after_fork(self) -> None:
        """Make a forked child let go of the parent's journal, socket and streams; its first `log()` opens its own."""
        if self._settings.mode == "disabled" or self._finished:
            return
        if self._console is not None:
            self._console.close_in_child()
            self._console = None
        _kept_from_the_collector.append((self._journal, self._sender))
        self._sender = None
        self._finish_lock = threading.Lock()
        self._phases = {}
        self._complaints = Complaints(self._say)
        self._pid = os.getpid()
        self._journal = AfterFork(self._open_in_child)

    def _open_in_child(self) -> Appendable:
        """Join the parent's run as a producer of its own, under a label of its own."""
        self._started_us = time.time_ns() // 1000
        self._identity = replace(
            self._identity, label=f"{self._identity.label}.{self._pid}"[:128], primary=False, rank=None, local_rank=None
        )
        self._open()
        return self._journal


_kept_from_the_collector: list[Any] = []  # what a child inherited: destroying it could touch the parent's
