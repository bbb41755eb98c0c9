"""One process, variables exported by hand, and torchrun in its forms: each is one run, without a given run ID."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launchers.scripts import PLAIN, RANKS
from tests.launchers.training import TORCHRUN, Launched, Training, finished
from tests.support.ports import free_ports
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.xdist_group("torchrun")

DATA_PARALLEL = """
import torch
import chiplog
from tests.launchers.truth import Truth

truth = Truth()
run = chiplog.init()
model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with truth.of(step, {"loss": loss}):
        run.log({"loss": loss}, step=step)
run.finish()
"""

# Ends as many scripts do: without finish().
POINT_TO_POINT = """
import torch
import torch.distributed as dist
import chiplog
from tests.launchers.truth import Truth, agree

run = chiplog.init()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
truth = Truth(rank, world)
for step in range(20):
    number = torch.rand(1)
    if rank == 0:
        dist.send(number, dst=1)
    else:
        dist.recv(number, src=0)
    gathered = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(gathered, number)
    dist.broadcast(number, src=1)
    truth.log(chiplog, step, {"number": number.item(), "sum": sum(gathered).item()})
agree(run)
dist.barrier()
dist.destroy_process_group()
"""


def by_hand(training: Training, script: str, port: int, *, through_shells: bool = False) -> None:
    """Start two ranks with variables exported by hand, and wait for both.

    through_shells: start each from a separate shell, as on two machines: the ranks have no common parent.
    """
    command = ["sh", "-c", f"{sys.executable} {script}; exit $?"] if through_shells else [sys.executable, script]
    hosts = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [training.start(command, {**hosts, "RANK": str(rank)}) for rank in range(2)]
    for rank in ranks:
        training.end(rank)


def test_a_plain_process_is_a_run_of_its_own(launched: Launched) -> None:
    training = launched("plain process")
    training.run([sys.executable, training.script(PLAIN)])
    training.check([("*", 0, "finished")])


@pytest.mark.full
def test_data_parallel_is_one_label(launched: Launched) -> None:
    training = launched("DataParallel")
    training.run([sys.executable, training.script(DATA_PARALLEL)])
    training.check([("*", 0, "finished")])


def test_torchrun_on_one_node_is_one_run(launched: Launched) -> None:
    training = launched("torchrun, one node")
    training.run([*TORCHRUN, "--standalone", "--nproc-per-node", "3", training.script(RANKS)])
    training.check(finished(3))


@pytest.mark.full
def test_torch_distributed_launch_is_one_run(launched: Launched) -> None:
    training = launched("torch.distributed.launch")
    module = [sys.executable, "-m", "torch.distributed.launch", "--master-port", str(free_ports())]
    script = training.script("import sys\nassert '--local-rank' in sys.argv[1]\n" + RANKS)
    training.run([*module, "--nproc-per-node", "2", script])
    training.check(finished(2))


@pytest.mark.full
def test_the_same_rendezvous_id_again_is_another_run(launched: Launched) -> None:
    first, second = launched("torchrun --rdzv-id 100"), launched("torchrun --rdzv-id 100, again later")
    for training in (first, second):
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_ports()}", "--rdzv-id", "100"]
        training.run([*TORCHRUN, *rendezvous, "--nnodes", "1", "--nproc-per-node", "2", training.script(RANKS)])
    assert first.check(finished(2)) != second.check(finished(2))


@pytest.mark.full
def test_two_jobs_on_one_host_at_the_same_time_are_two_runs(launched: Launched) -> None:
    jobs = [launched("torchrun beside another"), launched("torchrun beside another, the other")]
    started = []
    for job in jobs:
        rendezvous = ["--master-port", str(free_ports()), "--rdzv-id", "100"]
        started.append(job.start([*TORCHRUN, *rendezvous, "--nproc-per-node", "2", job.script(RANKS)]))
    for job, process in zip(jobs, started, strict=True):
        job.end(process)
    assert jobs[0].check(finished(2)) != jobs[1].check(finished(2))


@pytest.mark.full
def test_ranks_whose_variables_were_exported_by_hand_are_one_run(launched: Launched) -> None:
    training = launched("c10d by hand, one shell")
    by_hand(training, training.script(POINT_TO_POINT), free_ports())
    training.check(finished(2))


@pytest.mark.full
def test_trainings_that_one_shell_starts_by_hand_one_after_the_other_are_runs_of_their_own(launched: Launched) -> None:
    port = free_ports()
    first, second = launched("c10d by hand, then again"), launched("c10d by hand, again")
    for training in (first, second):
        by_hand(training, training.script(POINT_TO_POINT), port)
    assert first.check(finished(2)) != second.check(finished(2))


@pytest.mark.full
def test_ranks_by_hand_from_two_shells_are_one_run(launched: Launched) -> None:
    training = launched("c10d by hand, two shells")
    by_hand(training, training.script(RANKS), free_ports(), through_shells=True)
    training.check(finished(2))


MOVED_RANK = """
import json, os, pathlib, sys
os.chdir(sys.argv[1])
import chiplog
with chiplog.init(capture_console=False) as run:
    found = [str(run._settings.places.root), run.mode, run.project, run.id]
    pathlib.Path(f"{os.environ['RANK']}.json").write_text(json.dumps(found))
"""
MOVED_PARENT = """
import os, subprocess, sys
import chiplog
with chiplog.init("gpt", run_id="r", mode="offline", capture_console=False):
    os.chdir(sys.argv[1])
    subprocess.run(sys.argv[2:], check=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("way", ["init", "chiplog run"])
def test_ranks_record_where_the_process_before_torchrun_does_although_both_moved(tmp_path: Path, way: str) -> None:
    rank, elsewhere = tmp_path / "rank.py", tmp_path / "elsewhere"
    rank.write_text(MOVED_RANK)
    elsewhere.mkdir()
    torchrun = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", str(rank), str(elsewhere)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CHIPLOG_")}
    environ["CHIPLOG_DIR"] = "data"
    command = ["-c", MOVED_PARENT, str(elsewhere)]
    if way == "chiplog run":
        options = ["--run-id", "r", "--project", "gpt", "--mode", "offline"]
        command = ["-m", "chiplog_cli", "run", "--no-console", *options, "--"]
    subprocess.run([sys.executable, *command, *torchrun], cwd=tmp_path, env=environ, check=True, timeout=2 * WAIT_S)
    for number in range(2):
        found = json.loads((elsewhere / f"{number}.json").read_text())
        assert found == [str(tmp_path / "data"), "offline", "gpt", "r"]
