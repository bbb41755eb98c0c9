"""Fixtures of the tests of the SDK."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog


@pytest.fixture
def run(chiplog_dir: Path) -> Iterator[chiplog.Run]:
    """An offline run of this process."""
    with chiplog.init(mode="offline", run_id="r", label="rank0", capture_console=False) as run:
        yield run
