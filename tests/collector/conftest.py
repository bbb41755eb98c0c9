"""An index over a log of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.index import Index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path)
    yield index
    index.close()
