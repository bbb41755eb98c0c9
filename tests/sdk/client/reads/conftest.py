"""Fixtures of the tests of the read model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_client.client import Client
from tests.support.hand_written import filled, hand_written, kept_open
from tests.support.tabled_runs import fill_tabled_runs


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of the database that the module's `fill` writes."""
    with filled(tmp_path_factory.mktemp("filled"), request.module.fill) as client:
        yield client


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a data directory with the runs old and new of gpt, and one of vit without a config."""
    root = tmp_path_factory.mktemp("runs")
    with hand_written(root) as database:
        fill_tabled_runs(database)
    with kept_open(root):
        yield root
