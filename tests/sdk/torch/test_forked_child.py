"""A forked child and what its parent has on a device: CUDA ends a process that destroys another one's events."""

import subprocess
import sys
from pathlib import Path

from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

TRAINING = """
import os, sys
from types import SimpleNamespace
import chiplog
from chiplog.torch.cuda_timing import CudaTiming

class Event:
    def __init__(self, device, enable_timing):
        pass
    def record(self):
        pass
    def query(self):
        return False
    def __del__(self, os=os, parent=os.getpid()):
        if os.getpid() != parent:
            os.write(2, b"destroyed in the child ")

cuda = SimpleNamespace(current_device=lambda: 0, is_current_stream_capturing=lambda: False)
run = chiplog.init(mode="offline", capture_console=False)
stand_in = SimpleNamespace(cuda=cuda, Event=Event)
run._timing.device = CudaTiming(stand_in, run._devices.deferred, run._values.append_times)
with run.phase("open"):
    with run.phase("over"):
        pass
    run.step()
    with run.phase("without a step"):
        pass
    pid = os.fork()
    if pid == 0:
        run.log({"x": 1.0})
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


@proves(
    "fork-destroys-no-marks",
    "a forked child destroys no event of its parent's device, neither at the fork nor at its end",
    new="self._devices.begin_in_child()",
)
def test_a_forked_child_destroys_no_mark_of_its_parent(chiplog_dir: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", TRAINING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
