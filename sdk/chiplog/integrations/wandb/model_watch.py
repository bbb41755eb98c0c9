"""`run.watch()` as W&B has it: histograms of gradients and parameters, every so many backward passes."""

from collections.abc import Callable
from typing import Any


class Watch:
    """Hooks on one model until `stop`.

    model: a torch.nn.Module. what: gradients, parameters or all. every: backward passes from one histogram to the next.
    log: called with a key and a tensor.
    """

    def __init__(self, model: Any, what: str, every: int, log: Callable[[str, Any], None]) -> None:
        self.model = model
        self._every = max(1, int(every))
        self._log = log
        self._n_passes: dict[str, int] = {}
        self._handles: list[Any] = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._hook(name, parameter, what)))

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str, parameter: Any, what: str) -> Callable[[Any], None]:
        def hook(gradient: Any) -> None:
            n_passes = self._n_passes[name] = self._n_passes.get(name, 0) + 1
            if n_passes % self._every:
                return
            if what in ("gradients", "all"):
                self._log(f"gradients/{name}", gradient.to_dense() if gradient.is_sparse else gradient)
            if what in ("parameters", "all"):
                self._log(f"parameters/{name}", parameter.detach())

        return hook
