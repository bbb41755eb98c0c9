"""Who a process is, launcher by launcher: every row of what workers can see (torch 2.13, observed)."""

from dataclasses import replace

import pytest

from chiplog.identity.identity import (
    Identity,
    ProcessFacts,
    SpawnPosition,
    encode_parent_run,
    encode_setup,
    resolve_identity,
    with_group,
)
from chiplog.identity.modes import is_rank0, with_own_run
from chiplog_schemas.process.inherited_run import LAUNCHER, PARENT_RUN, SETUP
from tests.support.launcher_environ import FACTS, LATER, OTHER_NODE, UUID, elastic, slurm


def openmpi(rank: int, local: int, world: int, local_world: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
        "OMPI_COMM_WORLD_SIZE": str(world),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_world),
    }


LIGHTNING = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}

PTY = {"SLURM_PTY_PORT": "40001", "SLURM_NTASKS": "1"}
FOUR = {"SLURM_NTASKS": "4"}
SPACE = {"PMIX_NAMESPACE": "prterun-node-a-77@1"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}

# launcher, variables, (label, rank, local rank, world size, primary, restart, run ID is provisional)
ROWS = [
    ("torchrun", elastic(0, 0, 2, 2), ("rank0", 0, 0, 2, True, 0, False)),
    ("torchrun, rank 1", elastic(1, 1, 2, 2), ("rank1", 1, 1, 2, False, 0, False)),
    ("torchrun --max-restarts, again", elastic(1, 1, 2, 2, restart=2), ("rank1", 1, 1, 2, False, 2, False)),
    ("torchrun --nnodes 2", elastic(3, 1, 4, 2), ("rank3", 3, 1, 4, False, 0, False)),
    ("torchrun --rdzv-id 100, one node", elastic(1, 1, 2, 2, "100"), ("rank1", 1, 1, 2, False, 0, False)),
    ("torchrun --rdzv-id 100, two nodes", elastic(3, 1, 4, 2, "100"), ("rank3", 3, 1, 4, False, 0, True)),
    ("static rendezvous, two nodes", elastic(0, 0, 4, 2, "none"), ("rank0", 0, 0, 4, True, 0, True)),
    ("torch.distributed.launch", elastic(0, 0, 2, 2, "none"), ("rank0", 0, 0, 2, True, 0, False)),
    ("torch.multiprocessing.spawn", {}, ("node-a-k3f9ab", None, None, None, True, 0, True)),
    ("torch.distributed.rpc", {}, ("node-a-k3f9ab", None, None, None, True, 0, True)),
    ("DataParallel", {}, ("node-a-k3f9ab", None, None, None, True, 0, True)),
    ("TorchDistributor local", elastic(1, 1, 2, 2), ("rank1", 1, 1, 2, False, 0, False)),
    ("TorchDistributor on Spark", elastic(1, 0, 2, 1), ("rank1", 1, 0, 2, False, 0, False)),
    ("accelerate, one process", {"LOCAL_RANK": "0"}, ("node-a-k3f9ab", None, None, None, True, 0, True)),
    ("Lightning ddp, rank 0", LIGHTNING | {"LOCAL_RANK": "0"}, ("node-a-k3f9ab", None, None, None, True, 0, True)),
    ("Lightning ddp, rank 1", LIGHTNING | {"RANK": "1"}, ("rank1", 1, 1, 2, False, 0, True)),
    ("Lightning ddp_spawn", {"LOCAL_RANK": "1"}, ("node-a-k3f9ab", None, None, None, True, 0, True)),
    ("srun", slurm(3, 1), ("rank3", 3, 1, 4, False, 0, False)),
    ("srun, requeued", slurm(0, 0) | {"SLURM_RESTART_COUNT": "1"}, ("rank0", 0, 0, 4, True, 1, False)),
    ("sbatch without srun", slurm(0, 0, step=""), ("node-a-k3f9ab", None, None, None, True, 0, True)),
    ("salloc's shell", slurm(0, 0, step="4294967290"), ("node-a-k3f9ab", None, None, None, True, 0, True)),
    ("srun --pty bash", slurm(0, 0) | PTY, ("node-a-k3f9ab", None, None, None, True, 0, True)),
    ("srun in the shell of srun --pty bash", slurm(3, 1) | PTY | FOUR, ("rank3", 3, 1, 4, False, 0, False)),
    ("srun with PMI", slurm(3, 1) | {"PMI_RANK": "3", "PMI_SIZE": "4"}, ("rank3", 3, 1, 4, False, 0, False)),
    ("mpirun in a batch script", slurm(0, 0, step="") | openmpi(1, 1, 2, 2), ("rank1", 1, 1, 2, False, 0, False)),
    ("mpirun in srun --pty bash", slurm(0, 0) | PTY | openmpi(1, 1, 2, 2), ("rank1", 1, 1, 2, False, 0, False)),
    ("mpirun in a job, two nodes", slurm(0, 0) | openmpi(2, 0, 4, 2) | SPACE, ("rank2", 2, 0, 4, False, 0, False)),
    ("mpiexec.hydra in a batch script", slurm(0, 0, step="") | HYDRA, ("rank1", 1, 1, 2, False, 0, False)),
    ("mpirun, one node", openmpi(1, 1, 2, 2), ("rank1", 1, 1, 2, False, 0, False)),
    ("mpirun, two nodes", openmpi(2, 0, 4, 2), ("rank2", 2, 0, 4, False, 0, True)),
    ("PMI", {"PMI_RANK": "0", "PMI_SIZE": "2"}, ("rank0", 0, None, 2, True, 0, True)),
    ("torchrun inside of srun", slurm(1, 0) | elastic(3, 1, 4, 2), ("rank3", 3, 1, 4, False, 0, False)),
    ("garbage", {"RANK": "-1", "SLURM_PROCID": "x" * 20}, ("node-a-k3f9ab", None, None, None, True, 0, True)),
]


@pytest.mark.parametrize(("environ", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_each_launcher_gives_what_its_workers_can_see(environ, expected) -> None:
    found = resolve_identity(environ, FACTS)
    assert (
        found.label,
        found.rank,
        found.local_rank,
        found.world_size,
        found.primary,
        found.restart,
        found.needs_agreement,
    ) == expected
    assert found.run_id
    assert found.launch


SHARED = [
    ("torchrun", elastic(0, 0, 2, 2), FACTS, elastic(1, 1, 2, 2), replace(FACTS, pid=101, random="aaaaaa")),
    ("torchrun --nnodes 2", elastic(0, 0, 4, 2), FACTS, elastic(2, 0, 4, 2), OTHER_NODE),
    ("--rdzv-id, one node", elastic(0, 0, 2, 2, "100"), FACTS, elastic(1, 1, 2, 2, "100"), replace(FACTS, pid=101)),
    ("TorchDistributor on Spark", elastic(0, 0, 2, 1), FACTS, elastic(1, 0, 2, 1), replace(OTHER_NODE, host="node-a")),
    ("srun on two nodes", slurm(0, 0), FACTS, slurm(2, 0), OTHER_NODE),
    ("mpirun, one node", openmpi(0, 0, 2, 2), FACTS, openmpi(1, 1, 2, 2), replace(FACTS, pid=101)),
    (
        "srun with PMI on two nodes",
        slurm(0, 0) | {"PMI_RANK": "0", "PMI_SIZE": "4"},
        FACTS,
        slurm(2, 0) | {"PMI_RANK": "2", "PMI_SIZE": "4"},
        OTHER_NODE,
    ),
    (
        "mpirun on two nodes of a Slurm job",  # the other node's daemon is a step of one task
        slurm(0, 0, "") | openmpi(0, 0, 4, 2) | SPACE,
        FACTS,
        slurm(0, 0) | {"SLURM_NTASKS": "1"} | openmpi(2, 0, 4, 2) | SPACE,
        OTHER_NODE,
    ),
    ("mpirun on two nodes", openmpi(0, 0, 4, 2) | SPACE, FACTS, openmpi(2, 0, 4, 2) | SPACE, OTHER_NODE),
    ("after a restart", elastic(0, 0, 2, 2), FACTS, elastic(0, 0, 2, 2, restart=1), replace(FACTS, pid=102)),
]


@pytest.mark.parametrize("row", SHARED, ids=[row[0] for row in SHARED])
def test_ranks_of_one_launch_agree_on_run_and_launch_without_talking(row) -> None:
    _, one, one_facts, two, two_facts = row
    first, second = resolve_identity(one, one_facts), resolve_identity(two, two_facts)
    assert first.run_id == second.run_id
    assert first.launch == second.launch


NEXT = replace(FACTS, pid=101, random="bbbbbb")  # of the same shell
MPI_JOB = slurm(0, 0, "") | openmpi(0, 0, 4, 2)
APART = [
    ("--rdzv-id 100 again tomorrow", elastic(0, 0, 2, 2, "100"), elastic(0, 0, 2, 2, "100"), LATER),
    ("torchrun twice", elastic(0, 0, 2, 2), elastic(0, 0, 2, 2, UUID.replace("0", "1")), LATER),
    ("two steps of one job", slurm(0, 0, "0"), slurm(0, 0, "1"), FACTS),
    ("two trainings in one batch script", slurm(0, 0, ""), slurm(0, 0, ""), NEXT),
    ("two trainings in one srun --pty bash", slurm(0, 0) | PTY, slurm(0, 0) | PTY, NEXT),
    ("two mpirun of one job", MPI_JOB | SPACE, MPI_JOB | {"PMIX_NAMESPACE": "prterun-node-a-78@1"}, FACTS),
    ("mpirun of two jobs", MPI_JOB | SPACE, MPI_JOB | SPACE | {"SLURM_JOB_ID": "4243"}, FACTS),
    ("a job ID used again", slurm(0, 0), slurm(0, 0) | {"SLURM_JOB_START_TIME": "1"}, FACTS),
    ("scripts one after the other", {}, {}, replace(FACTS, pid=101, random="bbbbbb")),
]


@pytest.mark.parametrize("row", APART, ids=[row[0] for row in APART])
def test_another_launch_is_another_run(row) -> None:
    _, one, two, two_facts = row
    first, second = resolve_identity(one, FACTS), resolve_identity(two, two_facts)
    assert first.run_id != second.run_id
    assert first.launch != second.launch


@pytest.mark.parametrize("environ", [{}, elastic(0, 0, 2, 2), slurm(0, 0)], ids=["none", "torchrun", "slurm"])
def test_variables_win_over_what_the_launcher_says(environ) -> None:
    found = resolve_identity(environ | {"CHIPLOG_RUN_ID": "mine", "CHIPLOG_LABEL": "eval"}, FACTS)
    assert (found.run_id, found.label) == ("mine", "eval")
    assert found.needs_agreement == (found.rank is None), "rank and world may still come from torch.distributed"


def test_a_process_started_by_a_run_joins_it_and_does_not_claim_to_be_primary() -> None:
    joined = resolve_identity({"CHIPLOG_PARENT_RUN": "99:parents"}, FACTS)
    assert (joined.run_id, joined.primary) == ("parents", False)
    ranks = resolve_identity(elastic(0, 0, 2, 2) | {"CHIPLOG_PARENT_RUN": "99:parents"}, FACTS)
    assert (ranks.run_id, ranks.primary) == ("parents", True)


def test_a_process_does_not_take_its_own_former_run_for_a_parents() -> None:
    own = {"CHIPLOG_PARENT_RUN": f"{FACTS.pid}:former"}
    assert resolve_identity(own, FACTS) == resolve_identity({}, FACTS)
    assert resolve_identity(elastic(0, 0, 2, 2) | own, FACTS).run_id != "former"


def test_the_record_of_a_process_that_is_gone_is_nobodys_parent() -> None:
    stale = {PARENT_RUN: "99:former/x//settled/w/7", SETUP: "99:prepared////w/7"}
    facts = replace(FACTS, stale_variables=frozenset(stale))
    assert resolve_identity(stale, facts) == resolve_identity({}, facts)
    assert resolve_identity(elastic(0, 0, 2, 2) | stale, facts) == resolve_identity(elastic(0, 0, 2, 2), facts)
    assert encode_setup(stale, facts) == encode_setup({}, facts)
    own = {SETUP: f"{facts.pid}:prepared////w/7"}
    assert resolve_identity(own, facts) == resolve_identity({}, facts), "a PID that was given out again"


def test_a_process_started_by_a_rank_is_not_that_rank() -> None:
    """Spawned under torchrun, it sees the variables of its parent's launcher."""
    rank = elastic(0, 0, 2, 2)
    for parent in ("99:r/rank0/0", "99:r/rank0.99/", "99:r/worker/0"):
        child = resolve_identity(rank | {"CHIPLOG_PARENT_RUN": parent}, FACTS)
        assert (child.run_id, child.label, child.primary, child.rank) == ("r", "rank0.100", False, None)
        assert not child.needs_agreement, "a group of its own would tell it a rank again"
    named = resolve_identity(rank | {"CHIPLOG_PARENT_RUN": "99:r/rank0/0"}, FACTS, "loader")
    assert (named.label, named.primary, named.rank) == ("loader", False, None)
    assert resolve_identity(rank | {"CHIPLOG_PARENT_RUN": "99:r/rank1/1"}, FACTS).label == "rank0"
    again = resolve_identity({"CHIPLOG_PARENT_RUN": "99:r/eval/"}, FACTS, "eval")
    assert (again.run_id, again.label, again.primary) == ("r", "eval.100", False)


def test_trainings_started_from_a_shell_with_exported_ranks_are_runs_of_their_own() -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    first, second = resolve_identity(alone, FACTS), resolve_identity(alone, replace(FACTS, pid=101, random="bbbbbb"))
    assert first.run_id != second.run_id
    assert first.launch != second.launch
    assert (first.label, first.primary, first.needs_agreement) == ("rank0", True, False)
    pair = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    assert (
        resolve_identity(pair, FACTS).launch == resolve_identity(pair | {"RANK": "1"}, replace(FACTS, pid=101)).launch
    )
    assert resolve_identity(pair, FACTS).run_id != resolve_identity(pair | {"MASTER_PORT": "29501"}, FACTS).run_id


def spawned(index: int, call: str = "77:1:boot:1") -> ProcessFacts:
    return replace(FACTS, pid=100 + index, random=f"aaaaa{index + 2}", spawned=SpawnPosition(call, index))


def test_processes_of_one_mp_spawn_are_one_run_before_anybody_talks_and_another_call_is_another() -> None:
    zero, one = resolve_identity({}, spawned(0)), resolve_identity({}, spawned(1))
    assert (zero.run_id, zero.launch) == (one.run_id, one.launch)
    assert zero.label != one.label, "who is which rank is the group's to tell"
    assert (zero.primary, one.primary, zero.needs_agreement, zero.run_id_is_final) == (True, False, True, False)
    assert resolve_identity({}, spawned(0, "77:1:boot:3")).run_id != zero.run_id
    given = resolve_identity({}, spawned(1), given_run="mine")
    assert (given.run_id, given.primary, given.run_id_is_final) == ("mine", False, True)


def test_children_of_a_process_that_called_setup_agree_and_one_of_them_is_primary_for_want_of_a_better() -> None:
    setup = {SETUP: encode_setup({}, FACTS)}
    one, two = (resolve_identity(setup, replace(FACTS, pid=pid, random=f"bbbbb{pid}")) for pid in (201, 202))
    assert one.run_id == two.run_id == resolve_identity(setup, FACTS).run_id, "its own init() is of that run too"
    assert one.label != two.label
    assert (one.primary, one.is_fallback_primary, two.primary, two.is_fallback_primary) == (True, True, True, True)
    assert not resolve_identity(setup, FACTS).is_fallback_primary
    ranks = resolve_identity(elastic(0, 0, 2, 2) | setup, replace(FACTS, pid=203))
    assert (ranks.run_id, ranks.label, ranks.primary, ranks.is_fallback_primary) == (one.run_id, "rank0", True, False)
    assert encode_setup(setup, replace(FACTS, pid=201)) == setup[SETUP], "a child that imports its parent's script"
    assert encode_setup(setup, replace(FACTS, random="cccccc")) != setup[SETUP], "called again: another run"


def test_children_of_a_rank_that_called_setup_join_its_run_and_are_not_that_rank() -> None:
    rank = elastic(0, 0, 2, 2)
    setup = rank | {SETUP: encode_setup(rank, FACTS)}
    child = resolve_identity(setup, replace(FACTS, pid=201))
    assert child.run_id == resolve_identity(rank, FACTS).run_id == resolve_identity(setup, FACTS).run_id
    assert (child.label, child.rank, child.primary, child.joined_existing_run) == ("rank0.201", None, False, True)


@pytest.mark.parametrize("environ", [elastic(0, 0, 2, 2), slurm(0, 0), {SETUP: "99:prepared///"}], ids=str)
def test_each_init_after_a_finish_is_another_run_and_the_second_of_each_rank_is_the_same(environ) -> None:
    first = resolve_identity(environ, FACTS)
    second = resolve_identity(environ, replace(FACTS, used_run_ids=frozenset({first.run_id})))
    assert second.run_id == f"{first.run_id}-2"
    third = resolve_identity(environ, replace(FACTS, used_run_ids=frozenset({first.run_id, second.run_id})))
    assert third.run_id == f"{first.run_id}-3"
    assert (
        resolve_identity(environ | {"CHIPLOG_RUN_ID": "r"}, replace(FACTS, used_run_ids=frozenset({"r"}))).run_id == "r"
    )
    joined = {"CHIPLOG_PARENT_RUN": "99:r/x//"}
    assert resolve_identity(joined, replace(FACTS, used_run_ids=frozenset({"r"}))).run_id == "r", (
        "as long as the parent's is open"
    )


def test_a_worker_with_a_run_id_of_its_own_is_no_part_of_its_parents_run() -> None:
    parents = {"CHIPLOG_PARENT_RUN": "99:sweep/node-a-zzzzzz//"}
    trial = resolve_identity(parents, FACTS, given_run="trial-3")
    assert (trial.run_id, trial.primary, trial.joined_existing_run, trial.run_id_is_final) == (
        "trial-3",
        True,
        False,
        True,
    )
    of_a_rank = elastic(1, 1, 2, 2) | {"CHIPLOG_PARENT_RUN": "99:r/rank1/1/settled"}
    trial = resolve_identity(of_a_rank, FACTS, given_run="trial-3")
    assert (trial.label, trial.rank, trial.primary) == ("node-a-k3f9ab", None, True)
    assert resolve_identity(parents, FACTS, given_run="sweep").joined_existing_run


def test_a_child_that_joined_becomes_a_rank_but_leaves_run_and_primary_to_its_parent() -> None:
    settled = resolve_identity({"CHIPLOG_PARENT_RUN": "99:r/x//settled"}, FACTS)
    later = with_group(settled, 0, 2, "another", label_given=False)
    assert (later.run_id, later.label, later.rank, later.primary, later.previous_run_id) == (
        "r",
        "rank0",
        0,
        False,
        None,
    )
    open_to_talk = resolve_identity({"CHIPLOG_PARENT_RUN": "99:r/x//"}, FACTS)
    assert with_group(open_to_talk, 0, 2, "another", label_given=False).previous_run_id == "r"


def test_below_a_launcher_a_script_is_the_primary_and_names_it_and_ranks_are_ranks() -> None:
    below = {
        PARENT_RUN: encode_parent_run(
            99, "r", Identity("r", "launcher-a", "x", needs_agreement=True), "w/7/5", LAUNCHER
        )
    }
    script = resolve_identity(below, FACTS)
    assert (script.run_id, script.label, script.parent) == ("r", "node-a-k3f9ab", "launcher-a")
    assert (script.primary, script.is_fallback_primary, script.joined_existing_run) == (True, True, False)
    assert with_group(script, 1, 2, "r").primary is False and with_group(script, 0, 2, "r").label == "rank0"
    again = resolve_identity(below, replace(FACTS, used_run_ids=frozenset({"r"})))
    assert again.run_id == "r-2", "a sweep in one process"
    ranks = [resolve_identity(elastic(rank, rank, 2, 2) | below, FACTS) for rank in (0, 1)]
    assert [(one.run_id, one.label, one.primary, one.parent) for one in ranks] == [
        ("r", "rank0", True, "launcher-a"),
        ("r", "rank1", False, "launcher-a"),
    ]
    two_nodes = resolve_identity(elastic(0, 0, 4, 2, "100") | below, FACTS)
    assert two_nodes.needs_agreement and not two_nodes.run_id_is_final, "each node may have its launcher"
    assert with_group(two_nodes, 0, 4, "agreed").previous_run_id == "r"


def test_workers_of_rpc_are_called_by_their_names() -> None:
    found = with_group(resolve_identity({}, FACTS), 2, 4, "agreed", "trainer2")
    assert (found.label, found.rank, found.world_size, found.primary) == ("trainer2", 2, 4, False)
    assert with_group(found, 0, 2, "agreed", "master").label == "master", "the later word of the two"
    told = resolve_identity(elastic(3, 1, 4, 2, "100"), FACTS)
    assert with_group(told, 0, 9, "agreed", "ps").label == "rank3"


def test_what_init_was_given_of_the_primary_stays() -> None:
    alone = replace(resolve_identity({}, FACTS), primary=False)
    assert not with_group(alone, 0, 2, "agreed", primary_given=True).primary
    assert with_group(alone, 0, 2, "agreed").primary


def test_ranks_without_a_launchers_id_offer_the_group_a_run_that_nobody_had_before() -> None:
    pair = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    first, second = resolve_identity(pair, FACTS), resolve_identity(pair, replace(FACTS, pid=101, random="bbbbbb"))
    assert first.needs_agreement and first.run_id == second.run_id, "of one launch, as far as the variables tell"
    assert first.proposed_run_id.startswith(first.run_id) and first.proposed_run_id != second.proposed_run_id
    given = resolve_identity(pair | {"CHIPLOG_RUN_ID": "mine"}, FACTS)
    assert (given.run_id, given.proposed_run_id, given.run_id_is_final) == ("mine", "", True)


def test_only_ranks_that_may_be_started_again_are_remembered() -> None:
    assert resolve_identity(elastic(0, 0, 2, 1, "100"), FACTS).launch_cache_key
    assert resolve_identity(elastic(0, 0, 2, 2, "100"), FACTS).launch_cache_key, "a second node may come to this one"
    for environ in (elastic(0, 0, 2, 1), slurm(0, 0, ""), {"RANK": "0", "WORLD_SIZE": "2"}, {}):
        assert not resolve_identity(environ, FACTS).launch_cache_key
    assert not resolve_identity(
        elastic(0, 0, 2, 1, "100") | {"CHIPLOG_PARENT_RUN": "99:parents"}, FACTS
    ).launch_cache_key


def test_what_the_group_says_later_completes_an_identity() -> None:
    alone = Identity("mine", "node-a-k3f9ab", "launch", needs_agreement=True)
    second = with_group(alone, 1, 4, "agreed", label_given=False)
    assert (second.run_id, second.label, second.rank, second.world_size) == ("agreed", "rank1", 1, 4)
    assert (second.primary, second.needs_agreement) == (False, False)
    assert with_group(alone, 0, 4, "agreed", label_given=False).primary
    assert with_group(alone, 1, 4, "agreed", label_given=True).label == "node-a-k3f9ab"


def test_the_group_does_not_overrule_what_the_launcher_said() -> None:
    found = resolve_identity(elastic(3, 1, 4, 2, "100"), FACTS)
    later = with_group(found, 0, 4, "agreed", label_given=False)
    assert (later.run_id, later.label, later.rank, later.primary) == ("agreed", "rank3", 3, False)


def test_one_run_per_process_gives_each_rank_a_run_of_its_own_and_the_same_one_after_a_restart() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "0d9c6b7e-0000-4000-8000-000000000001"}
    shared = resolve_identity(environ, FACTS)
    own, name = with_own_run(shared, "exp1", None, FACTS)
    assert (own.run_id, own.label, own.primary, own.run_id_is_final) == (f"{shared.run_id}-rank1", "rank1", True, True)
    assert name == "exp1-rank1"
    again, named = with_own_run(
        resolve_identity(environ | {"TORCHELASTIC_RESTART_COUNT": "1"}, FACTS), "exp1", "mine", FACTS
    )
    assert (again.run_id, again.restart, named) == (own.run_id, 1, "mine")
    second, _ = with_own_run(shared, "exp1", None, replace(FACTS, used_run_ids=frozenset({own.run_id})))
    assert second.run_id == f"{own.run_id}-2"


def test_a_process_on_its_own_keeps_its_run_in_a_group_and_a_child_stays_in_its_parents() -> None:
    alone = resolve_identity({}, FACTS)
    assert with_own_run(alone, "exp1", None, FACTS)[0].run_id == alone.run_id
    child = resolve_identity({PARENT_RUN: "1:run-of-parent/rank0/0/s"}, FACTS)
    assert with_own_run(child, "exp1", None, FACTS) == (child, None)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, True),
        ({"RANK": "0", "WORLD_SIZE": "2"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, False),
        ({"SLURM_PROCID": "3", "SLURM_STEP_ID": "0"}, False),
        ({PARENT_RUN: "1:run-of-parent/rank0/0/s"}, False),
        ({PARENT_RUN: "1:run-of-parent/rank0/0/s", "RANK": "0", "WORLD_SIZE": "2"}, False),
    ],
)
def test_rank_0_is_rank_0_and_none_of_its_children(environ, expected) -> None:
    assert is_rank0(resolve_identity(environ, FACTS)) is expected
