"""Runs for `chiplog plot` and `chiplog compare`, written without a collector."""

import duckdb

from tests.support.run_builder import RunBuilder, Sql

STEPS = 1000
SPIKE_STEP, SPIKE = 321, 50.0


def fill_plotted_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Write `gpt-a` and `gpt-b` with 4 ranks, `gpt-64` with 64, `again` with 2 attempts, and `still`.

    `loss` is (1 + rank) / (1 + step) in `gpt-a`, and twice that in `gpt-b`. `grad_norm` is 1 with one spike, and each
    hundredth value is infinite. `nan` is never finite. `tokens` is 1,000 times the step, `by_tokens` is
    defined over it.
    A step takes a second, and 2 in `gpt-b`, which logs half as many. `still` has a loss each second, all at step 0.
    """
    build = RunBuilder(database)
    placed = {"node": "node", "agent_node": "node", "pid": Sql("run * 1000 + rank + 1")}
    for run, (run_id, n_ranks) in enumerate((("gpt-a", 4), ("gpt-b", 4), ("gpt-64", 64)), 1):
        build.run(run_id, project="gpt")
        gpus = [Sql("'GPU-' || run || '-' || rank")]
        build.ranks(run_id, n_ranks, **placed, gpus=gpus, state="finished", ended_s=run * 1000, produced=1)
    for run_id, project, n_attempts in (("again", "gpt", 2), ("still", "still", 1)):
        build.run(run_id, project=project)
        for attempt in range(n_attempts):
            build.label(run_id, "rank0", attempt=attempt, is_primary=True, rank=0, state="finished", ended_s=0)
    of_all = f"(run_id IN ('gpt-a', 'gpt-64') OR run_id = 'gpt-b' AND step < {STEPS // 2})"
    twice = "CASE run_id WHEN 'gpt-b' THEN 2 ELSE 1 END"
    spike = f"step = {SPIKE_STEP} AND rank = 2 THEN {SPIKE}::DOUBLE"
    for seq, (key, value) in {
        1: ("loss", f"(1.0 + rank) / (1 + step) * {twice}"),
        2: ("grad_norm", f"CASE WHEN {spike} WHEN step % 100 = 99 THEN 'inf'::DOUBLE ELSE 1 END"),
        4: ("tokens", "step * 1000"),
        5: ("by_tokens", "step"),
        6: ("acc", "step / 1000"),
    }.items():
        build.metrics({key: value}, steps=STEPS, seq=f"step * 10 + {seq}", at=f"step * {twice}", where=of_all)
    build.metrics({"nan": "'nan'"}, steps=100, at=0, where="run_id = 'gpt-a'")
    build.metrics({"only_b": 7}, steps=[5], at=0, where="run_id = 'gpt-b'")
    build.metrics({"loss": "exp(-step / 50)"}, steps=200, step=0, where="run_id = 'still'")
    # The first attempt reached step 9, the second began again at 5.
    again = "run_id = 'again' AND (attempt = 0 OR step >= 5)"
    build.metrics({"loss": "attempt * 100 + step"}, steps=10, at="step + attempt * 10", where=again)
    build.phases({"forward": 0.5, "data": "0.1 * run"}, steps=10, at=0, where="run_id IN ('gpt-a', 'gpt-b')")
    for run_id, values in (("gpt-a", {"lr": 0.0003}), ("gpt-b", {"lr": 0.001, "warmup": 100})):
        first = f"run_id = '{run_id}' AND is_primary"
        build.define("acc", summary="max", seq=2, where=first)
        build.config({"model": "gpt2", **values}, seq=1, where=first)
    build.define("by_*", step_metric="tokens", seq=1, where="run_id = 'gpt-a' AND is_primary")
    gpu = {"hw.gpu.utilization": "0.5 + (run - 1) * 0.4", "hw.gpu.memory.usage": "20.0 * 1073741824"}
    build.samples("p.gpus[1]", gpu, steps=range(1, 10), where="run_id IN ('gpt-a', 'gpt-b') AND rank = 0")
