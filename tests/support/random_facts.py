"""Databases with random facts, to compare views with plain queries."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from chiplog_schemas.query.query_messages import disable_faulty_optimizers
from tests.support.hand_written import compute_rollups, empty_database
from tests.support.run_builder import RunBuilder

SEEDS = range(8)
BEGUN = datetime(2026, 1, 1)
PHASES = ((2, "forward"), (3, "step"), (4, "data"), (5, "barrier"))


@contextmanager
def make_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database with all tables and views, and no rows."""
    with TemporaryDirectory() as directory, empty_database(Path(directory) / "index.duckdb") as connection:
        disable_faulty_optimizers(connection)
        yield connection


def fill_randomly(database: duckdb.DuckDBPyConnection, seed: int) -> None:
    """Fill two runs: labels with one to three attempts whose steps overlap, missing steps, parts, NaN, equal values."""
    chance = random.Random(seed)
    build = RunBuilder(database)
    build.names(["loss", *(phase for _, phase in PHASES)])
    build.run("a", primary_label=None)
    build.run("b", primary_label=None)
    values = [0.5, 1.0, 1.0, 2.0, 4.0, math.inf, -math.inf, math.nan]
    producers: list[Any] = [(0, "agent", None, "agent", 0, None)]
    metrics: list[Any] = []
    phases: list[Any] = []
    for run, n_labels in ((1, chance.choice((1, 3, 8))), (2, chance.choice((2, 70, 140)))):
        for number in range(n_labels):
            first = 0
            for attempt in range(chance.choice((1, 1, 2, 3))):
                producer, rank = len(producers), None if number == 1 and chance.random() < 0.3 else number
                producers.append((producer, "rank", run, f"rank{number}", attempt, rank))
                last = first + chance.randrange(1, 12)
                for seq, step in enumerate(range(first, last)):
                    ts = BEGUN + timedelta(seconds=100 * attempt + step, milliseconds=number)
                    for _ in range(chance.choice((0, 1, 1, 1, 2))):
                        metrics.append((producer, 1, step, seq, ts, chance.choice(values)))
                    for key, _ in PHASES:
                        for _ in range(chance.choice((0, 1, 1, 1, 2))):
                            phases.append((producer, key, step, seq, ts, chance.choice((0.25, 0.5, 0.5, 1.0, 3.0))))
                first = max(0, last - chance.randrange(4))
    chance.shuffle(metrics)
    chance.shuffle(phases)
    build.rows("producers (producer, role, run, label, attempt, rank)", producers)
    build.rows("metrics", [*metrics, (0, 1, 0, 0, BEGUN, 9.0)])  # the last one belongs to no run
    build.rows("phases", phases)
    compute_rollups(database)


def rows_of(database: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    """Return the sorted rows of a query; floats are rounded, because sums depend on their order."""

    def plain(value: Any) -> Any:
        return repr(float(f"{value:.9g}")) if isinstance(value, float) else value

    return sorted((tuple(map(plain, row)) for row in database.execute(query).fetchall()), key=repr)
