"""torchelastic starts ranks again, after a crash and after a node went: attempts of the same labels in the same run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from chiplog_schemas.process.procfs import read_proc_stat
from tests.launchers.training import TORCHRUN, Launched, finished
from tests.support.ports import free_ports
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("elastic")

# The first attempt is killed and the second raises; the other rank waits for a peer that never comes, and is ended.
CRASHES = """
import os, signal, time
import chiplog
from tests.launchers.truth import Truth, writers_with_rows

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
truth = Truth(rank, world)
run = chiplog.init()
for step in range(20):
    truth.log(run, step)
    if step == 9 and attempt < 2:
        if rank == 0:
            time.sleep(1000)
        while writers_with_rows() < 2 * attempt + 2:
            time.sleep(0.01)  # a rank that is ended before its init() returns leaves no attempt
        if attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("a bad batch")
run.finish()
"""

# Runs until it is the only rank.
SHRINKS = """
import time
import torch
import torch.distributed as dist
import chiplog
from tests.launchers.truth import Truth, agree

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
truth = Truth(rank, world)
run = chiplog.init()
agree(run)
for step in range(20 if world == 1 else 100_000):
    total = torch.ones(1)
    dist.all_reduce(total)
    truth.log(run, step, {"total": total.item()})
    time.sleep(0.01)
run.finish()
"""

STORE = """
import sys, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("ready", flush=True)
time.sleep(1000)
"""


def test_a_crash_is_followed_by_another_attempt_of_each_label(launched: Launched) -> None:
    training = launched("torchrun --max-restarts, crashes")
    training.run([*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "2", training.script(CRASHES)])
    crashed = [("rank0", 0, "crashed"), ("rank0", 1, "crashed"), ("rank1", 0, "crashed"), ("rank1", 1, "failed")]
    training.check([*crashed, *finished(2, attempt=2)])


@pytest.fixture
def rendezvous() -> Iterator[str]:
    """The address of a store that belongs to none of the nodes: any of them may go."""
    port = free_ports()
    store = subprocess.Popen([sys.executable, "-c", STORE, str(port)], stdout=subprocess.PIPE)
    try:
        assert store.stdout is not None and store.stdout.readline() == b"ready\n"
        yield f"127.0.0.1:{port}"
    finally:
        store.kill()
        store.wait()
        store.stdout.close()


@pytest.mark.full
def test_a_node_that_goes_leaves_a_smaller_world_in_the_same_run(launched: Launched, rendezvous: str) -> None:
    """The node of rank 0 goes, and with it the store in which the ranks had agreed on their run."""
    training = launched("torchrun --nnodes 1:2, one node goes")
    script = training.script(SHRINKS)
    # The last call is as long as the node that is slower to import torch may be behind the other on a busy machine.
    quick = "is_host=false,last_call_timeout=20,keep_alive_interval=2,keep_alive_max_attempt=4"
    command = [*TORCHRUN, "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-id", "100"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", rendezvous, "--rdzv-conf", quick, script]
    agents = [training.start(command) for _ in range(2)]
    wait_until(lambda: [len(writer.rows) > 150 for writer in training.writers()] == [True, True], "rows of both ranks")
    first = next(writer for writer in training.writers() if writer.rank == 0)
    parent = int(read_proc_stat(first.pid)[1])
    gone = next(agent for agent in agents if agent.pid == parent)
    for pid in (gone.pid, first.pid):  # both: an orphan would train on
        os.kill(pid, signal.SIGKILL)
    gone.wait()
    training.end(next(agent for agent in agents if agent is not gone))
    training.check([("rank0", 0, "crashed"), ("rank1", 0, "failed"), ("rank0", 1, "finished")])
