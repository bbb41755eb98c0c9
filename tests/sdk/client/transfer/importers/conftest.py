"""Fixtures of the tests of importers."""

from collections.abc import Iterator

import pytest

from tests.support.imported_runs import open_index
from tests.support.index import Index


@pytest.fixture
def index() -> Iterator[Index]:
    with open_index() as index:
        yield index
