"""Runs with curves of all kinds, written without a collector."""

import duckdb

from tests.support.run_builder import RunBuilder

STEPS = 1_000
LONG_STEPS = 4_000  # in buckets of 16 steps


def fill_curved_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Write five runs.

    - `lines`: 4 ranks. rank3 has failed at step 300. `train/loss` has NaN, `bad/nan` nothing else, `epoch` is a
      hundredth of the step, in all ranks. A key and a value of the config are full of markup.
    - `band`: 20 ranks, of which rank7 is always the largest in `train/loss` and rank0 the smallest.
    - `other`: 1 rank with another config.
    - `silent`: 1 rank that has logged nothing.
    - `long`: 2 ranks of 4,000 steps. `train/loss` has 1 and 2 in turn, and half the rank at the end.
    """
    build = RunBuilder(database)
    build.position()
    failed = "run_id = 'lines' AND rank = 3"
    for run_id, n_ranks, columns in (
        ("lines", 4, {"name": "four", "tags": ["<b>"]}),
        ("band", 20, {}),
        ("other", 1, {}),
        ("silent", 1, {}),
        ("long", 2, {}),
    ):
        build.run(run_id, project="p", **columns)
        build.ranks(run_id, n_ranks, node="node", state="finished", exit_code=0, ended_s=1200, produced=5000)
    reason = "ValueError: <img src=x onerror=alert(1)>"
    build.update(failed, state="failed", exit_code=1, reason=reason, ended_s=600)
    build.received(0, 4999, at=245)
    loss = "CASE WHEN step % 10 = 5 AND run_id = 'lines' THEN 'nan' WHEN rank = 7 THEN 3.0::DOUBLE ELSE 2 END"
    usual = f"run_id IN ('lines', 'band', 'other') AND NOT ({failed} AND step > 300)"
    values = {"train/loss": f"{loss} + rank / 100 - step / 1000", "bad/nan": "'nan'", "epoch": "step // 100"}
    build.metrics(values, steps=STEPS, where=usual)
    build.metrics(
        {"eval/<img src=x onerror=alert(1)>": "sin(step / 50) + rank / 100"}, steps=range(0, STEPS, 50), where=usual
    )
    loss = f"CASE step WHEN {LONG_STEPS - 1} THEN rank / 2 ELSE 1 + step % 2 END"
    build.metrics(
        {"train/loss": loss, "epoch": "step // 100"}, steps=LONG_STEPS, at="step / 4", where="run_id = 'long'"
    )
    build.config({"lr": 0.1, "name": "<img src=x onerror=alert(1)>"}, where="run_id = 'lines' AND is_primary")
    build.config({"lr": 0.2}, where="run_id = 'other'")
