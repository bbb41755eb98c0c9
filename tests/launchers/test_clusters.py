"""Variables of cluster schedulers: several processes with those of srun, mpirun, accelerate and Lightning.

None of these launchers is installed here: shells set the variables that their documentation lists.
"""

import sys
from collections.abc import Mapping

import pytest

from tests.launchers.training import Launched, Training, finished
from tests.support.ports import free_ports

pytestmark = pytest.mark.xdist_group("processes")

# Without torch: the variables alone have to do.
RANK = """
import sys
import chiplog
from tests.launchers.truth import Truth

truth = Truth(int(sys.argv[1]), int(sys.argv[2]))
run = chiplog.init()
for step in range(20):
    truth.log(run, step)
run.finish()
"""


def start(training: Training, *ranks: Mapping[str, str], script: str = RANK) -> None:
    """Start a process for each rank, with its variables, and wait for all."""
    path, world = training.script(script), str(len(ranks))
    started = [
        training.start([sys.executable, path, str(rank), world], variables) for rank, variables in enumerate(ranks)
    ]
    for process in started:
        training.end(process)


def srun(rank: int, step: int = 0, restart: int | None = None, started: int = 1_795_220_000) -> dict[str, str]:
    variables = {
        "SLURM_JOB_ID": "4242",
        "SLURM_STEP_ID": str(step),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_JOB_START_TIME": str(started),
    }
    return variables if restart is None else {**variables, "SLURM_RESTART_COUNT": str(restart)}


def test_each_step_of_a_slurm_job_is_one_run(launched: Launched) -> None:
    first, second = launched("srun"), launched("srun, another step of the job")
    start(first, srun(0), srun(1))
    start(second, srun(0, step=1), srun(1, step=1))
    assert first.check(finished(2)) != second.check(finished(2))


def test_a_slurm_job_that_is_requeued_goes_on_in_its_run(launched: Launched) -> None:
    """It starts at another time, and has another shell for a parent."""
    training = launched("srun, requeued")
    start(training, srun(0, step=7), srun(1, step=7))
    start(training, *(srun(rank, step=7, restart=1, started=1_795_229_999) for rank in range(2)))
    training.check(finished(2) + finished(2, attempt=1))


def test_ranks_of_mpirun_are_one_run(launched: Launched) -> None:
    training = launched("mpirun (Open MPI)")
    own = [{"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)} for rank in range(2)]
    start(training, *(v | {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"} for v in own))
    training.check(finished(2))


def test_ranks_of_mpiexec_are_one_run(launched: Launched) -> None:
    training = launched("mpiexec (PMI)")
    start(training, *({"PMI_RANK": str(rank), "PMI_SIZE": "2"} for rank in range(2)))
    training.check(finished(2))


# Rank 0 starts the others, after init(), with what Lightning's launcher of subprocesses sets. They join the parent's
# run as separate ranks.
LIGHTNING = """
import os, subprocess, sys
import torch.distributed as dist
import chiplog
from tests.launchers.truth import Truth, agree

run = chiplog.init()
child = None
if os.environ.get("LOCAL_RANK", "0") == "0":
    os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    child = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("gloo", rank=rank, world_size=2)
truth = Truth(rank, 2)
for step in range(20):
    truth.log(run, step)
agree(run)
dist.barrier()
run.finish()
dist.destroy_process_group()
sys.exit(child.wait() if child is not None else 0)
"""


@pytest.mark.full
def test_lightning_ddp_whose_rank_0_starts_the_others_is_one_run(launched: Launched) -> None:
    training = launched("Lightning ddp")
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports())}
    training.run([sys.executable, training.script(LIGHTNING)], master)
    training.check(finished(2))


def test_accelerate_with_one_process_is_a_run_of_its_own(launched: Launched) -> None:
    training = launched("accelerate, one process")
    plain = RANK.replace("Truth(int(sys.argv[1]), int(sys.argv[2]))", "Truth()")
    start(training, {"LOCAL_RANK": "0", "ACCELERATE_MIXED_PRECISION": "no"}, script=plain)
    training.check([("*", 0, "finished")])
