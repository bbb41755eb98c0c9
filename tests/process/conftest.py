"""Fixtures of several modules here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Centre


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    """A collector with keys, at an address for other hosts."""
    centre = Centre(tmp_path / "centre")
    centre.keys("new", "collector")
    centre.start_collector()
    yield centre
    centre.stop()
