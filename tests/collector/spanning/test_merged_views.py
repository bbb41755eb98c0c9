"""The views over a store have the rows of the collector that published it."""

from collections.abc import Iterator

import pytest

from tests.support.collector_log import VIEWS
from tests.support.index import Index
from tests.support.published_index import publish_in_pieces
from tests.support.sample_log import everything
from tests.support.store_reader import Reader


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Index, Reader]]:
    directory = tmp_path_factory.mktemp("published")
    index = Index(directory)
    store = publish_in_pieces(index, directory / "a lake", everything()[:-1])
    reader = Reader(store.url, directory)
    yield index, reader
    reader.close()
    index.close()


@pytest.mark.parametrize("view", VIEWS)
def test_a_reader_without_a_collector_has_the_rows_of_the_collector(published: tuple[Index, Reader], view: str) -> None:
    index, reader = published
    expected = sorted(map(repr, index.sql(f"FROM {view}")))
    assert sorted(map(repr, reader.sql(f"FROM {view}"))) == expected
