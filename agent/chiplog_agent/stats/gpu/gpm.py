"""Readings by GPM, NVML's performance monitoring of Hopper and later: what each unit of a GPU was busy with.

A value is the mean between two samples of the hardware's counters, those of two successive periods.
"""

from math import isfinite
from typing import Any

from chiplog_agent.stats.gpu.device_sample import DeviceSample, NvmlDevice

# Between the samples of a pair: the hardware refreshes its counters no faster (NVML API reference, nvmlGpmMetricsGet).
PAIR_MIN_S = 0.1
_PERCENT = 1e-2
_MIB = 2.0**20
# NVML_GPM_METRIC_*, percent
GPM_METRICS = {
    "hw.gpu.sm.active": 2,  # SM_UTIL
    "hw.gpu.sm.occupancy": 3,  # SM_OCCUPANCY
    "hw.gpu.tensor.active": 5,  # ANY_TENSOR_UTIL
    "hw.gpu.dram.active": 10,  # DRAM_BW_UTIL
    "hw.gpu.fp64.active": 11,  # FP64_UTIL
    "hw.gpu.fp32.active": 12,  # FP32_UTIL
    "hw.gpu.fp16.active": 13,  # FP16_UTIL
    "hw.gpu.graphics.active": 1,  # GRAPHICS_UTIL
}
# NVML_GPM_METRIC_*, MiB/s: traffic that counters of 32 bits cannot show alone
GPM_RATES = {
    "hw.gpu.io.pcie.transmit": 20,  # PCIE_TX_PER_SEC
    "hw.gpu.io.pcie.receive": 21,  # PCIE_RX_PER_SEC
}


class GpmReader:
    """The pairs of samples of one GPU, or of the GPU instance that a MIG instance belongs to."""

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._gpu = device.handle if device.parent is None else device.parent
        self._metrics = GPM_METRICS | ({} if device.is_instance else GPM_RATES)
        self._is_checked = False
        self._samples: list[Any] = []  # NVML's: the one to fill next, and the last one
        self._last_at: float | None = None  # when the last one was filled, monotonic, s

    def read(self, sample: DeviceSample) -> None:
        """Read the hardware's counters, and add the means since the last reading. Raises GpuLostError."""
        if not self._metrics or (self._last_at is not None and sample.now - self._last_at < PAIR_MIN_S):
            return
        try:
            if not self._is_checked:
                self._check(sample)
            if self._metrics:
                self._read(sample)
        except self._device.nvml.NVMLError as error:
            self._last_at = None
            if self._device.is_final(error.value):
                self._end(sample)
            else:
                sample.failures.append(f"GPM: {error}")

    def close(self) -> None:
        """Free the samples of NVML."""
        for held in self._samples:
            self._device.nvml.nvmlGpmSampleFree(held)
        self._samples.clear()
        self._last_at = None

    def _check(self, sample: DeviceSample) -> None:
        if not self._device.nvml.nvmlGpmQueryDeviceSupport(self._gpu).isSupportedDevice:
            self._end(sample)
        self._is_checked = True

    def _read(self, sample: DeviceSample) -> None:
        nvml = self._device.nvml
        while len(self._samples) < 2:
            self._samples.append(nvml.nvmlGpmSampleAlloc())
        fresh, last = self._samples
        if self._device.gpu_instance is None:
            nvml.nvmlGpmSampleGet(self._gpu, fresh)
        else:
            nvml.nvmlGpmMigSampleGet(self._gpu, self._device.gpu_instance, fresh)
        is_pair, self._last_at = self._last_at is not None, sample.now
        self._samples = [last, fresh]
        if is_pair:
            self._compare(last, fresh, sample)

    def _compare(self, before: Any, after: Any, sample: DeviceSample) -> None:
        nvml = self._device.nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._metrics)
        request.sample1, request.sample2 = before, after
        for place, number in enumerate(self._metrics.values()):
            request.metrics[place].metricId = number
        nvml.nvmlGpmMetricsGet(request)
        for place, name in enumerate(list(self._metrics)):
            metric = request.metrics[place]
            if metric.nvmlReturn == nvml.NVML_SUCCESS:
                self._add(name, metric.value, sample)
            elif self._device.is_final(metric.nvmlReturn):
                del self._metrics[name]
                sample.unsupported += GPM_METRICS.keys() & {name}
            else:
                sample.failures.append(f"{name}: {self._device.error(metric.nvmlReturn)}")

    def _add(self, name: str, value: float, sample: DeviceSample) -> None:
        if not isfinite(value):
            return
        if name in GPM_RATES:
            sample.rates[name] = value * _MIB
        else:
            sample.add((name,), (value * _PERCENT,))

    def _end(self, sample: DeviceSample) -> None:
        """Leave out GPM from now on."""
        sample.unsupported += [name for name in self._metrics if name in GPM_METRICS]
        self._metrics.clear()
        self.close()
