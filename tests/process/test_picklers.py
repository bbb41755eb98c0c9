"""Public objects are pickled and copied, by all that is common; functions of a script that use them run elsewhere.

Loops and tasks of `__main__` go to workers by value, and what they use with them: the module, runs, configs, clients.
"""

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import dill
import pyarrow as pa
import pyspark.cloudpickle
import pytest

import chiplog
from chiplog.safety.foreign_names import is_stand_in
from chiplog.timing.steps import TimedLoader
from chiplog_client.async_client import AsyncClient
from chiplog_client.client import Client
from chiplog_client.dbapi.connection import Connection, Cursor
from chiplog_client.result_stream import ResultStream
from chiplog_client.results.result import Result
from tests.support.node import Node
from tests.support.tools import needs
from tests.support.waiting import WAIT_S

PICKLERS = [pickle, cloudpickle, dill, pyspark.cloudpickle]
by_each_pickler = pytest.mark.parametrize("pickler", PICKLERS, ids=lambda pickler: pickler.__name__)


@pytest.fixture
def run(chiplog_dir: Path) -> Iterator[chiplog.Run]:
    with chiplog.init(mode="offline", capture_console=False) as run:
        yield run


@by_each_pickler
def test_public_objects_pickle_and_copy(run: chiplog.Run, pickler: Any) -> None:
    run.config.update({"lr": 0.1, "where": Path("x")})
    run.log({"loss": 0.5})

    def there_and_back(thing: object) -> object:
        return pickle.loads(pickler.dumps(thing))

    assert there_and_back(chiplog) is copy.deepcopy(chiplog) is copy.copy(chiplog) is chiplog
    assert there_and_back(run) is run
    assert there_and_back(run.config) == {"lr": 0.1, "where": "x"}
    assert there_and_back(run.summary) == copy.copy(run.summary) == {"loss": 0.5}
    assert copy.deepcopy(run.config) == {"lr": 0.1, "where": Path("x")}
    assert type(copy.deepcopy(run.config)) is dict
    histogram = chiplog.Histogram.of([1, 2, 3])
    assert there_and_back(histogram) == copy.deepcopy(histogram) == histogram
    assert list(there_and_back(run.data([1, 2]))) == list(copy.deepcopy(run.data([1, 2]))) == [1, 2]
    assert isinstance(copy.copy(run.data([1, 2])), TimedLoader)
    with there_and_back(run.phase("forward")):  # which is of no run
        pass
    assert "forward" not in run._timing.totals
    assert is_stand_in(there_and_back(chiplog.Molecule())) and is_stand_in(there_and_back(chiplog.Molecule))
    client = there_and_back(Client("ipc:///nowhere/query.sock", None))
    assert isinstance(client, Client) and client._address == "ipc:///nowhere/query.sock"
    assert isinstance(there_and_back(AsyncClient(client)), AsyncClient)


@by_each_pickler
def test_a_result_and_the_errors_of_queries_pickle_and_copy(pickler: Any) -> None:
    table, sink = pa.table({"a": [1, 2], "name": ["x", None]}), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    result = Result(sink.getvalue())
    error = chiplog.QueryError("refused", "not today")
    for again in (lambda thing: pickle.loads(pickler.dumps(thing)), copy.copy, copy.deepcopy):
        assert again(result).rows() == [{"a": 1, "name": "x"}, {"a": 2, "name": None}]
        assert (again(error).kind, str(again(error))) == ("refused", "not today")
        assert str(again(chiplog.NoDataError("nothing"))) == "nothing"


@by_each_pickler
def test_a_stream_and_a_cursor_say_that_they_do_not_pickle(pickler: Any) -> None:
    for kind in (ResultStream, Cursor, Connection):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickler.dumps(object.__new__(kind))


TASKS = """
import sys
import chiplog

@chiplog.phase("work")
def in_the_run(n):
    run = chiplog.init(capture_console=False)
    run.log({"own": float(n)}, step=n)
    run.finish()
    return run.id

if __name__ == "__main__":
    run = chiplog.init(run_id="r", config={"lr": 0.1}, capture_console=False)
    run.log({"main": 1.0})

    def by_the_run(n):
        run.log({"sent": float(n)}, step=n)
        return [run.id, run.config["lr"], run.summary["sent"]]
%s
    assert of_tasks == ["r"] * 4, of_tasks
    assert of_runs == [["r", 0.1, float(n)] for n in range(4)], of_runs
    run.finish()
"""
JOBLIB = """
    from joblib import Parallel, delayed
    of_tasks = Parallel(n_jobs=2)(delayed(in_the_run)(n) for n in range(4))
    of_runs = Parallel(n_jobs=2)(delayed(by_the_run)(n) for n in range(4))
"""
SPARK = """
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    numbers = spark.sparkContext.parallelize(range(4), 2)
    of_tasks, of_runs = numbers.map(in_the_run).collect(), numbers.map(by_the_run).collect()
    spark.stop()
"""
DILL = """
    import dill, subprocess
    load = "import dill, sys; call, n = dill.load(sys.stdin.buffer); sys.stdout.buffer.write(dill.dumps(call(n)))"
    def there(call, n):
        sent = dill.dumps((call, n), recurse=True)
        done = subprocess.run([sys.executable, "-c", load], input=sent, stdout=subprocess.PIPE, check=True)
        return dill.loads(done.stdout)
    of_tasks, of_runs = ([there(call, n) for n in range(4)] for call in (in_the_run, by_the_run))
"""


@pytest.mark.parametrize(
    "sent_by",
    [
        pytest.param(JOBLIB, id="joblib"),
        pytest.param(DILL, id="dill"),
        pytest.param(SPARK, id="Spark", marks=[pytest.mark.full, needs("java")]),
    ],
)
def test_tasks_of_a_script_log_in_its_run(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent_by: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    script = tmp_path / "train.py"
    script.write_text(TASKS % sent_by)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=2 * WAIT_S)
    assert done.returncode == 0, done.stderr
    numbers = [float(n) for n in range(4)]
    query = "SELECT key, list(value ORDER BY value) AS found FROM metrics WHERE run_id = 'r' GROUP BY key"
    expected = {"main": [1.0], "own": numbers, "sent": numbers}

    def stored(rows: list[dict[str, Any]]) -> bool:
        return {row["key"]: row["found"] for row in rows} == expected

    node.until(query, stored)
