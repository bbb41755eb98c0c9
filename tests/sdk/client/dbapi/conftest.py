"""One database for all tests of this folder: three runs, read from the file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hand_written import hand_written, kept_open
from tests.support.recorded import fill_three_runs


@pytest.fixture(scope="session")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the directory of the database."""
    root = tmp_path_factory.mktemp("dbapi")
    with hand_written(root) as database:
        fill_three_runs(database)
    with kept_open(root):
        yield root
