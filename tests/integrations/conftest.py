"""Trainings with real libraries: collected only by `make integrations`, which names the Python that has these."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integrations.matrix import PYTHON
from tests.integrations.training import END_S, Training
from tests.support.node import Node

_STARTUP = str(Path(__file__).parents[1] / "support" / "startup")
collect_ignore_glob = [] if os.environ.get(PYTHON) else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/integrations/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(3 * END_S))  # two scripts at most, and the wait for their rows


@pytest.fixture(scope="session", autouse=True)
def environ() -> Iterator[None]:
    """Let each training wait for torch's threads at its end, and print all stacks when it is aborted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (_STARTUP, os.environ.get("PYTHONPATH")))))
        patch.setenv("PYTHONFAULTHANDLER", "1")
        yield


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A real collector and a real agent. Each training has its own project in it."""
    with Node(tmp_path_factory.mktemp("integrations") / "chiplog") as node:
        yield node.start()


@pytest.fixture
def training(shared_node: Node, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Training]:
    """Return what runs a script of trainings/; its line of the matrix is in the test's report."""
    return lambda library: Training(library, tmp_path, shared_node, request.node.user_properties)
