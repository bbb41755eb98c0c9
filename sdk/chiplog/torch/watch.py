"""Norms of gradients and parameters at regular steps, with one fused reduction on their device.

One hook for all models, before every optimizer's step, counts the steps and measures at some. The gradients are then
those that the optimizer uses: clipped, and unscaled by a GradScaler if there is one. For sharded parameters (FSDP,
DTensor) the local part is measured: the norm of the whole is the root of the sum of squares over the ranks.
"""

import contextlib
import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.dynamo import dynamo_disable
from chiplog_schemas.interrupts import unless_interrupt

GROUPS_MAX = 32  # submodules whose norms are logged: a larger table is not readable
_SUMMED = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")  # torch has no norm for other types
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # of DDP, compile, FSDP

# Attaches numbers on a device or host to a step: tensors, and the function that builds metrics from their numbers.
Attach = Callable[[Sequence[Any], Callable[[list[float]], Mapping[str, float]]], None]


# Of this process. Torch iterates over a dict of hooks, and fails if one is removed at the same time: by a signal
# handler, another thread, or the collection of a model. So the hook stays there, and this list changes.
_watching: list["Watch"] = []
_hooked = Lock()  # never released once the hook is registered


class Watch:
    """Watch one model until it is deleted, or until `stop`. Keeps neither it nor its graph alive."""

    def __init__(
        self, torch: Any, model: Any, every: int, name: str, attach: Attach, report_fault: Callable[[Diagnostic], None]
    ) -> None:
        self._torch = torch
        self._every = every
        self._name = name
        self._attach = attach
        self._report_fault = report_fault
        self._n_steps = 0
        self._optimizer: Callable[[], Any] = lambda: None  # the optimizer whose steps count
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers of other models
        self._model = weakref.ref(model)
        self._is_stopped = False
        self._is_reported = False  # whether the omitted parameters were reported
        _hook_once()
        _watching.append(self)

    @property
    def is_stopped(self) -> bool:
        """Whether the watch was stopped or the model was deleted."""
        return self._is_stopped or self._model() is None

    def stop(self) -> None:
        """Stop watching. Any thread and any signal handler may call this."""
        self._is_stopped = True
        _forget(self)

    def on_optimizer_step(self, optimizer: Any) -> None:
        """Count a step of this model's optimizer, and measure if it is due. Raises nothing."""
        try:
            if self._optimizer() is not optimizer and not self._owns(optimizer):
                return
            self._n_steps += 1
            if (self._n_steps - 1) % self._every == 0:
                self._measure(optimizer)
        except unless_interrupt(Exception) as error:
            message = f"watch() of {self._name!r:.60} failed: {type(error).__name__} {str(error)[:200]}; it continues"
            self._report_fault(Diagnostic("watch_failed", self._name, message))

    def _owns(self, optimizer: Any) -> bool:
        model = self._model()
        if model is None or optimizer in self._others or self._optimizer() is not None:
            return False
        ours = {id(parameter) for parameter in model.parameters()}
        if any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
            self._optimizer = weakref.ref(optimizer)
            return True
        self._others.add(optimizer)
        return False

    def _measure(self, optimizer: Any) -> None:
        torch, model = self._torch, self._model()
        cuda = sys.modules["torch.cuda"]
        if model is None or (cuda.is_initialized() and cuda.is_current_stream_capturing()):
            return  # during a capture, launched work would become part of the graph
        names, tensors, kinds = [], [], []
        parameters = dict(model.named_parameters())
        summed = tuple(getattr(torch, dtype) for dtype in _SUMMED)
        left_out = {name: parameter.dtype for name, parameter in parameters.items() if parameter.dtype not in summed}
        if left_out and not self._is_reported:
            self._is_reported = True
            self._warn(left_out, len(parameters))
        for name, parameter in parameters.items():
            if name in left_out:
                continue
            for kind, tensor in (("param_norm", parameter), ("grad_norm", parameter.grad)):
                if tensor is not None and not tensor.is_sparse:
                    tensor = tensor.detach()
                    tensors.append(tensor.to_local() if hasattr(tensor, "to_local") else tensor)
                    names.append(_plain(name))
                    kinds.append(kind)
        scale = getattr(optimizer, "grad_scale", None)  # set while a fused optimizer unscales itself
        groups = group_by_submodule(names)
        devices = list(dict.fromkeys(tensor.device for tensor in tensors))
        devices.sort(key=lambda device: device.type == "cpu")  # a copy to the host would block
        rows, numbers = [], []
        with torch.no_grad():
            for device in devices:
                here = [index for index, tensor in enumerate(tensors) if tensor.device == device]
                rows += [(kinds[index], groups[index]) for index in here]
                numbers.append(self._norms([tensors[index] for index in here]).to(devices[0], non_blocking=True))
            if isinstance(scale, torch.Tensor):
                numbers.append(scale.detach().to(devices[0], non_blocking=True))
        if rows:
            self._attach(numbers, partial(to_metrics, self._name, rows))

    def _warn(self, left_out: Mapping[str, Any], n_parameters: int) -> None:
        name, dtype = next(iter(left_out.items()))
        message = (
            f"watch() of {self._name!r:.60} leaves out {len(left_out)} of {n_parameters} parameters: {name!r:.80} is "
            f"{dtype}, and norms are those of {', '.join(_SUMMED)}"
        )
        for _ in left_out:
            self._report_fault(Diagnostic("not_watched", self._name, message))

    def _norms(self, tensors: list[Any]) -> Any:
        """Return the norms in order, as one tensor. Half types are summed in float32: float16 overflows at 65,504."""
        torch = self._torch
        norms: dict[int, Any] = {}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            here = [index for index, tensor in enumerate(tensors) if tensor.dtype is dtype]
            summed_as = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
            fused = torch._foreach_norm([tensors[index] for index in here], 2, dtype=summed_as)
            norms.update(zip(here, fused, strict=True))
        return torch.stack([norms[index].to(torch.float64) for index in range(len(tensors))])


def _hook_once() -> None:
    if not _hooked.acquire(blocking=False):
        return
    try:
        optimizers = sys.modules["torch.optim.optimizer"]  # not an attribute of torch.optim
        optimizers.register_optimizer_step_pre_hook(_before_step)
    except BaseException:
        _hooked.release()
        raise


@dynamo_disable
def _before_step(optimizer: Any, arguments: object, named: object) -> None:
    for watch in tuple(_watching):
        if watch.is_stopped:
            _forget(watch)
        else:
            watch.on_optimizer_step(optimizer)


def _forget(watch: Watch) -> None:
    with contextlib.suppress(ValueError):  # another thread was first
        _watching.remove(watch)


def group_by_submodule(names: Sequence[str], groups_max: int = GROUPS_MAX) -> list[str]:
    """Return the submodule of each parameter's name, at the deepest level with few enough groups, or ''."""
    paths = [name.split(".")[:-1] for name in names]
    found = [""] * len(names)
    for depth in range(1, max(map(len, paths), default=0) + 1):
        deeper = [".".join(path[:depth]) for path in paths]
        if len(set(deeper)) > groups_max:
            break
        found = deeper
    return found


def to_metrics(name: str, rows: Sequence[tuple[str, str]], values: Sequence[float]) -> dict[str, float]:
    """Return the norms of the model and each submodule. rows: (kind, submodule) of each norm; a scale may follow."""
    scale = values[len(rows)] if len(values) > len(rows) else 1.0
    found: dict[str, list[float]] = {}
    for (kind, group), value in zip(rows, values, strict=False):
        value = value / scale if kind == "grad_norm" else value
        found.setdefault(f"{name}/{kind}", []).append(value)
        if group:
            found.setdefault(f"{name}/{kind}/{group}", []).append(value)
    return {key: math.hypot(*norms) for key, norms in sorted(found.items())}


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
