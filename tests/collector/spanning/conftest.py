"""A store with one of everything, read without a collector."""

from collections.abc import Iterator

import pytest

from tests.support.index import Index
from tests.support.published_index import everything_published
from tests.support.store_reader import Reader


@pytest.fixture(scope="package")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Index, Reader]]:
    directory = tmp_path_factory.mktemp("published")
    index, store = everything_published(directory)
    reader = Reader(store.url, directory)
    yield index, reader
    reader.close()
    index.close()
