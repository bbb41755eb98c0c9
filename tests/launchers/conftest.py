"""A collector and an agent for all launcher tests of one pytest process, and trainings that use them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.matrix import ROW
from tests.launchers.training import Training
from tests.support.node import Node

TIMEOUT_S = 900  # a launcher may take its time, and then the check; the default is for one process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of launchers more time."""
    for item in items:
        if item.nodeid.startswith("tests/launchers/"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S), append=False)


@pytest.fixture(autouse=True)
def quick_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark's JVM compile little and verify no classes: it lives for seconds, and would optimise for hours."""
    unverified = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"  # 5.8 s of CPU time in place of 8.0 s
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {unverified}")


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A real collector and a real agent. Each training has its own run in it."""
    with Node(tmp_path_factory.mktemp("launchers") / "chiplog") as node:
        yield node.start()


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], None]:
    """Return what puts a line of the matrix into the test's report. A later one of the same launcher replaces it."""
    properties = request.node.user_properties

    def put(row: dict[str, Any]) -> None:
        properties[:] = [(name, old) for name, old in properties if (name, old["launcher"]) != (ROW, row["launcher"])]
        properties.append((ROW, row))

    return put


@pytest.fixture
def launched(
    shared_node: Node, tmp_path_factory: pytest.TempPathFactory, record: Callable[[dict[str, Any]], None]
) -> Iterator[Callable[[str], Training]]:
    """Return what makes a training, given the name of its line in the matrix. What it started ends with the test."""
    trainings: list[Training] = []

    def sql(query: str, params: Any) -> list[dict[str, Any]]:
        return shared_node.sql(query, params)

    def make(launcher: str) -> Training:
        directory: Path = tmp_path_factory.mktemp("training")
        trainings.append(Training(launcher, directory, shared_node.root, sql, record))
        return trainings[-1]

    yield make
    for training in trainings:
        training.close()
