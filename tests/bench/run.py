"""Run the benchmarks and print one table: `python -m tests.bench.run [name …]`. Quote it with its load line."""

import importlib
import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

NAMES = (
    "rank",
    "overhead",
    "media",
    "init",
    "small_job",
    "collector",
    "ranks",
    "latency",
    "query",
    "stream",
    "store",
    "readers",
    "page",
    "live_page",
    "views",
    "size",
    "move",
    "importers",
    "bounds",
    "commands",
    "contention",
    "gpu",
    "statistics",
    "accuracy",
    "callbacks",
    "mlflow",
    "tensorboard",
)


def run(title: str, package: str, names: Sequence[str]) -> int:
    """Run the benchmarks of a package, and print their figures as one table."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title=title)
    for heading in ("figure", "value", "unit", "target", "", "yardstick, same run"):
        table.add_column(heading, justify="right" if heading in ("value", "target") else "left")
    load_before = os.getloadavg()[0]
    begun = time.monotonic()
    for name in names:
        console.print(f"[dim]{name} …[/dim]")
        for figure in importlib.import_module(f"{package}.bench_{name}").measure():
            mark = {True: "[green]reached[/green]", False: "[red]missed[/red]", None: ""}[figure.reached]
            table.add_row(figure.name, f"{figure.value:,.2f}", figure.unit, figure.target, mark, figure.yardstick)
    console.print(table)
    console.print(
        f"{os.cpu_count()} cores, load before {load_before:.2f}, after {os.getloadavg()[0]:.2f}, "
        f"{time.monotonic() - begun:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(run("chiplog benchmarks", "tests.bench", sys.argv[1:] or NAMES))
