"""Processes that share nothing but a parent, or not even that: still one run, and each row under its rank's label."""

import sys
from collections.abc import Callable

import pytest

from tests.launchers.training import Training, finished

pytestmark = pytest.mark.xdist_group("processes")

Launched = Callable[[str], Training]

# What every script begins with. `work` logs ten steps from `first` on.
HEAD = """
import os, sys
import multiprocessing
import chiplog
from tests.launchers.truth import Truth

STEPS = 10

def work(run, truth, first=0):
    for step in range(first, first + STEPS):
        values = truth.values()
        with truth.of(step, values):
            run.log(values, step=step)
"""

TORCH = (
    HEAD
    + """
import torch.distributed as dist
import torch.multiprocessing as mp

STORE = f"file://{os.getcwd()}/store"

def group(rank, world_size):
    dist.init_process_group("gloo", init_method=STORE, rank=rank, world_size=world_size)
"""
)

SPAWN = (
    TORCH
    + """
def early(rank, world_size):
    run = chiplog.init(config={"lr": 0.1})
    truth = Truth(rank, world_size)
    work(run, truth)
    group(rank, world_size)
    work(run, truth, STEPS)
    run.finish()

def late(rank, world_size):
    group(rank, world_size)
    run = chiplog.init(config={"lr": 0.1})
    work(run, Truth(rank, world_size))

def alone(rank, world_size):
    run = chiplog.init(config={"lr": 0.1})
    work(run, Truth())

if __name__ == "__main__":
    mp.spawn(globals()[sys.argv[1]], (2,), nprocs=2)
"""
)


@pytest.mark.parametrize("when", ["early", "late"])
def test_ranks_of_mp_spawn_are_one_run_whether_init_comes_before_the_group_or_after(launched: Launched, when) -> None:
    training = launched(f"mp.spawn, init() {'before' if when == 'early' else 'after'} the group")
    training.run([sys.executable, training.script(SPAWN), when])
    training.check(finished(2))


def test_ranks_of_mp_spawn_without_a_group_are_one_run_too(launched: Launched) -> None:
    training = launched("mp.spawn, no group")
    training.run([sys.executable, training.script(SPAWN), "alone"])
    training.check([("*", 0, "finished")] * 2)
