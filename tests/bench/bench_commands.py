"""How long commands take from the shell: the help, and the smallest query, through a collector and from the file."""

import os
import statistics
import subprocess
import sys
import time

from tests.bench.figure import Figure, fresh_node, python

REPEATS = 15
TRAINING = """
import chiplog
run = chiplog.init(project="bench", run_id="commands")
for step in range(10):
    run.log({"loss": 1 / (step + 1)}, step=step)
run.finish()
print(1)
"""
CLI = ("-P", "-m", "chiplog_cli")
# What a command cannot do without: the interpreter with the library of options; with the database that has the file.
WITH_CLICK = ("-P", "-c", "import click")
WITH_DUCKDB = ("-P", "-c", "import click, duckdb; duckdb.connect().execute('SELECT 1').fetchall()")


def milliseconds(environ: dict[str, str], *arguments: str) -> tuple[float, float]:
    """(wall time, CPU time) of one interpreter with these arguments."""
    before, begun = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environ, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - begun, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return 1e3 * wall, 1e3 * cpu


def paired(
    environ: dict[str, str], command: tuple[str, ...], yardstick: tuple[str, ...]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """((wall, CPU) of a command, the same of the yardstick): medians of runs in turns."""
    pairs = [(milliseconds(environ, *CLI, *command), milliseconds(environ, *yardstick)) for _ in range(REPEATS)]
    ours, theirs = zip(*pairs, strict=True)

    def medians(runs: tuple[tuple[float, float], ...]) -> tuple[float, float]:
        return statistics.median(wall for wall, _ in runs), statistics.median(cpu for _, cpu in runs)

    return medians(ours), medians(theirs)


def measure() -> list[Figure]:
    query = ("sql", "SELECT 1")
    with fresh_node() as node:
        python(TRAINING, node.environ)
        of_help = paired(node.environ, ("--help",), WITH_CLICK)
        of_collector = paired(node.environ, query, WITH_CLICK)
        node.stop()
        of_file = paired(node.environ, query, WITH_DUCKDB)

    def figure(name: str, found: tuple[tuple[float, float], tuple[float, float]], at_most: float, what: str) -> Figure:
        (wall, cpu), (their_wall, their_cpu) = found
        yardstick = f"{what} {their_wall:.0f} ms; CPU {cpu:.0f} against {their_cpu:.0f} ms"
        return Figure(name, wall, "ms", at_most=at_most, yardstick=yardstick)

    return [
        figure("chiplog --help from the shell", of_help, 200, "python and click"),
        figure('chiplog sql "SELECT 1", a collector runs', of_collector, 350, "python and click"),
        figure("the same, no daemon runs", of_file, 350, "python, click and an empty DuckDB"),
    ]
