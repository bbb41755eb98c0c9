"""One process, and torchrun in its forms: every rank's rows, under one run that nobody named."""

import sys
from collections.abc import Callable

import pytest

from tests.launchers.training import TORCHRUN, Training, finished

pytestmark = pytest.mark.xdist_group("torchrun")

Launched = Callable[[str], Training]

PLAIN = """
import chiplog
from tests.launchers.truth import Truth

truth = Truth()
run = chiplog.init(config={"lr": 0.1})
for step in range(20):
    values = truth.values()
    with truth.of(step, values):
        run.log(values, step=step)
run.finish()
"""

RANKS = """
import torch.distributed as dist
import chiplog
from tests.launchers.truth import Truth

dist.init_process_group("gloo")
truth = Truth(dist.get_rank(), dist.get_world_size())
run = chiplog.init(config={"lr": 0.1})
for step in range(20):
    values = truth.values()
    with truth.of(step, values):
        run.log(values, step=step)
run.finish()
dist.barrier()
dist.destroy_process_group()
"""


def test_a_plain_process_is_a_run_of_its_own(launched: Launched) -> None:
    training = launched("plain process")
    training.run([sys.executable, training.script(PLAIN)])
    training.check([("*", 0, "finished")])


def test_torchrun_on_one_node_is_one_run(launched: Launched) -> None:
    training = launched("torchrun, one node")
    training.run([*TORCHRUN, "--standalone", "--nproc-per-node", "2", training.script(RANKS)])
    training.check(finished(2))
