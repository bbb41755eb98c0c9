"""Runs for `chiplog top`, written without a collector: ranks that run now, wait and hang, of one node and of 125."""

import duckdb

from tests.support.run_builder import NOW, RunBuilder, Sql

_LATER_S = 600  # a time in the future has the age 0: it is new for the whole test
STEPS = 30  # that each rank logged


def fill_live_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Write three runs.

    - `large`: 1,000 ranks on 125 nodes with a GPU each. rank417 is one step behind and in `forward`, the others wait.
    - `healthy`: 8 ranks on one node, of which rank3 takes twice as long for a step as the others.
    - `even`: 4 ranks without a new step, all at the same step; rank2 is in `data`, the others in `all_reduce`.
    """
    build = RunBuilder(database, NOW)
    placed = {"node": Sql("'node' || rank // 8"), "agent_node": Sql("'node' || rank // 8"), "pid": Sql("rank + 1")}
    for run_id, n_ranks, started_s in (("large", 1000, -200), ("healthy", 8, -60), ("even", 4, -200)):
        build.run(run_id, project="gpt")
        gpus = [Sql("'GPU-' || run || '-' || rank")]
        build.ranks(run_id, n_ranks, **placed, gpus=gpus, started_s=started_s, produced=10)
    newest_s = f"CASE run_id WHEN 'healthy' THEN {_LATER_S} ELSE -60 END"
    build.received(0, 9, at=newest_s)
    # A second a step, and two for rank3 of `healthy`, which is the last one of its run at each step.
    pace_s = "CASE WHEN run_id = 'healthy' AND rank = 3 THEN 2 ELSE 1 END"
    logged = {"steps": STEPS, "at": f"{newest_s} - {pace_s} * (29 - step)"}
    behind = "run_id = 'large' AND rank = 417"
    build.metrics({"loss": "1 / (step + 1)"}, **logged, where=f"NOT ({behind} AND step = 29)")
    build.phases({"forward": 0.4, "all_reduce": 0.4}, **logged, where="step < 29")
    phase = f"CASE WHEN {behind} THEN 'forward' WHEN run_id = 'even' AND rank = 2 THEN 'data' ELSE 'all_reduce' END"
    body = Sql(f"json_object('phase', {phase}, 'step', 30, 'since_us', epoch_us({NOW} - to_seconds(55)))")
    build.event("phase_open", "in phase", body=body, seq=9, at=-50, where="run_id <> 'healthy'")
    for kind, level, ago_s in (
        ("gpu.lost", "error", 3_600),
        ("gpu.xid", "error", 40),
        ("device_stale", "warning", 30),
        ("gpu.back", "info", 20),
        ("gpu.lost", "error", 18),
        ("gpu.replaced", "info", 15),
    ):
        of_gpu = {
            "level": level,
            "body": Sql("json_object('device', p.gpus[1])"),
            "where": "run_id = 'healthy' AND rank = 2",
        }
        build.event(kind, f"{kind} of a GPU", seq=ago_s + 100, at=-ago_s, **of_gpu)
    gpus = {
        "hw.gpu.utilization": 0.97,
        "hw.gpu.memory.usage": "60.0 * 1073741824",
        "hw.gpu.memory.limit": "80.0 * 1073741824",
    }
    build.samples("p.gpus[1]", gpus, steps=3, at=f"{_LATER_S} - step")
    used = {"process.memory.usage": "3.5 * 1073741824"}
    build.samples("'pid:' || p.pid", used, steps=3, at=f"{_LATER_S} - step", where="run_id = 'large'")
