"""Views of analysis for one run of 64 labels, 5,000 steps and 5 phases, beside the queries that they replaced.

The yardstick is the plain query, which groups by names and computes with windows, on the same rows in turns. Figures
are CPU time, the least of several: other work on the machine only adds to it. 120 ms of it are 60 ms on two cores.
"""

import resource
import time

import duckdb

from chiplog_schemas.query.query_messages import disable_faulty_optimizers
from chiplog_schemas.sql import rollups_sql, tables_sql, views_sql
from tests.bench.figure import Figure
from tests.support.run_builder import RunBuilder

LABELS = 64
STEPS = 5_000
REPEATS = 5
CPU_AT_MOST_MS = 120.0

PLAIN_STEP_SKEW = """
SELECT run_id, key, step, count(DISTINCT label) AS n_labels, min(value) AS min, median(value) AS median,
       max(value) AS max, first(label ORDER BY isnan(value), value DESC, label) AS max_label
FROM metrics WHERE run_id = 'run1' AND key = 'loss' GROUP BY run_id, key, step
"""
PLAIN_STRAGGLERS = """
WITH spent AS (
    SELECT phase, step, label, sum(seconds) AS seconds FROM phases WHERE run_id = 'run1'
    GROUP BY phase, step, label, attempt
    QUALIFY row_number() OVER (PARTITION BY phase, step, label ORDER BY attempt DESC) = 1
), compared AS (
    SELECT *, median(seconds) OVER step_of AS typical, max(seconds) OVER step_of AS longest
    FROM spent WINDOW step_of AS (PARTITION BY phase, step)
)
SELECT phase, label, count(*) FILTER (seconds = longest AND seconds > typical) AS n_slowest,
       median(seconds) AS median_s, median(typical) AS typical_s, sum(seconds - typical) AS excess_s
FROM compared GROUP BY phase, label
"""


def fill(database: duckdb.DuckDBPyConnection) -> None:
    """Write two runs."""
    build = RunBuilder(database, "TIMESTAMP '2026-01-01'")
    for run_id in ("run0", "run1"):
        build.run(run_id, primary_label=None)
        build.ranks(run_id, LABELS, is_primary=None)
    seconds = dict.fromkeys(("step", "data", "forward", "backward", "optimizer"), "0.1 + random() / 50")
    build.phases(seconds, steps=STEPS, at="step / 5")
    build.metrics({"loss": "random()"}, steps=STEPS, at="step / 5")


def used(database: duckdb.DuckDBPyConnection, query: str) -> tuple[float, float]:
    """Return the time and the CPU time of a query in milliseconds, result included."""
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    database.sql(query).to_arrow_table()
    took, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * took, 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure() -> list[Figure]:
    """Measure each view, and the plain query where there was one."""
    queries = {
        "step_skew of one key": ("SELECT * FROM step_skew WHERE run_id = 'run1' AND key = 'loss'", PLAIN_STEP_SKEW),
        "stragglers of a run": ("SELECT * FROM stragglers WHERE run_id = 'run1'", PLAIN_STRAGGLERS),
        "straggler_windows of a run": ("SELECT * FROM straggler_windows WHERE run_id = 'run1'", ""),
        "data_wait of a run": ("SELECT * FROM data_wait WHERE run_id = 'run1'", ""),
        "goodput of a run": ("SELECT * FROM goodput WHERE run_id = 'run1'", ""),
    }
    figures = []
    with duckdb.connect() as database:
        disable_faulty_optimizers(database)
        database.execute(tables_sql())
        fill(database)
        for text in (rollups_sql(), views_sql()):
            database.execute(text)
        for name, (query, plain) in queries.items():
            ours, others = [], []
            for _ in range(REPEATS):
                ours.append(used(database, query))
                if plain:
                    others.append(used(database, plain))
            (wall, cpu), yardstick = map(min, zip(*ours, strict=True)), ""
            if others:
                yardstick = "; the plain query {1:.0f} ms of CPU, wall {0:.0f} ms".format(
                    *map(min, zip(*others, strict=True))
                )
            figures.append(
                Figure(f"{name}, CPU", cpu, "ms", at_most=CPU_AT_MOST_MS, yardstick=f"wall {wall:.0f} ms{yardstick}")
            )
    return figures
