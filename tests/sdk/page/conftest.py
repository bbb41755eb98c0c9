"""One server for all modules that only read: a run that hangs, a healthy one, and three finished ones."""

from collections.abc import Iterator

import pytest

from tests.support.hand_written import hand_written, kept_open
from tests.support.live_runs import fill_live_runs
from tests.support.page_client import PageClient, serving
from tests.support.run_builder import NOW, RunBuilder


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    """A client that has signed in, at a server of runs that are written by hand."""
    root = tmp_path_factory.mktemp("page")
    with hand_written(root) as database:
        fill_live_runs(database)
        RunBuilder(database, NOW).config({"lr": 0.5}, seq=1, where="run_id = 'healthy' AND rank = 0")
    with kept_open(root), serving(root) as client:
        yield client.sign_in()
