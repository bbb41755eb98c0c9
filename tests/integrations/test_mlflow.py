"""MLflow code unchanged on `chiplog://`: equal to MLflow's own store, and one run where one is meant."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.environment import oldest_mlflow_directory
from tests.integrations.matrix import PYTHON, ROW
from tests.integrations.training import END_S
from tests.support.failed_output import ended_with
from tests.support.loopback import on_loopback
from tests.support.node import Node
from tests.support.ports import free_ports
from tests.support.tools import needs
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("trainings")
SESSION, LAUNCHES = str(SCRIPTS / "mlflow_session.py"), str(SCRIPTS / "mlflow_launches.py")
EXPECTED = ("were started", "'nan' became nan", "each process of this launch has its own run")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
_METRICS = "SELECT r.name, m.label, m.key, m.step, m.value FROM metrics m JOIN runs r ON r.run_id = m.run_id"


def python(
    directory: Path, root: Path, uri: str, command: Sequence[str], exit_code: int = 0, lines: str = "", **variables: str
) -> str:
    """Run the Python of the libraries to its end; return what it prints. chiplog's own lines must be EXPECTED."""
    environ = {**os.environ, "CHIPLOG_DIR": str(root), "MLFLOW_TRACKING_URI": uri, "OMP_NUM_THREADS": "1", **variables}
    ended = subprocess.run(
        on_loopback([os.environ[PYTHON], *command]),
        env=environ,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=END_S,
    )
    assert ended.returncode == exit_code, ended_with(ended.returncode, ended.stderr)
    said = [line for line in ended.stderr.splitlines() if line.startswith("chiplog: ")]
    assert [line for line in said if not any(words in line for words in (*EXPECTED, *lines.split()))] == []
    return ended.stdout


@pytest.fixture
def row(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The line of the matrix."""
    asked = "from importlib.metadata import version; print(version('mlflow'))"
    found = subprocess.run([os.environ[PYTHON], "-c", asked], capture_output=True, text=True).stdout.strip()
    line: dict[str, Any] = {"library": "MLflow", "version": found, "ranks": 1}
    request.node.user_properties.append((ROW, line))
    return line


def test_a_session_reads_the_same_of_mlflows_store_and_of_chiplog_here_and_in_another_process(
    tmp_path: Path, chiplog_dir: Path, row: dict[str, Any]
) -> None:
    row["library"] = "MLflow, the same of SQLite"
    accounts = {}
    for store, uri in (("mlflow", f"sqlite:///{tmp_path}/mlflow.db"), ("chiplog", "chiplog://?strict=1")):
        for doing in ("write", "read"):
            printed = python(tmp_path, chiplog_dir, uri, [SESSION, doing])
            account = next(line for line in printed.splitlines() if line.startswith("ACCOUNT "))
            accounts[store, doing] = json.loads(account.removeprefix("ACCOUNT "), parse_constant=str)  # NaN is NaN
            shutil.rmtree(chiplog_dir / "mlflow" / "experiments", ignore_errors=True)  # as on another host
    expected = accounts["mlflow", "write"]
    assert accounts["chiplog", "write"] == expected
    assert accounts["chiplog", "read"]["said"] == accounts["mlflow", "read"]["said"] == expected["said"]
    histories = [account["history"] for account in expected["said"].values() if "history" in account]
    row["rows"] = sum(len(points) for history in histories for points in history.values())


def test_the_oldest_mlflow_reads_the_same_here_and_in_another_process(
    tmp_path: Path, chiplog_dir: Path, row: dict[str, Any]
) -> None:
    oldest = oldest_mlflow_directory(os.environ[PYTHON])
    row |= {"library": "MLflow, the oldest", "version": "3.6.0"}
    script = shutil.copy(SESSION, tmp_path)  # outside of a repository: newer ones tag its branch, too
    said = {}
    for name, doing, first in (("new", "write", ""), ("old", "write", oldest), ("old", "read", oldest)):
        path = os.pathsep.join(filter(None, (str(first), os.environ.get("PYTHONPATH", ""))))
        printed = python(tmp_path, chiplog_dir / name, "chiplog://?strict=1", [script, doing], PYTHONPATH=path)
        account = next(line for line in printed.splitlines() if line.startswith("ACCOUNT "))
        said[name, doing] = json.loads(account.removeprefix("ACCOUNT "), parse_constant=str)["said"]
    assert said["old", "write"] == said["old", "read"] == said["new", "write"]


class Launches:
    """Processes that log into a project of their own, and what SQL has of them."""

    def __init__(self, node: Node, directory: Path, line: dict[str, Any]) -> None:
        self._node, self._directory, self._row = node, directory, line
        self._project = directory.name

    def run(self, *command: str, exit_code: int = 0, **variables: str) -> str:
        """Run the script in a mode; return what it prints."""
        named = {"PROJECT": self._project, **variables}
        return python(self._directory, self._node.root, "chiplog://", command, exit_code, **named)

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        """Start the script in a mode."""
        named = {"CHIPLOG_DIR": str(self._node.root), "MLFLOW_TRACKING_URI": "chiplog://", "PROJECT": self._project}
        return subprocess.Popen([os.environ[PYTHON], *command], env={**os.environ, **named}, cwd=self._directory)

    def expect(self, library: str, rows: list[tuple[str, str, str, int, float]], ranks: int = 1) -> None:
        """Wait for these metrics, no more and no less: run, label ("": generated), key, step and value."""
        self._row |= {"library": f"MLflow, {library}", "ranks": ranks, "rows": len(rows)}
        found: list[Any] = []

        def is_right() -> bool:
            stored = self.sql(f"{_METRICS} WHERE r.project = '{self._project}'")
            found[:] = sorted((r["name"], _rank(r["label"]), r["key"], r["step"], r["value"]) for r in stored)
            return found == sorted(rows)

        try:
            wait_until(is_right, "the rows")
        except AssertionError:
            raise AssertionError(f"found {found}, and not {sorted(rows)}") from None

    def expect_row(self, library: str, rows: int) -> None:
        """Set the line of the matrix."""
        self._row |= {"library": f"MLflow, {library}", "ranks": 2, "rows": rows}

    def wait(self, query: str, expected: list[tuple[Any, ...]]) -> None:
        """Wait for the rows of a query about the project's runs."""
        found: list[Any] = []

        def is_right() -> bool:
            found[:] = [tuple(row.values()) for row in self.sql(query.format(f"project = '{self._project}'"))]
            return found == expected

        try:
            wait_until(is_right, "the rows")
        except AssertionError:
            raise AssertionError(f"found {found}, and not {expected}") from None

    def sql(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query; none while the collector does not answer."""
        return self._node.try_sql(query)


def _rank(label: str) -> str:
    return label if label.startswith("rank") else ""


@pytest.fixture
def launches(shared_node: Node, tmp_path: Path, row: dict[str, Any]) -> Launches:
    return Launches(shared_node, tmp_path, row)


def of_ranks(run: str = "ranks") -> list[tuple[str, str, str, int, float]]:
    """Return the metrics of two ranks in one run, and those of rank 0's nested and further runs."""
    loss = [(run, f"rank{rank}", "loss", step, rank + step / 4) for rank in range(2) for step in range(3)]
    return [*loss, ("nested", "rank0", "loss", 0, 9.0), ("further", "rank0", "loss", 0, 8.0)]


STATES = "SELECT name, state FROM runs WHERE {} ORDER BY name"


def test_ranks_join_one_run_and_further_ones_are_their_own(launches: Launches) -> None:
    launches.run(*TORCHRUN, LAUNCHES, "ranks")
    launches.expect("torchrun", of_ranks(), ranks=2)
    launches.wait(STATES, [("further", "finished"), ("nested", "finished"), ("ranks", "finished")])
    config = "SELECT key, value->>'$' FROM config WHERE run_id IN (SELECT run_id FROM runs WHERE {}) ORDER BY key"
    launches.wait(config, [("first", "same"), ("of rank 0", "0"), ("of rank 1", "1")])
    parent = (
        "SELECT r.name, p.name FROM run_tags t JOIN runs r ON r.run_id = t.run_id JOIN runs p ON p.run_id = t.value"
    )
    launches.wait(f"{parent} WHERE t.key = 'mlflow.parentRunId' AND r.{{}}", [("nested", "ranks")])


def test_with_a_run_for_each_process_ranks_have_their_own(launches: Launches) -> None:
    launches.run(*TORCHRUN, LAUNCHES, "ranks", CHIPLOG_RUN_PER_PROCESS="1")
    launches.expect("torchrun, a run for each", of_ranks(), ranks=2)
    launches.wait("SELECT count(*) FROM runs WHERE {} AND name = 'ranks'", [(2,)])


def test_a_rank_beside_the_primary_reads_its_values_under_its_label_from_the_start(launches: Launches) -> None:
    printed = launches.run(*TORCHRUN, LAUNCHES, "reads")
    launches.expect_row("what a rank reads", 2)
    of_both = [{"loss": 0.0, "rank1/loss": 1.0}, [[0.0], [1.0]]]
    assert json.loads(printed.partition("SEEN ")[2]) == [
        ["its ID", "RUNNING", False, {"rank1/loss": 1.0}, [[], [1.0]]],
        ["of rank 0", "RUNNING", False, *of_both],
        ["of rank 0", "RUNNING", False, *of_both],  # rank 1 has ended
        ["of rank 0", "FINISHED", True, *of_both],
    ]


OF_DRIVER = [("driver", "", "before", 0, 1.0), ("driver", "", "after", 0, 2.0)]


def test_ranks_of_a_driver_with_an_open_run_have_one_of_their_own(launches: Launches) -> None:
    launches.run(LAUNCHES, "driver")
    launches.expect("a driver's ranks", [*OF_DRIVER, *of_ranks()], ranks=2)
    launches.wait("SELECT n_labels FROM runs WHERE {} AND name IN ('driver', 'ranks') ORDER BY name", [(1,), (2,)])


def test_ranks_that_get_an_id_join_that_run_before_it_is_stored(launches: Launches) -> None:
    launches.run(LAUNCHES, "driver", "id")
    launches.expect("a driver's ranks, by ID", [*OF_DRIVER, *of_ranks("driver")], ranks=2)
    launches.wait(STATES, [("driver", "finished"), ("further", "finished"), ("nested", "finished")])


def test_ranks_that_a_notebook_sets_by_hand_are_no_launcher(launches: Launches) -> None:
    launches.run(LAUNCHES, "cells")
    launches.wait("SELECT count(*), count(DISTINCT name) FROM runs WHERE {} AND state = 'finished'", [(3, 3)])
    cells = "SELECT name, value FROM metrics m JOIN runs USING (run_id) WHERE {} AND key = 'loss' ORDER BY name"
    launches.wait(cells, [("cell 0", 0.0), ("cell 1", 1.0)])


def test_what_was_logged_before_a_kill_is_stored_and_the_run_has_failed(launches: Launches) -> None:
    launches.run(LAUNCHES, "killed", exit_code=-9)
    launches.expect("killed", [("killed", "", "loss", step, float(step)) for step in range(100)])
    launches.wait(STATES, [("killed", "crashed")])
    launches.wait("SELECT value FROM run_tags JOIN runs USING (run_id) WHERE {} AND key = 'last'", [("kept",)])


def test_what_a_rank_logged_before_a_kill_is_stored_beside_that_of_the_others(launches: Launches) -> None:
    launches.run(*TORCHRUN, LAUNCHES, "rank_killed", exit_code=1)
    launches.expect("a rank is killed", [row for row in of_ranks() if row[0] == "ranks"], ranks=2)
    ends = "SELECT label, exit_signal FROM labels JOIN runs USING (run_id) WHERE {} ORDER BY label"
    launches.wait(ends, [("rank0", 15), ("rank1", 9)])


def test_two_drivers_at_once_have_a_run_each_and_their_ranks_too(launches: Launches) -> None:
    drivers = [launches.start(LAUNCHES, "driver") for _ in range(2)]
    assert [driver.wait(END_S) for driver in drivers] == [0, 0]
    launches.expect("two drivers at once", 2 * [*OF_DRIVER, *of_ranks()], ranks=2)
    launches.wait(
        "SELECT name, n_labels FROM runs WHERE {} ORDER BY ALL",
        2 * [("driver", 1)] + 2 * [("further", 1)] + 2 * [("nested", 1)] + 2 * [("ranks", 2)],
    )


CELLS = ("driver", "one process", "local driver", "cluster driver")  # the others are of ranks, with random names
MNIST = ROOT.parent / "shared" / "data" / "mnist"


@needs("java")
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"MNIST's files are not in {MNIST}")
def test_a_notebook_of_databricks_records_all_its_cells_and_loads_its_models(
    launches: Launches, shared_node: Node, tmp_path: Path
) -> None:
    project = tmp_path.name
    named = {"MNIST": str(MNIST), "PYTORCH_DIR": str(tmp_path), "PROJECT": project, "OMP_NUM_THREADS": "1"}
    # MLflow's telemetry looks for the host of Databricks, which is none here.
    named |= {"DATABRICKS_RUNTIME_VERSION": "16.4", "MLFLOW_DISABLE_TELEMETRY": "true"}
    on_executors = {**named, "CHIPLOG_DIR": str(shared_node.root), "MLFLOW_TRACKING_URI": "chiplog://"}
    on_executors |= {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    local = {"PYSPARK_PYTHON": os.environ[PYTHON], "SPARK_LOCAL_IP": "127.0.0.1", "PORT": str(free_ports(1))}
    command = [str(SCRIPTS / "spark_notebook.py"), json.dumps(on_executors)]
    printed = python(tmp_path, shared_node.root, "chiplog://", command, **named, **local)
    runs = f"(SELECT run_id, if(name IN {CELLS}, name, 'ranks') AS name FROM runs WHERE {{}})"
    counts = f"SELECT r.name, m.key, count(*), max(step) FROM metrics m JOIN {runs} r USING (run_id) GROUP BY ALL"
    counts += " ORDER BY ALL"
    launches.wait(
        counts,
        [
            ("cluster driver", "test_loss", 1, 0),
            ("driver", "test_loss", 1, 0),
            ("driver", "train_loss", 8, 0),
            ("local driver", "test_loss", 1, 0),
            ("one process", "test_loss", 1, 0),
            ("one process", "train_loss", 8, 0),
            ("ranks", "test_loss", 2, 0),  # of rank 0 on the driver, and of rank 0 in a task
            ("ranks", "train_loss", 8, 0),
        ],
    )
    launches.wait("SELECT state, n_failed FROM runs WHERE {} GROUP BY ALL", [("finished", 0)])
    losses = {float(loss) for loss in re.findall(r"Average test loss: (\S+)", printed)}
    values = f"SELECT value FROM metrics JOIN runs USING (run_id) WHERE project = '{project}' AND key = 'test_loss'"
    assert {row["value"] for row in launches.sql(values)} == losses
    launches.expect_row("a notebook of Databricks, Spark", 30)
    loaded = python(tmp_path, shared_node.root, "chiplog://", [LAUNCHES, "load"], PROJECT=project)
    assert loaded.split() == ["10", "10", "10", "10"]  # models: of the driver, of one process, of ranks twice


def test_bad_input_is_a_line_each_and_a_collector_that_is_gone_an_error_of_reads_alone(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    row["library"] = "MLflow, bad input"
    uri = f"chiplog://127.0.0.1:{free_ports(1)}"
    printed = python(
        tmp_path,
        tmp_path / "chiplog",
        uri,
        [LAUNCHES, "bad"],
        PROJECT="bad",
        lines="mlflow.log_metric() mlflow.set_tag()",
    )
    assert printed.splitlines() == ["TEMPORARILY_UNAVAILABLE", "INVALID_PARAMETER_VALUE", "INVALID_PARAMETER_VALUE"]
