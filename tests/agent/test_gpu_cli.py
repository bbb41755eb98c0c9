"""`chiplog agent gpu release|resume`, with a stand-in for NVIDIA's library."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_schemas.paths import paths_for_root
from tests.support.gpu_sampler import compile_library
from tests.support.tools import needs
from tests.support.waiting import WAIT_S, wait_until

AGENT = [sys.executable, "-P", "-m", "chiplog_agent"]
pytestmark = needs("gcc")


class Agent:
    """An agent of a directory, with GPUs."""

    def __init__(self, root: Path, log: Path) -> None:
        self.log = log
        self.root = root
        self.start()

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*AGENT, "--dir", str(self.root), "--collector", "tcp://127.0.0.1:1", "--sample-interval-s", "0.2"],
                stderr=log,
            )

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0

    @property
    def sampler(self) -> str:
        """The PID of its sampler; empty without one."""
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split(" ")[0]

    def has_nvml(self) -> bool:
        """Return True if the sampler has NVML loaded."""
        try:
            return "libnvidia-ml" in Path(f"/proc/{self.sampler}/maps").read_text()
        except OSError:
            return False

    def until_logged(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.log.read_text().count(text) >= times, f"the line {text!r}")


@pytest.fixture
def agent(chiplog_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    compile_library(tmp_path)
    (tmp_path / "control").write_text("")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML_CONTROL", str(tmp_path / "control"))
    agent = Agent(chiplog_dir, tmp_path / "log")
    yield agent
    agent.process.kill()
    agent.process.wait()


def call(*arguments: str, status: int = 0) -> str:
    """Run `chiplog agent …`, and return what it prints."""
    done = subprocess.run([*AGENT, *arguments], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_released_gpus_are_closed_also_by_the_next_agent_until_they_are_resumed(agent: Agent) -> None:
    root = str(agent.root)
    wait_until(agent.has_nvml, "GPUs in use")
    assert "has closed the GPUs" in call("gpu", "release", "--dir", root)
    agent.until_logged("the GPUs are released until")
    assert agent.sampler and not agent.has_nvml()
    assert "has closed the GPUs" in call("--dir", root, "gpu", "release"), "again"
    agent.stop()
    assert "No agent" in call("gpu", "release", "--dir", root)
    agent.start()
    agent.until_logged("the GPUs are released until", times=2)
    assert "samples the GPUs again" in call("gpu", "resume", "--dir", root)
    wait_until(agent.has_nvml, "GPUs in use again")
    agent.until_logged("the GPUs are resumed")
    assert "were not released" in call("gpu", "resume", "--dir", root)
    assert "is lost" not in agent.log.read_text() and "stale" not in agent.log.read_text()


def test_resume_says_when_no_agent_runs(chiplog_dir: Path) -> None:
    chiplog_dir.mkdir(exist_ok=True)
    call("gpu", "release", "--dir", str(chiplog_dir))
    assert call("gpu", "resume", "--dir", str(chiplog_dir)).startswith("No agent of ")


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    missing = tmp_path / "no" / "such"
    for command in ("release", "resume"):
        [line] = call("gpu", command, "--dir", str(missing), status=1).splitlines()
        assert f"{missing} does not exist" in line and not missing.parent.exists()
    [line] = call("gpu", "release", "--dir", str(tmp_path / "file"), status=1).splitlines()
    assert line.startswith("chiplog agent")
    assert not paths_for_root(tmp_path / "file").agent.exists()
