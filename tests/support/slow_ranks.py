"""Runs with slow ranks, written without a collector: one of 8 ranks, one of 1,024, one without a difference."""

import duckdb

from tests.support.run_builder import BEGUN as BEGUN
from tests.support.run_builder import RunBuilder, Sql

WIDE_RANKS = 1_024
_ENDED: dict[str, object] = {"ended_s": 1000, "state": "finished", "exit_code": 0}


def fill_slow_ranks(database: duckdb.DuckDBPyConnection) -> None:
    """Write four runs. A step takes 1 s: 0.1 s `data`, 0.4 s `forward`, 0.5 s `backward`.

    - `slow`: 8 ranks and 1,000 steps. In steps 400 to 599 `data` of rank5 takes 0.3 s more, and the others wait in
      `backward`.
    - `wide`: 1,024 ranks and 24 steps. In step 17 `forward` of rank777 takes 3 s more.
    - `even`: 4 ranks and 100 steps without a difference.
    - `alone`: one rank without phases.
    """
    build = RunBuilder(database)
    for run_id, n_ranks in (("slow", 8), ("wide", WIDE_RANKS), ("even", 4), ("alone", 1)):
        build.run(run_id, project="gpt")
        build.ranks(run_id, n_ranks, node=Sql("'node' || rank // 8"), produced=10, **_ENDED)
    build.received(0, 9)
    for run_id, n_steps, slow_rank, extra in (
        ("slow", 1000, 5, "CASE WHEN step BETWEEN 400 AND 599 THEN 0.3 ELSE 0 END"),
        ("wide", 24, 777, "CASE WHEN step = 17 THEN 3 ELSE 0 END"),
        ("even", 100, 0, "0"),
    ):
        phases = {
            "step": f"1 + {extra}",
            "data": f"0.1 + CASE WHEN run_id = 'slow' AND rank = {slow_rank} THEN {extra} ELSE 0 END",
            "forward": f"0.4 + CASE WHEN run_id = 'wide' AND rank = {slow_rank} THEN {extra} ELSE 0 END",
            "backward": f"0.5 + CASE WHEN rank <> {slow_rank} THEN {extra} ELSE 0 END",
        }
        build.phases(phases, steps=n_steps, at="step + 1", where=f"run_id = '{run_id}'")


def fill_rank_outside(database: duckdb.DuckDBPyConnection) -> None:
    """Write the runs of `fill_slow_ranks`, and `apart`: 4 ranks and 100 steps of 1 s, of which 0.9 s is in phases.

    Before step 60 rank0 writes for 10 s in no phase, and the others wait in `backward` of this step. Before step 80 it
    does so for 4 s in the phase `checkpoint`. The phase `step` has the step alone.

    And `mixed`: 4 ranks and 1,000 steps. `data` of rank1 takes 15 ms more in all of them, which is 15 s and still no
    slow rank. In steps 400 to 499 `forward` of rank2 takes 0.12 s more, and the others wait in `backward`.
    """
    fill_slow_ranks(database)
    build = RunBuilder(database)
    build.run("apart", project="gpt")
    build.ranks("apart", 4, node="node0", produced=10, **{**_ENDED, "ended_s": 114})
    build.received(0, 9, where="run_id = 'apart'")
    waited = "CASE WHEN rank = 0 THEN 0 WHEN step = 60 THEN 10 WHEN step = 80 THEN 4 ELSE 0 END"
    at = "step + 1 + CASE WHEN step >= 80 THEN 14 WHEN step >= 60 THEN 10 ELSE 0 END"
    phases = {"step": f"1 + {waited}", "data": 0.1, "forward": 0.3, "backward": f"0.5 + {waited}"}
    build.phases(phases, steps=100, at=at, where="run_id = 'apart'")
    build.phases({"checkpoint": 4}, steps=[80], at=at, where="run_id = 'apart' AND rank = 0")

    build.run("mixed", project="gpt")
    build.ranks("mixed", 4, node="node0", produced=10, **_ENDED)
    extra = "CASE WHEN step BETWEEN 400 AND 499 THEN 0.12 ELSE 0 END"
    phases = {
        "step": f"1 + {extra}",
        "data": "CASE rank WHEN 1 THEN 0.115 ELSE 0.1 END",
        "forward": f"0.4 + CASE rank WHEN 2 THEN {extra} ELSE 0 END",
        "backward": f"0.48 + CASE rank WHEN 2 THEN 0 ELSE {extra} END",
    }
    at = "step + 1 + 0.12 * least(greatest(step - 399, 0), 100)"
    build.phases(phases, steps=1000, at=at, where="run_id = 'mixed'")
