"""Code for W&B, unchanged: `import wandb` is chiplog's. Each row of each process is in SQL, in one run or many."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.training import STARTUP, TORCHRUN
from tests.support.failed_output import ended_with
from tests.support.marks import everyday
from tests.support.node import Node
from tests.support.ports import free_ports
from tests.support.summary_writers import MODULES
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.xdist_group("processes")

Rows = list[tuple[Any, ...]]
AS_WANDB = [sys.executable, "-m", "chiplog_cli", "run", "--as", "wandb", "--"]
_QUERY = """
SELECT r.run_id, r.run_group, l.label, l.job_type, l.state, count(m.value)::INTEGER, sum(m.value)::INTEGER
FROM runs r JOIN labels l USING (run_id) LEFT JOIN metrics m ON m.run_id = l.run_id AND m.label = l.label
WHERE r.project = '{project}' GROUP BY ALL ORDER BY ALL
"""

# What every script begins with: values of rank or process n are 100 n + step.
HEAD = """
import os, sys, multiprocessing
import wandb

def work(run, n, first=0):
    for step in range(first, first + 3):
        run.log({"loss": 100 * n + step})
"""
RANKS = (
    HEAD
    + """
rank = int(os.environ["RANK"])
run = wandb.init(config={"rank": rank}, **eval(sys.argv[1]))
work(run, rank)
wandb.finish()
"""
)
RANK_0 = (
    HEAD
    + """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", type=int)
args = parser.parse_args()
if args.local_rank == 0:
    run = wandb.init(config=args)
    work(run, 1)
"""
)
SHARED = (
    HEAD
    + """
n = int(sys.argv[1])
settings = wandb.Settings(mode="shared", x_label=f"node-{n}", x_primary=n == 0, x_update_finish_state=n == 0,
                          x_stats_gpu_device_ids=[n])
run = wandb.init(id=sys.argv[2], settings=settings)
work(run, n)
run.finish()
"""
)
POOL = (
    HEAD
    + """
def task(n):
    run = wandb.init(config={"task": n})
    run.log({"loss": 100 * n})
    barrier.wait()
    return os.getpid()

def begin(shared):
    global barrier
    barrier = shared

if __name__ == "__main__":
    wandb.setup()
    shared = multiprocessing.Barrier(2)
    with multiprocessing.Pool(2, begin, (shared,)) as pool:
        assert len(set(pool.map(task, range(4), chunksize=1))) == 2
"""
)
PASSED = (
    HEAD
    + """
def child(run, n):
    work(run, n)

if __name__ == "__main__":
    run = wandb.init()
    work(run, 1)
    process = multiprocessing.get_context(sys.argv[1]).Process(target=child, args=(run, 2))
    process.start()
    process.join()
    run.finish()
"""
)
QUEUE = (
    HEAD
    + """
def child(queue, n):
    for step in range(3):
        queue.put({f"loss/{n}": step})
    queue.put(None)

if __name__ == "__main__":
    run = wandb.init()
    queue = multiprocessing.Queue()
    children = [multiprocessing.Process(target=child, args=(queue, n)) for n in range(2)]
    for process in children: process.start()
    n_open = 2
    while n_open:
        found = queue.get()
        if found is None: n_open -= 1
        else: run.log(found)
"""
)
# The shape of cleanrl's scripts: the class is imported first, and hyperparameters are a text.
REINFORCEMENT = """
import time
from {module} import SummaryWriter

if __name__ == "__main__":
    import wandb
    wandb.init(sync_tensorboard=True, config={{"seed": 1}}, name="x", save_code=True)
    writer = SummaryWriter("runs/x")
    writer.add_text("hyperparameters", "|param|value|\\n|-|-|\\n|seed|1|")
    for global_step in range(0, 3000, 1000):
        writer.add_scalar("charts/episodic_return", global_step / 3, global_step)
        writer.add_scalar("losses/value_loss", 0.1, global_step)
    wandb.log({{"done": 1}})
    writer.close()
"""


class Sample:
    """One script, and its rows in SQL."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node = node
        self.directory = directory
        path = os.pathsep.join(filter(None, [STARTUP, os.environ.get("PYTHONPATH")]))
        own = {"CHIPLOG_DIR": str(node.root), "WANDB_PROJECT": directory.name, "PYTHONPATH": path}
        self.environ = {**os.environ, **own, "OMP_NUM_THREADS": "1"}

    def start(self, script: str, *arguments: str, torchrun: int = 0) -> "subprocess.Popen[str]":
        """Start the script by `chiplog run --as wandb`."""
        path = self.directory / "script.py"
        path.write_text(script)
        launcher = [*TORCHRUN, "--nproc-per-node", str(torchrun), "--master-port", str(free_ports(1))]
        command = [*AS_WANDB, *(launcher if torchrun else [sys.executable]), str(path), *arguments]
        return subprocess.Popen(
            command, env=self.environ, cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, script: str, *arguments: str, torchrun: int = 0) -> str:
        """Run the script to its end."""
        return ended(self.start(script, *arguments, torchrun=torchrun))

    def rows(self, is_whole: Callable[[Rows], bool]) -> Rows:
        """Return run, group, label, job type, state, number and sum of the values, once they are as expected."""

        def found() -> Rows | None:
            rows = [tuple(row.values()) for row in self.node.try_sql(_QUERY.format(project=self.directory.name)) or []]
            self.seen = rows
            return rows if is_whole(rows) else None

        self.seen: Rows = []
        try:
            return list(wait_until(found, "the rows"))
        except AssertionError:
            raise AssertionError(f"the rows are {self.seen}") from None


def ended(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=2 * WAIT_S)
    assert process.returncode == 0, ended_with(process.returncode, output)
    return output


def values(rows: Rows) -> list[tuple[Any, ...]]:
    """Return state, number and sum of each label."""
    return sorted(row[4:] for row in rows)


@pytest.fixture
def sample(shared_node: Node, tmp_path: Path) -> Sample:
    return Sample(shared_node, tmp_path)


TWO = [("finished", 3, 3), ("finished", 3, 303)]  # of ranks 0 and 1


@pytest.mark.parametrize(
    ("arguments", "n_runs"),
    everyday(2, [("{}", 1), ("{'group': 'g'}", 2), ("{'job_type': os.environ['RANK']}", 1), ("{'mode': 'shared'}", 1)]),
)
def test_each_rank_of_torchrun_calls_init(sample: Sample, arguments: str, n_runs: int) -> None:
    sample.run(RANKS, arguments, torchrun=2)
    rows = sample.rows(lambda rows: values(rows) == TWO)
    assert len({row[0] for row in rows}) == n_runs
    assert {row[2] for row in rows} == {"rank0", "rank1"}
    assert {row[1] for row in rows} == {"g" if n_runs == 2 else None}


@pytest.mark.full
def test_only_rank_0_is_a_run_with_one_label(sample: Sample) -> None:
    sample.environ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = ""
    script = RANK_0.replace("args.local_rank == 0", "os.environ['LOCAL_RANK'] == '0'")
    sample.run(script, torchrun=2)
    [row] = sample.rows(lambda rows: values(rows) == [("finished", 3, 303)])
    assert row[2] == "rank0"


def test_nodes_in_shared_mode_write_one_run_under_their_labels(sample: Sample) -> None:
    started = [sample.start(SHARED, str(n), f"shared-{sample.directory.name}") for n in range(2)]
    for process in started:
        ended(process)
    rows = sample.rows(lambda rows: values(rows) == TWO)
    assert [row[2] for row in rows] == ["node-0", "node-1"] and len({row[0] for row in rows}) == 1


def test_workers_of_a_pool_are_runs_of_their_own_with_the_config_of_their_first_task(sample: Sample) -> None:
    sample.run(POOL)
    rows = sample.rows(lambda rows: [row[4:6] for row in rows] == [("finished", 2)] * 2)
    assert len({row[0] for row in rows}) == 2 and sum(row[6] for row in rows) == 600


@pytest.mark.parametrize("method", everyday(1, ["spawn", "fork"]))
def test_a_run_that_is_passed_to_a_child_is_the_same_run(sample: Sample, method: str) -> None:
    sample.run(PASSED, method)
    rows = sample.rows(lambda rows: values(rows) == [("finished", 3, 303), ("finished", 3, 603)])
    assert len({row[0] for row in rows}) == 1


@pytest.mark.full
def test_a_queue_to_the_main_process_is_one_label(sample: Sample) -> None:
    sample.run(QUEUE)
    [row] = sample.rows(lambda rows: values(rows) == [("finished", 6, 6)])
    assert row[4] == "finished"


@pytest.mark.parametrize("named", everyday(1, [["script.py"], ["-m", "script"]]))
def test_without_the_command_a_script_runs_by_its_module(sample: Sample, named: list[str]) -> None:
    (sample.directory / "script.py").write_text(HEAD + "work(wandb.init(), int(sys.argv[1]))\n")
    done = by_module(sample, *named, "1")
    assert done.returncode == 0, done.stderr
    sample.rows(lambda rows: values(rows) == [("finished", 3, 303)])


def test_a_script_that_does_not_exist_is_one_line(sample: Sample) -> None:
    done = by_module(sample, "none.py")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "chiplog: script 'none.py' does not exist" in done.stderr


def by_module(sample: Sample, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "chiplog.integrations.wandb", *arguments]
    place = {"env": sample.environ, "cwd": sample.directory}
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, **place)


@pytest.mark.parametrize("module", MODULES)
def test_what_a_summary_writer_is_given_is_logged_under_its_global_step(sample: Sample, module: str) -> None:
    sample.run(REINFORCEMENT.format(module=module))
    n = 3 * 3 + 1
    [row] = sample.rows(lambda rows: [row[4:6] for row in rows] == [("finished", n)])
    query = "SELECT key, step, value FROM metrics WHERE run_id = '{}' ORDER BY ALL"
    found = [tuple(row.values()) for row in sample.node.sql(query.format(row[0]))]
    steps = (0, 1000, 2000)
    assert found == [
        *(("charts/episodic_return", step, step / 3) for step in steps),
        ("done", 2000, 1.0),
        *(("global_step", step, float(step)) for step in steps),
        *(("losses/value_loss", step, 0.1) for step in steps),
    ]
    [text] = sample.node.sql(f"SELECT key, value FROM texts WHERE run_id = '{row[0]}'")
    assert text == {"key": "hyperparameters", "value": "|param|value|\n|-|-|\n|seed|1|"}
    assert len(list((sample.directory / "runs/x").glob("events.*"))) == 1
