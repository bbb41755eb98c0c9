"""Fixtures of the tests of the read model."""

from collections.abc import Iterator

import pytest

from chiplog_client.client import Client
from tests.support.hand_written import filled


@pytest.fixture(scope="module")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of the database that the module's `fill` writes."""
    with filled(tmp_path_factory.mktemp("filled"), request.module.fill) as client:
        yield client
