"""`sdk/examples/demo.py`: a slow training is waited for, and a silent one ends the wait, not the demo."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from chiplog_schemas.paths import paths_for_root
from tests.support.loaded_script import load_script
from tests.support.node import end_daemons

STEPS = 16
# Two ranks that log some steps, print the last one when all is logged, and then hang.
HANGING = """
import os, subprocess, sys, time
os.environ.setdefault("RANK", "0")
import chiplog
if os.environ["RANK"] == "0":
    other = subprocess.Popen([sys.executable, *sys.argv], env=dict(os.environ, RANK="1"), stdout=subprocess.PIPE)
run = chiplog.init(project="hangs", label="rank" + os.environ["RANK"])
for step in range(int(sys.argv[1])):
    run.log({"train/loss": 1.0}, step=step)
run.finish()
if os.environ["RANK"] == "0":
    other.stdout.readline()
print("step", step, flush=True)
time.sleep(600)
"""

Hanging = Callable[[int], subprocess.Popen[str]]


@pytest.fixture
def module() -> Any:
    return load_script("sdk/examples/demo.py")


@pytest.fixture
def demo(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(module, "SILENCE_LIMIT_S", 1)
    demo = module.Demo(tmp_path / "data", STEPS)
    demo.fresh()
    yield demo
    end_daemons(paths_for_root(demo.dir))


@pytest.fixture
def hanging(demo: Any, tmp_path: Path) -> Iterator[Hanging]:
    started: list[subprocess.Popen[str]] = []

    def start(steps: int) -> subprocess.Popen[str]:
        script = tmp_path / "train.py"
        script.write_text(HANGING)
        environ = demo.env | {"WORLD_SIZE": "2", "CHIPLOG_RUN_ID": "hangs"}
        process = subprocess.Popen(
            [sys.executable, str(script), str(steps)],
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process, suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_only_silence_ends_the_wait_for_a_training(module: Any) -> None:
    watch = module.StepWatch(0.0)
    assert not watch.is_silent(-1, module.START_LIMIT_S)
    now = module.START_LIMIT_S + 1.0
    for step in range(100):  # half of the limit each: many times as long as an idle machine takes
        now += module.SILENCE_LIMIT_S / 2
        assert not watch.is_silent(step, now)
    assert not watch.is_silent(99, now + module.SILENCE_LIMIT_S)
    assert watch.is_silent(99, now + module.SILENCE_LIMIT_S + 1)


def test_a_training_that_never_starts_ends_the_wait(module: Any) -> None:
    assert module.StepWatch(0.0).is_silent(-1, module.START_LIMIT_S + 1)


@pytest.mark.full
def test_a_training_that_hangs_when_all_is_stored_is_ended_and_the_queries_follow(
    demo: Any, hanging: Hanging, capsys: pytest.CaptureFixture[str]
) -> None:
    training = hanging(STEPS)
    demo.follow(training, False)
    assert training.returncode is not None, "the training was ended"
    assert f"after step {STEPS - 1}: the training was ended" in capsys.readouterr().out
    demo.settle()
    demo.prove()


def test_a_training_that_hangs_before_its_end_fails_with_the_missing_steps(
    demo: Any, module: Any, hanging: Hanging
) -> None:
    demo.follow(hanging(3), False)
    with pytest.raises(module.DemoError, match=r"no new step for 1 s, and rank0 should have steps 0 to 15 once each"):
        demo.settle()
