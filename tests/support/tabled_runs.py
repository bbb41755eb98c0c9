"""Runs for tables of runs and of their curves: two of the project gpt, and one of vit without a config."""

import duckdb

from tests.support.run_builder import RunBuilder


def fill_tabled_runs(database: duckdb.DuckDBPyConnection) -> None:
    """Write gpt-old, with a second attempt, gpt-new, which runs, and vit."""
    build = RunBuilder(database, "TIMESTAMP '2026-01-01'")
    for number, (run_id, project, tags, state) in enumerate(
        (("gpt-old", "gpt", ["a"], "finished"), ("gpt-new", "gpt", ["a", "b"], None), ("vit", "vit", [], "failed"))
    ):
        build.run(run_id, project=project, tags=tags)
        times = {"started_s": 86400 * number, "ended_s": 86400 * 8 if state else None}
        for rank, attempt in ((0, 0), (1, 0), *([(1, 1)] if number == 0 else [])):
            label = "rank0" if attempt else f"rank{rank}"
            is_primary = label == "rank0"
            of_label = {"attempt": attempt, "rank": rank, "is_primary": is_primary, "state": state}
            build.label(run_id, label, **of_label, **times)
    old, new = (f"run_id = '{run}' AND label = 'rank0' AND attempt = 0" for run in ("gpt-old", "gpt-new"))
    build.config({"lr": 0.1, "sizes": [1, 2]}, where=old)
    build.config({"lr": 0.2, "name": "nan"}, where=new)
    build.summary({"best": {"at": 7}}, seq=9, where=old)
    build.summary({"note": "nan"}, seq=9, where=new)
    for where, key, step, value in (
        (old, "loss", 0, 4.0),
        (old, "loss", 1, 2.0),
        (old, "loss", 2, 9.0),
        ("run_id = 'gpt-old' AND attempt = 1", "loss", 2, 1.0),
        ("run_id = 'gpt-old' AND label = 'rank1'", "loss", 0, 8.0),
        (old, 'a "quoted" key', 1, 5.0),
        (old, "step", 1, 6.0),
        (new, "loss", 0, "'nan'"),
    ):
        build.metrics({key: value}, steps=[step], at=0, where=where)
