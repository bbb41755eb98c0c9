"""The sender thread's periodic work for torch: nothing until the training code has imported it."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from chiplog.journal.deferred import DeferredEvents
from chiplog.safety.dynamo import exclude_from_dynamo
from chiplog.timing.phases import Timing
from chiplog.torch.allocator_stats import SAMPLE_INTERVAL_S, sample
from chiplog.torch.cuda_timing import CudaTiming

Append = Callable[[int, int, Mapping[str, float]], None]  # step, ts in µs, values by key


class TorchPoller:
    """Poll one run's deferred events, set up its CUDA timing, and sample the allocator's statistics."""

    def __init__(self, later: DeferredEvents, timing: Timing, append_times: Append) -> None:
        self._deferred = later
        self._timing = timing
        self._append_times = append_times
        self._sample_at = 0.0

    def poll(self, now: float) -> Mapping[str, float]:
        """Poll once; return the allocator's statistics if they are due."""
        self._deferred.poll()
        if "torch" not in sys.modules:
            return {}
        exclude_from_dynamo()
        cuda: Any = sys.modules.get("torch.cuda")
        if cuda is None or not getattr(cuda, "is_initialized", bool)():
            return {}
        if self._timing.device is None:
            self._timing.device = CudaTiming(sys.modules["torch"], self._deferred, self._append_times)
        if now < self._sample_at:
            return {}
        self._sample_at = now + SAMPLE_INTERVAL_S
        return sample(cuda)
