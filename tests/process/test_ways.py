"""The three ways to track, with real ranks beside an agent that sees two GPUs, and the saved queries over them.

The rows of each label are compared with the truth: what each rank was given, and the GPUs of the library.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.node import Node
from tests.support.tools import needs
from tests.support.waiting import WAIT_S, wait_until

SOURCE = Path(__file__).parents[1] / "support" / "fake_nvml" / "nvml.c"
GPUS = [f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(2)]
pytestmark = [
    needs("gcc"),
    pytest.mark.xdist_group("ways"),  # one worker: the fixture is expensive
]

# A rank: it stays until the agent has sampled its node while it ran.
RANK = """
import os, sys, time
import chiplog
rank = int(os.environ["RANK"])
run = chiplog.init(project="ways", **eval(sys.argv[1]))
for step in range(10):
    run.log({"loss": rank + 1 / (step + 1)}, step=step)
print(f"rank {rank} was here")
if "swap" in sys.argv:  # it trains on another GPU than its local rank's
    with open(os.environ["LIST_OF_PROCESSES"], "a") as file:
        file.write(f"pid{1 - rank}={os.getpid()}:20000 ")
if "quick" not in sys.argv:
    open(os.path.join(os.environ["BOTH_RUN"], str(rank)), "w").close()
    while len(os.listdir(os.environ["BOTH_RUN"])) < 2: time.sleep(0.01)
    time.sleep(8 if "swap" in sys.argv else 2.5)
if rank == 1 and "dies" in sys.argv:
    raise ValueError("no more")
run.finish()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A collector, and an agent with statistics of two GPUs."""
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], check=True)
    (folder / "control").write_text("")
    told = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML_CONTROL": str(folder / "control")}
    os.environ.update(told)
    node = Node(tmp_path_factory.mktemp("ways") / "chiplog")
    try:
        node.start_collector()
        node.agent = node._start("chiplog_agent")
        for name in told:
            del os.environ[name]
        os.environ["CONTROL_OF_WAYS"] = str(folder / "control")
        wait_until(lambda: node.try_sql("FROM system_samples WHERE starts_with(device, 'GPU-') LIMIT 1"), "samples")
        yield node
    finally:
        for name in (*told, "CONTROL_OF_WAYS"):
            os.environ.pop(name, None)
        node.stop()


def train(node: Node, arguments: str, *words: str, launch: str = "", **environ: str) -> None:
    """Run two ranks, by torchrun or as a custom launcher would start them, and wait for them."""
    file = node.root / "rank.py"
    file.write_text(RANK)
    both_run = tempfile.mkdtemp(dir=node.root.parent)
    base = os.environ | {"CHIPLOG_DIR": str(node.root), "OMP_NUM_THREADS": "1", "BOTH_RUN": both_run} | environ
    command = [sys.executable, str(file), arguments, *words]
    if launch == "torchrun":
        runner = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run([*runner, *command[1:]], env=base, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
        return
    ranks = [
        subprocess.Popen(
            command,
            env=base
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
            | ({"CUDA_VISIBLE_DEVICES": GPUS[rank]} if "gpus" in words else {}),
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        rank.wait(WAIT_S)


def runs(node: Node, name: str) -> list[dict[str, Any]]:
    return node.sql("SELECT * FROM runs WHERE run_group = ? OR run_id = ? ORDER BY run_id", [name, name])


BOTH = """(
    SELECT s.label, s.device FROM system s JOIN runs r USING (run_id) JOIN (
        SELECT max(l.started_at) AS began, min(l.ended_at) AS ended
        FROM labels l JOIN runs r USING (run_id) WHERE WHOSE
    ) ON s.ts BETWEEN began AND ended
    WHERE WHOSE AND starts_with(s.device, 'GPU-')
)"""


def gpus_of(node: Node, whose: str) -> dict[str, set[str]]:
    """Return the GPUs of each label in `system`, while all of them ran."""
    both = BOTH.replace("WHOSE", whose)
    node.until(f"SELECT count(DISTINCT device) AS n FROM {both}", lambda rows: rows[0]["n"] == len(GPUS))
    found: dict[str, set[str]] = {}
    for row in node.sql(f"SELECT DISTINCT label, device FROM {both}"):
        found.setdefault(row["label"], set()).add(row["device"])
    return found


def ask(node: Node, *arguments: str) -> list[dict[str, Any]]:
    """Ask by the command, as users do."""
    command = [sys.executable, "-m", "chiplog_cli", "sql", "--dir", str(node.root), "--format", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def ended(node: Node, query: str, n: int) -> None:
    node.until(f"SELECT count(*) AS n FROM ({query}) WHERE state <> 'running'", lambda rows: rows[0]["n"] == n)


def test_rank_0_only_is_one_argument_and_sees_all_gpus_of_its_node(place: Node) -> None:
    train(place, "dict(run_id='only0', mode='rank0')")
    ended(place, "FROM labels WHERE run_id = 'only0'", 1)
    assert [row["label"] for row in place.sql("FROM labels WHERE run_id = 'only0'")] == ["rank0"]
    assert place.sql("SELECT label, count(*) AS n FROM metrics WHERE run_id = 'only0' GROUP BY label") == [
        {"label": "rank0", "n": 10}
    ]
    assert gpus_of(place, "r.run_id = 'only0'") == {"rank0": set(GPUS)}


def shares_of(node: Node, run_id: str) -> dict[str, set[int]]:
    query = "SELECT device, n_sharers FROM system WHERE run_id = ? AND starts_with(device, 'GPU-') GROUP BY ALL"
    found: dict[str, set[int]] = {}
    for row in node.sql(query, [run_id]):
        found.setdefault(row["device"], set()).add(row["n_sharers"])
    return found


def claimed(node: Node, run_id: str) -> list[list[str]]:
    return [row["gpus"] for row in node.sql("SELECT gpus FROM labels WHERE run_id = ? ORDER BY label", [run_id])]


@pytest.mark.full
def test_ranks_that_see_all_gpus_own_that_of_their_local_rank(place: Node) -> None:
    train(place, "dict(run_id='unset')", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    train(place, "dict(run_id='indices')", CUDA_VISIBLE_DEVICES="1,0")
    for run_id, order in (("unset", GPUS), ("indices", GPUS[::-1])):
        ended(place, f"FROM labels WHERE run_id = '{run_id}'", 2)
        assert claimed(place, run_id) == [[order[0]], [order[1]]]
        assert gpus_of(place, f"r.run_id = '{run_id}'") == {"rank0": {order[0]}, "rank1": {order[1]}}
        assert shares_of(place, run_id) == {GPUS[0]: {1}, GPUS[1]: {1}}


@pytest.mark.full
def test_ids_that_were_given_become_uuids_and_a_gpu_of_two_labels_says_so(place: Node) -> None:
    train(place, "dict(run_id='given', gpu_device_ids=['1'] if rank == 0 else ['0', 1])")
    ended(place, "FROM labels WHERE run_id = 'given'", 2)
    assert claimed(place, "given") == [[GPUS[1]], GPUS]
    assert gpus_of(place, "r.run_id = 'given'") == {"rank0": {GPUS[1]}, "rank1": set(GPUS)}
    shares = shares_of(place, "given")
    assert 2 in shares[GPUS[1]] and shares[GPUS[0]] == {1}


@pytest.mark.full
def test_the_drivers_process_list_corrects_what_a_rank_claims(place: Node) -> None:
    control = os.environ["CONTROL_OF_WAYS"]
    try:
        train(place, "dict(run_id='swap')", "swap", LIST_OF_PROCESSES=control)
    finally:
        Path(control).write_text("")
    ended(place, "FROM labels WHERE run_id = 'swap'", 2)
    assert claimed(place, "swap") == [[GPUS[1]], [GPUS[0]]]
    assert gpus_of(place, "r.run_id = 'swap'") == {"rank0": {GPUS[1]}, "rank1": {GPUS[0]}}


def test_one_run_per_process_is_one_with_its_own_gpu(place: Node) -> None:
    train(place, "dict(one_run_per_process=True, group='exp1', job_type='train')", "gpus", MASTER_PORT="7001")
    ended(place, "FROM runs WHERE run_group = 'exp1'", 2)
    found = runs(place, "exp1")
    assert [(row["name"], row["job_type"], row["primary_label"], row["n_labels"]) for row in found] == [
        ("exp1-rank0", "train", "rank0", 1),
        ("exp1-rank1", "train", "rank1", 1),
    ]
    shared = found[0]["run_id"].removesuffix("-rank0")
    assert [row["run_id"] for row in found] == [f"{shared}-rank0", f"{shared}-rank1"]
    assert gpus_of(place, "r.run_group = 'exp1'") == {"rank0": {GPUS[0]}, "rank1": {GPUS[1]}}


def test_a_group_is_one_run_and_shows_the_true_first_failure(place: Node) -> None:
    train(place, "dict(group='whole')", "quick", "dies", MASTER_PORT="7002")
    ended(place, "FROM labels JOIN runs USING (run_id) WHERE run_group = 'whole'", 2)
    [run] = runs(place, "whole")
    assert (run["primary_label"], run["n_labels"]) == ("rank0", 2)
    [failure] = place.sql("SELECT label FROM first_failure WHERE run_id = ?", [run["run_id"]])
    assert failure["label"] == "rank1"


@pytest.mark.full
def test_under_torchrun_it_works_the_same_and_a_run_id_brings_the_processes_together(place: Node) -> None:
    train(place, "dict(group='exp2')", "quick", launch="torchrun", CHIPLOG_RUN_PER_PROCESS="1")
    train(place, "dict(one_run_per_process=True, group='exp3', run_id='together')", "quick")
    ended(place, "FROM runs WHERE run_group IN ('exp2', 'exp3')", 3)
    ended(place, "FROM labels WHERE run_id = 'together'", 2)  # a run has ended when its primary has
    assert [row["name"] for row in runs(place, "exp2")] == ["exp2-rank0", "exp2-rank1"]
    assert [(row["run_id"], row["n_labels"]) for row in runs(place, "exp3")] == [("together", 2)]


@pytest.mark.full
def test_one_run_of_all_has_labels_one_primary_and_the_saved_queries(place: Node) -> None:
    train(place, "dict(run_id='shared', update_finish_state=True)", "dies", "gpus")
    ended(place, "FROM labels WHERE run_id = 'shared'", 2)
    [run] = runs(place, "shared")
    assert (run["primary_label"], run["n_labels"]) == ("rank0", 2)
    assert run["state"] in ("finished", "failed"), "of whichever ended last: both set the run's state"
    assert gpus_of(place, "r.run_id = 'shared'") == {"rank0": {GPUS[0]}, "rank1": {GPUS[1]}}
    place.until("SELECT count(*) AS n FROM console WHERE run_id = 'shared'", lambda rows: rows[0]["n"] >= 2)

    everybody = ask(place, "--saved", "all", "--run", "shared")
    assert [(row["label"], row["state"], row["last_step"]) for row in everybody] == [
        ("rank0", "finished", 9),
        ("rank1", "failed", 9),
    ]
    assert [row["last_values"] for row in everybody] == [{"loss": 0.1}, {"loss": 1.1}]
    assert [row["last_lines"].splitlines()[0] for row in everybody] == ["rank 0 was here", "rank 1 was here"]
    assert [row["label"] for row in ask(place, "--saved", "primary", "--run", "shar")] == ["rank0"]
    [failed] = ask(place, "--saved", "failed", "--run", "shared")
    assert (failed["label"], failed["reason"], failed["exit_code"]) == ("rank1", "ValueError: no more", 1)


def test_the_state_is_the_primarys_unless_another_label_sets_it_too(place: Node) -> None:
    train(place, "dict(run_id='default')", "dies", "quick")
    ended(place, "FROM labels WHERE run_id = 'default'", 2)
    assert [row["state"] for row in runs(place, "default")] == ["finished"]


def test_saved_queries_are_listed_and_wrong_calls_named(place: Node) -> None:
    cli = [sys.executable, "-m", "chiplog_cli", "sql", "--dir", str(place.root)]
    done = subprocess.run([*cli, "--list-saved"], capture_output=True, text=True, timeout=WAIT_S)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["primary", "failed", "all"]
    for wrong, word in ((["--saved", "nope"], "nope"), (["--saved", "all", "FROM runs"], "exclude each other")):
        done = subprocess.run([*cli, *wrong], capture_output=True, text=True, timeout=WAIT_S)
        assert (done.returncode, word in done.stderr) == (2, True), done.stderr


@pytest.mark.full
def test_ranks_on_mig_instances_have_these_in_labels_and_samples(place: Node) -> None:
    """The last test: the agent's second GPU enters MIG mode while it runs."""
    instances = [f"MIG-00000001-0000-0000-0000-{number:012}" for number in range(2)]
    Path(os.environ["CONTROL_OF_WAYS"]).write_text("mig1")
    sampled = "SELECT count(DISTINCT device) AS n FROM system_samples WHERE starts_with(device, 'MIG-')"
    place.until(sampled, lambda rows: rows[0]["n"] == 2)
    train(place, "dict(run_id='visible')", CUDA_VISIBLE_DEVICES=",".join(instances))
    train(place, f"dict(run_id='names', gpu_device_ids=[f'MIG-{GPUS[1]}/{{4 - rank}}/0'])")
    for run_id, expected in (("visible", instances), ("names", instances[::-1])):
        ended(place, f"FROM labels WHERE run_id = '{run_id}'", 2)
        assert claimed(place, run_id) == [[expected[0]], [expected[1]]]
        query = f"SELECT DISTINCT label, device FROM system WHERE run_id = '{run_id}' AND name = 'hw.gpu.sm.active'"
        place.until(f"SELECT count(*) AS n FROM ({query})", lambda rows: rows[0]["n"] == 2)
        rows = sorted(place.sql(query), key=lambda row: str(row["label"]))
        assert [row["device"] for row in rows] == expected
