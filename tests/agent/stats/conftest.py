"""Fixtures of the statistics' tests: a sampler with a replacement library for NVML."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gpu_sampler import GpuSampler, compile_library
from tests.support.patched import LOOKS_OFTEN, patch_daemons
from tests.support.tools import require


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the replacement library."""
    require("gcc")
    folder = tmp_path_factory.mktemp("nvml")
    compile_library(folder)
    return folder


@pytest.fixture
def node(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuSampler]:
    """A sampler of two GPUs that is not started yet."""
    node = GpuSampler(tmp_path)
    patch_daemons(monkeypatch, tmp_path / "patch", LOOKS_OFTEN)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml))
    monkeypatch.setenv("FAKE_NVML_CONTROL", str(node.control))
    monkeypatch.setenv("FAKE_NVML_CALLS", str(node.calls))
    monkeypatch.setenv("FAKE_NVML_SHUTDOWNS", str(node.shutdowns))
    yield node
    node.feed.close()


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of this machine with a memory limit of 256 MiB, of v1 or v2."""
    for mount, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = Path(mount) / f"chiplog-test-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / limit).write_text(str(256 << 20))
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        yield folder
        folder.rmdir()  # empty, for its processes have ended
        return
    pytest.skip("no control group can be made here")
