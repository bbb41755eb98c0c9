"""A run with samples of its machines, written without a collector: two nodes with a GPU each, and twenty GPUs."""

import duckdb

from tests.support.run_builder import RunBuilder, Sql


def fill_sampled_run(database: duckdb.DuckDBPyConnection) -> None:
    """Write two runs with a sample each ten seconds for 1,000 s, and one with a sample each second.

    - `sampled`: rank0 and rank1 on a node each. GPU-1-1 is 50 % busy and GPU-1-0 90 %; GPU-1-1 is too hot from second
      500 to 600, and lost at second 800. Each host receives 1,000 bytes per second. Each GPU may use
      700 W.
      A step takes 2 s; rank0 logs the loss in its middle, a second before the next sample, and rank1 2 s later.
    - `many`: 20 ranks with a GPU each, of which that of rank7 is idle.
    - `hot`: the power cap throttles one GPU in each second sample, 600 times. It is lost at second 1 and at
      the end.
    """
    build = RunBuilder(database)
    for run_id, n_ranks in (("sampled", 2), ("many", 20), ("unsampled", 1)):
        build.run(run_id)
        node = Sql("'node-' || run || '-' || rank")
        build.ranks(run_id, n_ranks, node=node, agent_node=node, gpus=[Sql("'GPU-' || run || '-' || rank")], produced=1)
    build.metrics({"loss": "1 / (step + 1)"}, steps=500, at="2 * step + 1 + 2 * rank", where="run_id = 'sampled'")
    sampled = "run_id IN ('sampled', 'many')"
    first = "run_id = 'sampled' AND rank = 1"
    gpus = {
        "hw.gpu.utilization": f"CASE WHEN {first} THEN 0.5 WHEN run_id = 'many' AND rank = 7 THEN 0 ELSE 0.9 END",
        "hw.gpu.throttle.reasons": f"CASE WHEN {first} AND step BETWEEN 50 AND 59 THEN 64 ELSE 1 END",
        "hw.power.limit": 700,
    }
    build.samples("p.gpus[1]", gpus, steps=101, at="step * 10", where=sampled)
    build.samples("''", {"system.network.io.receive": "step * 10000"}, steps=101, at="step * 10", where=sampled)
    lost = {"level": "error", "where": "role = 'agent' AND node = 'node-1-1'", "seq": 1, "at": 800}
    body = {"device": "GPU-1-1", "code": 79}
    build.event("gpu.lost", "GPU-1-1 is lost: fell off the bus", body=body, **lost)
    build.run("hot")
    build.ranks("hot", node="hot", agent_node="hot", gpus=["GPU-4"], produced=1)
    gpu = {"hw.gpu.utilization": "step", "hw.gpu.throttle.reasons": "4 * (step % 2)"}
    build.samples("p.gpus[1]", gpu, steps=1200, where="run_id = 'hot'")
    lost = {"level": "error", "where": "role = 'agent' AND node = 'hot'", "steps": [1, 1200], "seq": "step"}
    build.event("gpu.lost", "GPU-4 is lost", body={"device": "GPU-4", "code": 79}, **lost)
