"""The models of one run whose gradients and parameters are measured."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chiplog.recording.log.device_events import DeviceEvents
from chiplog.recording.log.step_phases import StepPhases
from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.text import clean_utf8, short_repr
from chiplog.torch.watch import Watch

_WATCHES_MAX = 64  # models; each is checked before every step of an optimizer


class ModelWatches:
    """Watch models. can_record: whether the run takes events. report: called for what cannot be watched."""

    def __init__(
        self,
        devices: DeviceEvents,
        phases: StepPhases,
        can_record: Callable[[], bool],
        report: Callable[[Diagnostic], None],
    ) -> None:
        self._devices = devices
        self._phases = phases
        self._can_record = can_record
        self._report = report
        self._watches: list[Watch] = []

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, model: Any, every: int, name: str) -> None:
        """Watch a model, unless there are too many; see `Run.watch`."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(model, torch.nn.Module) or int(every) < 1:
            given = f"{short_repr(model)} and {short_repr(every)}"
            message = f"watch() takes a torch.nn.Module and a number of steps, not {given}"
            self._report(Diagnostic("not_a_model", type(model).__name__, message))
        elif self._can_record():
            self._watches = [watch for watch in self._watches if not watch.is_stopped]
            if len(self._watches) < _WATCHES_MAX:
                self._watches.append(Watch(torch, model, int(every), clean_utf8(str(name)), self._attach, self._report))

    def stop(self) -> None:
        """Stop all of them."""
        for watch in self._watches:
            watch.stop()

    def begin_in_child(self) -> None:
        """Stop what a forked child inherited."""
        self.stop()
        self._watches = []

    def _attach(self, tensors: Sequence[Any], make: Callable[[list[float]], Mapping[str, float]]) -> None:
        """Log the numbers of tensors with the next step."""
        self._phases.attach(lambda step: self._devices.log_made(step, tensors, make))
