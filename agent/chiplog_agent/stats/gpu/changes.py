"""Events that only a GPU's readings show: that it was reset, and that it asks for one.

The agent compares readings, not the sampler: a sampler ends when GPUs are released, which is when they are reset.
"""

from collections.abc import Sequence
from typing import NamedTuple

_ENERGY = "hw.energy"  # since the driver was loaded; it only grows
_PENDING = "hw.gpu.row_remap.pending"
_DEVICES_MAX = 4096  # remembered


class Change(NamedTuple):
    """An event: kind, level and text of its row, without the device."""

    kind: str
    level: str
    text: str


class GpuChanges:
    """Compares each GPU's readings with its former ones. A first reading is no event."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], tuple[int, int]] = {}
        self._last: dict[tuple[str, str], float] = {}  # by metric and device

    def take(self, device: str, names: tuple[str, ...], values: Sequence[float]) -> list[Change]:
        """Return the events of a sample."""
        energy, pending = self._places_of(names)
        changes = []
        if energy >= 0:
            before = self._exchange(_ENERGY, device, values[energy])
            if before is not None and values[energy] < before:  # safeguard: reset-noticed
                text = "counters started from zero: the GPU was reset, or its driver was loaded again"
                changes.append(Change("gpu.reset", "warning", text))
        if pending >= 0:
            before = self._exchange(_PENDING, device, values[pending])
            if before == 0 and values[pending] > 0:  # safeguard: pending-remap-noticed
                text = "a memory row is remapped at the GPU's next reset"
                changes.append(Change("gpu.row_remap_pending", "warning", text))
        return changes

    def _places_of(self, names: tuple[str, ...]) -> tuple[int, int]:
        """Return where the two metrics are among names; -1 where not."""
        found = self._places.get(names)
        if found is None:
            if len(self._places) >= _DEVICES_MAX:
                self._places.clear()
            energy, pending = (names.index(name) if name in names else -1 for name in (_ENERGY, _PENDING))
            found = self._places[names] = energy, pending
        return found

    def _exchange(self, name: str, device: str, value: float) -> float | None:
        """Remember a value; return the one before it."""
        if len(self._last) >= 2 * _DEVICES_MAX:
            self._last.clear()
        before = self._last.get((name, device))
        self._last[name, device] = value
        return before
