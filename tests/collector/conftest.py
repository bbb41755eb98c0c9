"""A bucket of a real server of S3, and a proxy before it."""

from collections.abc import Iterator

import pytest

from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import s3_server


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as variables:
        yield variables


@pytest.fixture
def proxy(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    with s3_proxy(server["AWS_ENDPOINT_URL"]) as proxy:
        for name, value in (server | {"AWS_ENDPOINT_URL": proxy.url}).items():
            monkeypatch.setenv(name, value)
        yield proxy
