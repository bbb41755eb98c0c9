"""A result of 20 million rows and 9 columns: read in Python, and written as files; time, and memory at both ends."""

import sys
from pathlib import Path

from tests.bench.figure import Figure, fresh_node, python, tree

N_ROWS = 20_000_000
QUERY = f"""
SELECT range AS a, range * 2 AS b, range % 7 AS c, hash(range) AS d, range / 3 AS e, 'key' || (range % 50) AS f,
       TIMESTAMP '2026-01-01' + to_seconds(range) AS g, range % 2 = 0 AS h, 'rank' || (range % 64) AS i
FROM range({N_ROWS})
"""
FORMS = ("parquet", "arrow")  # csv and jsonl take many minutes: name them

# (seconds until the first batch, of the others, peak of resident memory in MiB, rows); pyarrow takes 60 MiB.
READER = """
import sys, time, chiplog, pyarrow
with chiplog.connect(dir=sys.argv[1]) as client:
    begun = time.perf_counter()
    with client.stream(sys.argv[2]) as stream:
        n_rows = next(stream).num_rows
        first = time.perf_counter()
        n_rows += sum(batch.num_rows for batch in stream)
    done = time.perf_counter()
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print((first - begun, done - first, peak, n_rows))
"""

# (seconds, peak of resident memory in MiB) of one command.
WRITER = """
import resource, subprocess, sys, time
begun = time.perf_counter()
command = [sys.executable, "-m", "chiplog_cli", "sql", sys.argv[2], "--dir", sys.argv[1], "-o", sys.argv[3]]
subprocess.run(command, check=True)
print((time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024))
"""


def peak_mib(pid: int) -> float:
    """Return the largest resident memory of a living process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measure(forms: tuple[str, ...] = FORMS) -> list[Figure]:
    """Measure the reader, then a command for each format."""
    figures = []
    with fresh_node(agent=False) as node:
        root = node.place.root
        python(READER, node.environ, str(root), "SELECT 1 AS a")  # the index has started
        index = tree(node.processes["collector"].pid)[1]
        idle = peak_mib(index)
        first_s, rest_s, reader, n_rows = python(READER, node.environ, str(root), QUERY)
        assert n_rows == N_ROWS
        figures += [
            Figure("20 M rows × 9 columns: until the first batch", first_s, "s"),
            Figure("the other batches", rest_s, "s"),
            Figure("peak of the index", peak_mib(index), "MiB", yardstick=f"idle {idle:.0f} MiB"),
            Figure("peak of the reader", reader, "MiB"),
        ]
        for form in forms:
            path = root / f"out.{form}"
            took_s, peak = python(WRITER, node.environ, str(root), QUERY, str(path))
            size = f"{path.stat().st_size / 1e6:,.0f} MB, peak {peak:.0f} MiB"
            figures.append(Figure(f"chiplog sql -o out.{form}", took_s, "s", yardstick=size))
            path.unlink()
    return figures


if __name__ == "__main__":
    for figure in measure(tuple(sys.argv[1:]) or FORMS):
        print(f"{figure.name}: {figure.value:.2f} {figure.unit} {figure.yardstick}")
