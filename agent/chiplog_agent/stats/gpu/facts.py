"""What the GPUs of a node are: models, driver, CUDA, where they are plugged in, and how they reach each other."""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

from chiplog_agent.stats.gpu.nvml import PCI_DEVICES, Handle, Nvml, short_address
from chiplog_agent.stats.host.facts import numa_node

_TOPOLOGY = {  # nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`
    0: "internal",  # of one board
    10: "PIX",
    20: "PXB",
    30: "PHB",
    40: "NODE",
    50: "SYS",
}


def gpu_facts(nvml: Nvml, handles: Mapping[str, Handle]) -> dict[str, Any]:
    """Return the facts of GPUs by UUID, in NVML's order; what the driver does not tell is absent."""
    facts: dict[str, Any] = {"gpus": [_gpu(nvml, uuid, handle) for uuid, handle in handles.items()]}
    _put(nvml, facts, "driver", lambda: _text(nvml.nvmlSystemGetDriverVersion()))
    _put(nvml, facts, "cuda", lambda: _cuda(nvml.nvmlSystemGetCudaDriverVersion_v2()))
    topology: list[list[str]] = []
    for (one, handle), (other, peer) in combinations(handles.items(), 2):
        try:
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(handle, peer)
        except (nvml.NVMLError, AttributeError):
            continue  # an old pynvml, or a virtual machine without the topology
        topology.append([one, other, _TOPOLOGY.get(level, str(level))])
    return facts | ({"topology": topology} if topology else {})


def _gpu(nvml: Nvml, uuid: str, handle: Handle) -> dict[str, Any]:
    gpu: dict[str, Any] = {"uuid": uuid}
    _put(nvml, gpu, "model", lambda: _text(nvml.nvmlDeviceGetName(handle)))
    _put(nvml, gpu, "minor", lambda: nvml.nvmlDeviceGetMinorNumber(handle))
    _put(nvml, gpu, "pci", lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    if "pci" in gpu and (node := numa_node(f"{PCI_DEVICES}/{short_address(gpu['pci']).lower()}")) is not None:
        gpu["numa_node"] = node
    return gpu


def _put(nvml: Nvml, facts: dict[str, Any], name: str, read: Callable[[], Any]) -> None:
    try:
        facts[name] = read()
    except (nvml.NVMLError, AttributeError):
        pass  # not supported by the driver, or by an old pynvml


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
