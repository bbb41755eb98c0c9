"""Values on a device: copied without blocking, and logged once the copy is complete.

    current stream   … training … │ pack into the staging ring ─► copy to the pinned ring ─► event │ … training …
    sender thread                                                                queries the event, then reads

One fused operation per dtype packs the values after the work that computes them, so a later change in place has no
effect. The first such call allocates the staging ring on the device and the pinned ring on the host. A slot in them is
reused after its event. A call that finds no free slot is counted and declared lost: nothing blocks.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_ubyte
from functools import partial
from itertools import chain
from struct import unpack_from
from threading import RLock, get_ident
from typing import Any

from chiplog.journal.deferred import DeferredEvents
from chiplog.safety.diagnostics import Diagnostic
from chiplog.torch.backends import BACKENDS, Backend, Event
from chiplog_schemas.interrupts import is_interrupt, unless_interrupt

RING_BYTES = 1 << 20  # 131,072 values in flight on each device: at 20 per step, thousands of steps
SLOTS_MAX = 1024  # calls in flight on each device: an event each
_ALIGNMENT = 8
FULL, CAPTURED, FAILED, INSIDE = (
    f"values on a device: {why}"
    for why in (
        "ring full",
        "logged while a graph was captured",
        "could not be copied",
        "logged by what interrupted log()",
    )
)

Append = Callable[[int, int, Mapping[str, float]], None]  # step, ts in µs, values by key
Make = Callable[[list[float]], Mapping[str, float]]  # builds the logged metrics from the numbers of the device


def _named(keys: tuple[str, ...], numbers: list[float]) -> dict[str, float]:
    return dict(zip(keys, numbers, strict=True))


class CopySlot:
    """One call's slot in the rings, and its event."""

    __slots__ = ("_append", "_make", "_ring", "_step", "_ts", "begin", "done", "end", "error", "launched", "parts")

    def __init__(self, ring: "DeviceRing", begin: int, end: int, done: Event, append: Append) -> None:
        self._ring = ring
        self.begin = begin  # in total bytes ever reserved, like `end`
        self.end = end
        self.done = done
        self.launched = False
        self.error: BaseException | None = None
        self.parts: list[tuple[Any, list[int], list[int], int, int]] = []
        self._append = append

    def set_event(self, step: int, ts: int, make: Make) -> None:
        """Set the event: its step, its time (µs since the epoch), and the function that builds the metrics."""
        self._step, self._ts, self._make = step, ts, make

    def is_ready(self) -> bool:
        """Return True if the copy is complete or has failed."""
        return self.error is not None or (self.launched and self.done.query())  # safeguard: read-after-device-event

    def append(self) -> None:
        """Read the numbers and append the event. Raises what the launch raised."""
        if self.error is not None:
            raise RuntimeError(f"{type(self.error).__name__}: {str(self.error)[:200]}")
        self._append(self._step, self._ts, self._make(self._ring.read(self)))

    def release(self) -> None:
        """Free the slot."""
        self._ring.release(self)


class DeviceRing:
    """The rings of one device."""

    def __init__(self, torch: Any, backend: Backend, n_bytes: int = RING_BYTES, slots_max: int = SLOTS_MAX) -> None:
        self._torch = torch
        self._backend = backend
        self._size = n_bytes
        self._staging, self._host = backend.allocate(n_bytes)
        # Not numpy(): torch may be built for another numpy.
        self._bytes = memoryview((c_ubyte * n_bytes).from_address(self._host.data_ptr())).cast("B")
        self._codes = {torch.float64: "d", torch.float32: "f", torch.int64: "q", torch.int32: "i"}
        self._head = self._tail = 0  # total bytes ever reserved, and ever freed
        self._n_slots = 0
        self._slots_max = slots_max
        self._events: list[Event] = []  # free, for reuse
        self._lock = RLock()  # reentrant: a signal handler or a __del__ may log while its thread holds it
        self._inside = 0  # ID of the thread that holds the lock

    @property
    def is_inside(self) -> bool:
        """Whether the caller has interrupted a reservation of its own thread: it gets no slot."""
        return self._inside == get_ident()

    def reserve(self, tensors: Sequence[Any], append: Append, add: Callable[[CopySlot], None]) -> CopySlot | None:
        """Reserve a slot for these tensors and add it to the pending ones; None if there is none."""
        if self.is_inside:
            return None
        layout: dict[Any, tuple[list[int], list[int]]] = {}
        for index, tensor in enumerate(tensors):
            indices, counts = layout.setdefault(tensor.dtype, ([], []))
            indices.append(index)
            counts.append(tensor.numel())
        sizes = [-(-dtype.itemsize * sum(counts) // _ALIGNMENT) * _ALIGNMENT for dtype, (_, counts) in layout.items()]
        slot: CopySlot | None = None
        try:
            with self._lock:
                self._inside = get_ident()
                try:
                    slot = self._reserve(layout, sizes, append, add)
                finally:
                    self._inside = 0
        except BaseException as error:
            if slot is not None:
                slot.error = error  # otherwise a slot that is never launched would block all later ones
            raise
        return slot

    def _reserve(
        self,
        layout: Mapping[Any, tuple[list[int], list[int]]],
        sizes: Sequence[int],
        append: Append,
        add: Callable[[CopySlot], None],
    ) -> CopySlot | None:
        size = sum(sizes)
        begin = self._head
        if begin % self._size + size > self._size:  # a slot does not wrap around
            begin += self._size - begin % self._size
        # safeguard: ring-place-free-after-copy
        if size > self._size or begin + size - self._tail > self._size or self._n_slots >= self._slots_max:
            return None
        slot = CopySlot(
            self, begin, begin + size, self._events.pop() if self._events else self._backend.event(), append
        )
        at = begin % self._size
        for (dtype, (indices, counts)), part_size in zip(layout.items(), sizes, strict=True):
            slot.parts.append((dtype, indices, counts, at, at + dtype.itemsize * sum(counts)))
            at += part_size
        self._head = slot.end
        self._n_slots += 1
        try:
            add(slot)
        except BaseException as error:
            slot.error = error
            raise
        return slot

    def launch(self, slot: CopySlot, tensors: Sequence[Any]) -> None:
        """Pack the tensors and start the copy. An error is stored in the slot; an interrupt is raised."""
        try:
            torch, staging = self._torch, self._staging
            with torch.no_grad():
                for dtype, indices, _, begin, end in slot.parts:
                    packed = staging[begin:end].view(dtype)
                    part = [tensors[index] for index in indices]
                    if any(tensor.dim() for tensor in part):
                        torch.cat([tensor.reshape(-1) for tensor in part], out=packed)
                    else:
                        torch.stack(part, out=packed)
                begin, end = slot.begin % self._size, slot.begin % self._size + slot.end - slot.begin
                self._backend.copy(self._host[begin:end], staging[begin:end], slot.done)
            slot.launched = True
        except BaseException as error:
            slot.error = error
            if not isinstance(error, Exception) or is_interrupt(error):
                raise

    def read(self, slot: CopySlot) -> list[float]:
        """Return the numbers of a slot whose copy is complete, in the order of its tensors.

        Calls torch for rare dtypes only: each call hands the interpreter to the training, and has to get it back.
        """
        found: dict[int, tuple[float, ...] | list[float]] = {}
        for dtype, indices, counts, begin, end in slot.parts:
            numbers: tuple[float, ...] | list[float]
            if (code := self._codes.get(dtype)) is not None:
                numbers = tuple(map(float, unpack_from(f"={sum(counts)}{code}", self._bytes, begin)))
            else:
                numbers = self._host[begin:end].view(dtype).to(self._torch.float64).tolist()
            at = 0
            for index, count in zip(indices, counts, strict=True):
                found[index] = numbers[at : at + count]
                at += count
        return list(chain.from_iterable(found[index] for index in range(len(found))))

    def release(self, slot: CopySlot) -> None:
        """Free the slot. Slots are freed in the order of their reservation."""
        with self._lock:
            before, self._inside = self._inside, get_ident()
            try:
                self._tail = slot.end
                self._n_slots -= 1
                if slot.error is None:
                    self._events.append(slot.done)
            finally:
                self._inside = before


class DeviceValues:
    """The rings of all devices that one run logs from."""

    def __init__(self, later: DeferredEvents, append: Append, report_fault: Callable[[Diagnostic], None]) -> None:
        self._deferred = later
        self._append = append
        self._report_fault = report_fault
        self._rings: dict[Any, tuple[Backend, DeviceRing | None]] = {}
        self._lock = RLock()

    def log_scalars(self, torch: Any, step: int, tensors: Mapping[str, Any]) -> None:
        """Log tensors of one element each, by key, on any devices."""
        by_device: dict[Any, dict[str, Any]] = {}
        for key, tensor in tensors.items():
            by_device.setdefault(tensor.device, {})[key] = tensor
        for part in by_device.values():
            self.submit(torch, step, list(part.values()), partial(_named, tuple(part)))

    def submit(self, torch: Any, step: int, tensors: Sequence[Any], make: Make) -> None:
        """Start the copy of some tensors of one device; `make` builds the metrics from their numbers."""
        device = tensors[0].device
        backend, ring = self._rings.get(device) or self._make(torch, device)
        if backend.is_capturing():
            message = (
                f"values on {device} were logged while a graph was captured, and nothing was launched; "
                "log the graph's output after replay()"
            )
            self._lose(CAPTURED, Diagnostic("device_values_in_capture", str(device), message))
            return
        if ring is None:
            try:
                ring = self._with_ring(torch, device)
            except unless_interrupt(Exception) as error:
                message = f"no memory for values on {device}: {error}; log float(value)"
                self._lose(FAILED, Diagnostic("device_values_dropped", str(device), message))
                return
        slot = ring.reserve(tensors, self._append, lambda slot: self._add(device, slot, step, make))
        if slot is None and ring.is_inside:
            message = f"values on {device} were logged by what interrupted log() of others; log them in the loop"
            self._lose(INSIDE, Diagnostic("device_values_dropped", "interrupted", message))
        elif slot is None:
            message = f"values on {device} are logged faster than they arrive; log them every few steps"
            self._lose(FULL, Diagnostic("device_values_dropped", str(device), message))
        else:
            try:
                ring.launch(slot, tensors)
            except BaseException as error:  # from a signal handler, perhaps before the launch began
                slot.error = slot.error or error
                raise

    def _add(self, device: Any, slot: CopySlot, step: int, make: Make) -> None:
        slot.set_event(step, time.time_ns() // 1000, make)
        self._deferred.add(device, slot)

    def _lose(self, reason: str, bad: Diagnostic) -> None:
        self._deferred.lose(reason)
        self._report_fault(bad)

    def _make(self, torch: Any, device: Any) -> tuple[Backend, DeviceRing | None]:
        with self._lock:
            backend = BACKENDS[device.type](torch, device)
            self._deferred.poll_context = backend.poll_context
            return self._rings.setdefault(device, (backend, None))

    def _with_ring(self, torch: Any, device: Any) -> DeviceRing:
        with self._lock:
            backend, ring = self._rings[device]
            if ring is None:
                ring = DeviceRing(torch, backend)
                self._rings[device] = (backend, ring)
            return ring
