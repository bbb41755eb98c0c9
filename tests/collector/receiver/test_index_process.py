"""The index as a child process: when an embedded collector starts it."""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from chiplog_collector.receiver.index_process import _LAG_BYTES, IndexProcess
from chiplog_schemas.addresses import ipc_path
from chiplog_schemas.limits import FILES_LOOK_S
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from tests.support.safeguard import proves

LOG_BYTES = 100


@pytest.fixture
def place(chiplog_dir: Path) -> Paths:
    place = paths_for_root(chiplog_dir)
    ensure_private_dir(place.run)
    return place


@dataclass
class Noted:
    """An index that is not started: the times are noted at which it would be."""

    index: IndexProcess
    started: list[float]


@pytest.fixture
def noted(place: Paths, monkeypatch: pytest.MonkeyPatch) -> Iterator[Noted]:
    """The index of an embedded collector that serves only its own address."""
    found = index_of(place, [place.query_address], monkeypatch)
    yield found
    found.index.close()


def index_of(place: Paths, queries: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Noted:
    found = Noted(IndexProcess(place, queries, embedded=True, log_bytes=LOG_BYTES), [])
    monkeypatch.setattr(found.index._child, "start", found.started.append)
    return found


@proves("lag-starts-index", "a log that grows starts the index of an embedded collector", value="False")
def test_the_index_of_an_embedded_collector_starts_when_the_log_has_grown(noted: Noted, place: Paths) -> None:
    noted.index.tick(1.0, LOG_BYTES + _LAG_BYTES - 1)
    assert not noted.started
    assert noted.index.listener is not None
    noted.index.tick(2.0, LOG_BYTES + _LAG_BYTES)
    assert noted.started == [2.0]
    assert not ipc_path(place.query_address).exists(), "the index binds it"


def test_an_index_with_further_addresses_is_started_at_once(place: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    found = index_of(place, [place.query_address, "tcp://127.0.0.1:4101"], monkeypatch)
    found.index.tick(1.0)
    assert found.started == [1.0]
    found.index.close()


def test_a_removed_socket_for_queries_is_restored(noted: Noted, place: Paths) -> None:
    path = ipc_path(place.query_address)
    noted.index.tick(1.0, LOG_BYTES)
    path.unlink()
    noted.index.tick(1.0 + FILES_LOOK_S, LOG_BYTES)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        noted.index.tick(2.0 + FILES_LOOK_S, LOG_BYTES)
    assert len(noted.started) == 1


def test_the_index_is_started_at_once_if_its_socket_cannot_be_bound(noted: Noted, place: Paths) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(ipc_path(place.query_address)))
        other.listen()
        noted.index.tick(1.0, LOG_BYTES)
    assert noted.started == [1.0], "it waits for the address, as after a restart"
