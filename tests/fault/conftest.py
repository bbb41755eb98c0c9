"""A fixture of the tests of disks and limits."""

from collections.abc import Iterator

import pytest

from tests.support.disk.faults import Rank


@pytest.fixture
def started() -> Iterator[list[Rank]]:
    """Ranks that a test starts; none outlives it."""
    ranks: list[Rank] = []
    yield ranks
    for rank in ranks:
        rank.close()
