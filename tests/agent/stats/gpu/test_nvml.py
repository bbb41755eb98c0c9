"""Whether a driver is here, without loading its library into the agent."""

from pathlib import Path

import pytest

from chiplog_agent.stats.gpu import nvml
from chiplog_agent.stats.gpu.nvml import address_of, gpu_places, has_driver, kernel_gpus
from tests.support.safeguard import proves


def test_the_kernels_list_of_gpus_tells_of_one_that_nvml_does_not_count(tmp_path: Path) -> None:
    assert kernel_gpus(str(tmp_path / "absent")) == []
    for name in ("0000:1b:00.0", "0000:04:00.0"):
        (tmp_path / name).mkdir()
    assert kernel_gpus(str(tmp_path)) == ["0000:04:00.0", "0000:1b:00.0"]


def test_a_gpu_that_does_not_answer_on_the_bus_is_told_apart(tmp_path: Path) -> None:
    """Of another the configuration cannot be read: it counts as one that answers."""
    for address, ids in {"0000:04:00.0": b"\xde\x10\x30\x23", "0000:1b:00.0": b"\xff" * 4, "0000:2c:00.0": b""}.items():
        (tmp_path / "gpus" / address).mkdir(parents=True)
        if ids:
            (tmp_path / "bus" / address).mkdir(parents=True)
            (tmp_path / "bus" / address / "config").write_bytes(ids + bytes(60))
    assert kernel_gpus(str(tmp_path / "gpus"), str(tmp_path / "bus")) == [
        "0000:04:00.0",
        "0000:1b:00.0 is off the bus",
        "0000:2c:00.0",
    ]


def test_each_gpu_has_a_place_also_while_it_tells_no_uuid() -> None:
    gpus = ["0000:04:00.0", "0000:1b:00.0 is off the bus"]
    assert gpu_places(2, gpus) == ["GPU 0000:04:00.0", "GPU 0000:1b:00.0"]
    assert [address_of(place) for place in gpu_places(2, gpus)] == ["00000000:04:00.0", "00000000:1B:00.0"]
    assert [address_of(word) for word in ("GPU 0 of 3", "nic:eth0", "GPU-1", "")] == [""] * 4
    assert gpu_places(3, gpus) == ["GPU 0 of 3", "GPU 1 of 3", "GPU 2 of 3"], "NVML counts others than the kernel"


@proves(
    "library-stays-out-of-agent",
    "where the kernel has a driver the agent does not load its library",
    part="os.path.exists(_KERNEL_DRIVER) or ",
)
def test_a_driver_is_found_without_its_library_where_the_kernel_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "_KERNEL_DRIVER", str(tmp_path / "nvidia"))
    monkeypatch.setattr(nvml, "_LIBRARY", "libc.so.6")
    assert has_driver()
    monkeypatch.setattr(nvml, "_LIBRARY", "libnvidia-ml-that-does-not-exist.so.1")
    assert not has_driver()
    (tmp_path / "nvidia").mkdir()
    monkeypatch.setattr(nvml, "missing_library", lambda: pytest.fail("the library is loaded into the agent"))
    assert has_driver()
