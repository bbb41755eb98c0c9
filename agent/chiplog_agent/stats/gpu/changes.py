"""Events that only a GPU's readings show: that it was reset, and that it is in a state that asks for an operator.

The agent compares readings, not the sampler: a sampler ends when GPUs are released, which is when they are reset.
"""

from collections.abc import Sequence
from typing import NamedTuple

_ENERGY = "hw.energy"  # since the driver was loaded; it only grows
_PENDING = "hw.gpu.row_remap.pending"
_FAILURE = "hw.gpu.row_remap.failure"
_ACTION = "hw.gpu.recovery_action"
_WATCHED = (_ENERGY, _PENDING, _FAILURE, _ACTION)
_ACTIONS = {  # nvmlDeviceGpuRecoveryAction_t
    1: "reset the GPU",
    2: "reboot the node",
    3: "end peer-to-peer traffic, then read the action again",
    4: "drain the node and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
_DEVICES_MAX = 4096  # remembered


class Change(NamedTuple):
    """An event: kind, level and text of its row, without the device."""

    kind: str
    level: str
    text: str


class GpuChanges:
    """Compares each GPU's readings with its former ones. A state that a first reading has is an event, too."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], tuple[tuple[str, int], ...]] = {}
        self._last: dict[tuple[str, str], float] = {}  # by metric and device

    def take(self, device: str, names: tuple[str, ...], values: Sequence[float]) -> list[Change]:
        """Return the events of a sample."""
        changes = []
        for name, place in self._places_of(names):
            value = values[place]
            before = self._exchange(name, device, value)
            if value == before:
                continue
            if name == _ENERGY:
                if before is not None and value < before:  # safeguard: reset-noticed
                    text = "counters started from zero: the GPU was reset, or its driver was loaded again"
                    changes.append(Change("gpu.reset", "warning", text))
            elif value > 0:  # safeguard: state-noticed
                changes.append(_state(name, value))
        return changes

    def _places_of(self, names: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
        """Return which metrics are watched, and where they are among names."""
        found = self._places.get(names)
        if found is None:
            if len(self._places) >= _DEVICES_MAX:
                self._places.clear()
            found = self._places[names] = tuple((name, names.index(name)) for name in _WATCHED if name in names)
        return found

    def _exchange(self, name: str, device: str, value: float) -> float | None:
        """Remember a value; return the one before it."""
        if len(self._last) >= len(_WATCHED) * _DEVICES_MAX:
            self._last.clear()
        before = self._last.get((name, device))
        self._last[name, device] = value
        return before


def _state(name: str, value: float) -> Change:
    """Return the event of a state that is set."""
    if name == _PENDING:
        return Change("gpu.row_remap_pending", "warning", "a memory row is remapped at the GPU's next reset")
    if name == _FAILURE:
        return Change("gpu.row_remap_failure", "error", "a memory row could not be remapped: replace the GPU")
    action = _ACTIONS.get(int(value), "unknown to this version")
    return Change("gpu.recovery_action", "error", f"the driver asks for recovery action {value:.0f}: {action}")
