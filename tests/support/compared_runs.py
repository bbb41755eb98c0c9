"""Two runs for the view that compares runs: one value of the config, one of the summary and one phase differ."""

import duckdb

from tests.support.run_builder import RunBuilder


def fill_compared_runs(database: duckdb.DuckDBPyConnection) -> None:
    """run-1 and run-2 of two labels each; `data` takes 0.1 s of each step in run-1, and 0.4 s in run-2."""
    build = RunBuilder(database, "TIMESTAMP '2026-01-02'")
    for number, (data_s, name) in enumerate(((0.1, None), (0.4, "<b>second</b>")), 1):
        run_id = f"run-{number}"
        build.run(run_id, name=name)
        build.ranks(run_id, 2, state="finished", exit_code=0, ended_s=60 * number, produced=10)
        build.phases({"data": data_s, "forward": 0.25}, steps=4, at=0, where=f"run_id = '{run_id}'")
        build.config({"lr": number / 10, "model": "gpt2"}, where=f"run_id = '{run_id}' AND is_primary")
        build.summary({"loss": 4 - number}, seq=1, where=f"run_id = '{run_id}' AND is_primary")
