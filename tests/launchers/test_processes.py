"""Processes that share nothing but a parent, or not even that: still one run, and each row under its rank's label."""

import subprocess
import sys
import time

import pytest

from tests.launchers.training import Launched, finished
from tests.support.marks import everyday
from tests.support.ports import free_ports
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.xdist_group("processes")

# What every script begins with. `work` logs ten steps from `first` on.
HEAD = """
import os, signal, sys, time
import multiprocessing
import chiplog
from tests.launchers.truth import Truth, agree

STEPS = 10

def work(run, truth, first=0):
    for step in range(first, first + STEPS):
        truth.log(run, step)
"""

TORCH = (
    HEAD
    + """
import torch.distributed as dist
import torch.multiprocessing as mp

STORE = f"file://{os.getcwd()}/{os.environ.get('STORE', 'store')}"

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
    agree(run)
    run.finish()

def late(rank, world_size):
    group(rank, world_size)
    run = chiplog.init(config={"lr": 0.1})
    work(run, Truth(rank, world_size))
    agree(run)

def alone(rank, world_size):
    run = chiplog.init(config={"lr": 0.1})
    work(run, Truth())

def dies(rank, world_size):
    run = chiplog.init(config={"lr": 0.1})
    work(run, Truth())
    open(f"ready{rank}", "w").close()
    while rank or not os.path.exists("ready1"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    mp.spawn(globals()[sys.argv[1]], (2,), nprocs=2)
"""
)

BY_HAND = (
    TORCH
    + """
rank, port = int(sys.argv[1]), sys.argv[2]
run = chiplog.init(config={"lr": 0.1})
with open(f"id{rank}", "w") as file: file.write(run.id)
truth = Truth(rank, 2)
work(run, truth)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
work(run, truth, STEPS)
agree(run)
dist.barrier()
"""
)

RPC = (
    TORCH
    + """
import torch.distributed.rpc as rpc

def log_here(first):
    work(chiplog.run, truth, first)   # in a C++ thread of the callee

def worker(rank, names):
    global truth
    run = chiplog.init(config={"lr": 0.1})
    truth = Truth(rank, 2, label=names[rank])
    work(run, truth)
    options = rpc.TensorPipeRpcBackendOptions(init_method=STORE)
    rpc.init_rpc(names[rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        rpc.rpc_sync(names[1], log_here, (STEPS,))
    agree(run)
    rpc.shutdown()

if __name__ == "__main__":
    processes = [multiprocessing.Process(target=worker, args=(n, ("trainer", "ps"))) for n in range(2)]
    for process in processes: process.start()
    for process in processes: process.join()
"""
)

LOADER = (
    TORCH
    + """
from torch.utils.data import DataLoader, Dataset

class Logging(Dataset):
    truth = None

    def __init__(self, run):
        self.run = run

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if self.truth is None:
            self.truth = Truth(label=f"main.{os.getpid()}")
            self.seen = 0
        self.seen += 1
        self.truth.log(self.run, self.seen)
        return index

if __name__ == "__main__":
    run = chiplog.init(label="main")
    truth = Truth(label="main")
    for method in sys.argv[1:]:
        options = {"num_workers": 1, "multiprocessing_context": method, "persistent_workers": True}
        quiet, loud = DataLoader(range(4), **options), DataLoader(Logging(run), **options)
        for epoch in range(2):
            assert len(list(loud)) + len(list(quiet)) == 8
        del loud, quiet
    work(run, truth)
"""
)

CHILDREN = (
    HEAD
    + """
def child(number):
    work(chiplog.init(config={"lr": 0.1}), Truth())

def handed(run, number):
    work(run, Truth(label=f"main.{os.getpid()}"))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    if sys.argv[1] == "setup":
        chiplog.setup()
        arguments = [(child, (n,)) for n in range(2)]
    else:
        run = chiplog.init(label="main")
        work(run, Truth(label="main"))
        arguments = [(child, (0,)), (handed, (run, 1))]
    processes = [context.Process(target=target, args=args) for target, args in arguments]
    for process in processes: process.start()
    for process in processes: process.join()
    assert [process.exitcode for process in processes] == [0, 0]
"""
)


TWICE = (
    HEAD
    + """
run = chiplog.init(label="eval")
truth = Truth(label="eval")
work(run, truth)
open(sys.argv[1], "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
work(run, truth, STEPS)
"""
)


@pytest.mark.parametrize("when", ["early", pytest.param("late", marks=pytest.mark.full)])
def test_ranks_of_mp_spawn_are_one_run_whether_init_comes_before_the_group_or_after(launched: Launched, when) -> None:
    training = launched(f"mp.spawn, init() {'before' if when == 'early' else 'after'} the group")
    training.run([sys.executable, training.script(SPAWN), when])
    training.check(finished(2))


@pytest.mark.full
def test_ranks_of_mp_spawn_without_a_group_are_one_run_too(launched: Launched) -> None:
    training = launched("mp.spawn, no group")
    training.run([sys.executable, training.script(SPAWN), "alone"])
    training.check([("*", 0, "finished")] * 2)


@pytest.mark.full
def test_ranks_of_mp_spawn_that_die_before_they_know_who_they_are_leave_one_run(launched: Launched) -> None:
    training = launched("mp.spawn, a rank dies before the group")
    training.run([sys.executable, training.script(SPAWN), "dies"], exit_code=1)
    training.check([("*", 0, "crashed")] * 2, run_state="crashed")


@pytest.mark.full
def test_ranks_of_mp_spawn_that_go_on_with_a_run_are_its_next_attempts(launched: Launched) -> None:
    training = launched("mp.spawn, started again with its run ID")
    for store in ("first", "again"):
        environ = {"STORE": store, "CHIPLOG_RUN_ID": training.directory.name}
        training.run([sys.executable, training.script(SPAWN), "early"], environ)
    training.check(finished(2) + finished(2, attempt=1))


@pytest.mark.full
def test_ranks_started_by_hand_agree_through_the_store_beside_another_such_job(launched: Launched) -> None:
    trainings = [launched(f"init_process_group by hand, job {number} of two at a time") for number in (1, 2)]
    started = []
    for training in trainings:
        script, port = training.script(BY_HAND), str(free_ports(1))
        started += [(training, training.start([sys.executable, script, str(rank), port])) for rank in (0, 1)]
    for training, process in started:
        training.end(process)
    assert len({training.check(finished(2)) for training in trainings}) == 2
    first_ids = {(training.directory / f"id{rank}").read_text() for rank in (0, 1)}
    [former] = first_ids - {training.run_id}
    chiplog = [sys.executable, "-m", "chiplog_cli", "show", former, "--dir", training.environ["CHIPLOG_DIR"]]
    shown = subprocess.run(chiplog, capture_output=True, text=True, timeout=WAIT_S)
    assert training.run_id in shown.stdout, f"the ID that a rank printed at first leads to the run: {shown}"


def test_workers_of_rpc_are_labels_by_their_names_and_callees_log_too(launched: Launched) -> None:
    training = launched("torch.distributed.rpc")
    training.run([sys.executable, training.script(RPC)])
    training.check([("ps", 0, "finished"), ("trainer", 0, "finished")])


@pytest.mark.parametrize("methods", everyday(1, ["fork", "fork and spawn"]))
def test_workers_of_a_dataloader_are_labels_only_if_they_log(launched: Launched, methods) -> None:
    training = launched(f"DataLoader workers, {methods}")
    names = methods.split(" and ")
    training.run([sys.executable, training.script(LOADER), *names])
    labels = [writer.label for writer in training.writers()]
    assert len(labels) == 1 + len(names)
    training.check([(str(label), 0, "finished") for label in labels])


@pytest.mark.parametrize("method", everyday(1, ["fork", "spawn", "forkserver"]))
def test_children_of_a_parent_that_only_called_setup_are_one_run(launched: Launched, method) -> None:
    training = launched(f"multiprocessing, {method}, setup() in the parent")
    training.run([sys.executable, training.script(CHILDREN), "setup", method])
    training.check([("*", 0, "finished")] * 2)


@pytest.mark.parametrize("method", everyday(1, ["spawn", "fork", "forkserver"]))
def test_children_that_call_init_or_are_given_the_run_are_in_their_parents(launched: Launched, method) -> None:
    training = launched(f"multiprocessing, {method}, init() in the parent")
    training.run([sys.executable, training.script(CHILDREN), "init", method])
    [handed] = [str(w.label) for w in training.writers() if w.label and w.label.startswith("main.")]
    training.check([("*", 0, "finished"), ("main", 0, "finished"), (handed, 0, "finished")])


def test_a_label_that_two_processes_use_at_a_time_keeps_the_rows_of_both_and_is_told(launched: Launched) -> None:
    training = launched("by hand, one label twice")
    environ = {"CHIPLOG_RUN_ID": training.directory.name}
    processes = []
    for name in ("first", "second"):
        processes.append(training.start([sys.executable, training.script(TWICE), name], environ))
        wait_until((training.directory / name).exists, f"the {name} process")
    time.sleep(1.1)  # so that their times certainly overlap
    training.script("", name="go")
    for process in processes:
        training.end(process)
    training.check([("eval", 0, "finished"), ("eval", 1, "finished")])
    told = training.events("label_twice")
    assert len(told) == 1
    assert all(str(process.pid) in told[0] for process in processes), told
