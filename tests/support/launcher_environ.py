"""What ranks of torchrun and Slurm see: their variables, and the facts of their processes."""

from dataclasses import replace

from chiplog.identity.identity import ProcessFacts

UUID = "0e4a41e5-0c7a-4c7e-9a57-64e7b1e5a001"
FACTS = ProcessFacts("node-a", 100, "77:12345:boot", 1_795_224_000.0, "k3f9ab")
OTHER_NODE = replace(FACTS, host="node-b", pid=200, parent="88:54321:other", random="zzzzzz")
LATER = replace(FACTS, parent="99:99999:boot")


def elastic(
    rank: int, local: int, world: int, local_world: int, run_id: str = UUID, restart: int = 0
) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(rank // local_world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_MAX_RESTARTS": "3",
    }


def slurm(rank: int, local: int, step: str = "0") -> dict[str, str]:
    known = {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local),
        "SLURM_NTASKS": "4",
        "SLURM_NODEID": str(rank // 2),
        "SLURM_JOB_ID": "4242",
        "SLURM_STEP_ID": step,
        "SLURM_JOB_START_TIME": "1795220000",
    }
    return {name: value for name, value in known.items() if value}
