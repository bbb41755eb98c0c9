"""MLflow on `chiplog://`: what `log_metric` costs the process, and a search of 1,000 runs of 20 metrics.

MLflow is in the Python that `CHIPLOG_INTEGRATIONS_PYTHON` names, as in `make integrations`. Without it there is no
figure.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from tests.bench.figure import Figure, Node
from tests.integrations.matrix import PYTHON

CALLS = """
import json, sys, time
import mlflow
from mlflow.entities import Metric
ROUNDS, CALLS = 10, 1000 if sys.argv[1] == "chiplog" else 50
mlflow.set_experiment("bench")
store = mlflow.tracking._tracking_service.utils._get_store()
with mlflow.start_run() as run:
    run_id = run.info.run_id
    metrics = [Metric("train/loss", 0.1, 1_700_000_000_000 + step, step) for step in range(ROUNDS * CALLS)]
    def cpu_us(call, first):
        began = time.thread_time()
        for step in range(first, first + CALLS):
            call(step)
        return (time.thread_time() - began) / CALLS * 1e6
    calls = lambda step: store.log_metric(run_id, metrics[step]), lambda step: mlflow.log_metric("a", 0.1, step=step)
    print(json.dumps([min(cpu_us(call, index * CALLS) for index in range(ROUNDS)) for call in calls]))
"""
SEARCH = """
import json, sys, time
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
RUNS, METRICS = 1000, 20
client = MlflowClient()
made = client.create_experiment("searched")
for number in range(RUNS):
    run_id = client.create_run(made).info.run_id
    metrics = [Metric(f"m{key}", number + step / 10, 1000 + step, step) for key in range(METRICS) for step in range(10)]
    client.log_batch(run_id, metrics, [Param("lr", str(number % 7))])
    client.set_terminated(run_id)
if sys.argv[1] == "chiplog":
    from chiplog.integrations.mlflow.runs import book_of  # as another process: nothing in memory
    book_of(client._tracking_client.store._address)._records.clear()
def search_s(filter_string):
    began = time.perf_counter()
    found = client.search_runs([made], filter_string, order_by=["metrics.m1 DESC"], max_results=RUNS)
    spent = time.perf_counter() - began
    assert len(found) == (RUNS if not filter_string else 499), len(found)
    return spent
search_s("")
print(json.dumps([min(search_s(text) for _ in range(5)) for text in ("metrics.m3 > 500.95", "")]))
"""


def measure() -> list[Figure]:
    if not os.environ.get(PYTHON):
        return []
    calls, searches = _both(CALLS), _both(SEARCH)
    (own_us, whole_us), (other_us, other_whole_us) = calls
    (filtered_s, all_s), (other_filtered_s, other_all_s) = searches
    return [
        Figure("log_metric: CPU of chiplog's store", own_us, "µs", at_most=20, yardstick=f"SQLite's {other_us:,.0f}"),
        Figure("mlflow.log_metric: CPU of all", whole_us, "µs", yardstick=f"on SQLite {other_whole_us:,.0f}"),
        Figure(
            "search_runs: 499 of 1,000 runs", filtered_s, "s", at_most=0.5, yardstick=f"SQLite {other_filtered_s:.2f}"
        ),
        Figure("search_runs: 1,000 runs", all_s, "s", at_most=0.5, yardstick=f"SQLite {other_all_s:.2f}"),
    ]


def _both(program: str) -> list[list[float]]:
    """Return what a program prints on chiplog, and on MLflow's SQLite store."""
    found = []
    with tempfile.TemporaryDirectory() as directory, Node(Path(directory) / "chiplog") as node:
        for name, uri in (("chiplog", "chiplog://"), ("mlflow", f"sqlite:///{directory}/mlflow.db")):
            environ = {**node.environ, "MLFLOW_TRACKING_URI": uri}
            command = [os.environ[PYTHON], "-c", program, name]
            printed = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, cwd=directory).stdout
            found.append(json.loads(printed.splitlines()[-1]))
    return found
