"""Delivery of an import: each record arrives once, also when the collector dies in between."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiplog_client.transfer import import_delivery
from chiplog_client.transfer.import_delivery import (
    BlockSource,
    DeliveryError,
    Destination,
    deliver_blocks,
    deliver_files,
)
from chiplog_schemas.storage.content_files import content_path
from chiplog_schemas.storage.record import Record, scan_records
from tests.support.collector_log import Rank, block_of
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "dir")
    yield node
    node.stop()


def taken(source: BlockSource) -> list[bytes]:
    """Return the payloads that the source has from its position on."""
    found: list[bytes] = []
    while (piece := source.read(1 << 20)) is not None:
        [record] = scan_records(piece.payload)
        assert isinstance(record, Record)
        assert piece.first == piece.last == record.number
        found.append(bytes(record.payload))
    return found


@proves(
    "imported-block-kept-until-acknowledged",
    "a record of an import is kept until the collector has it on stable storage",
)
def test_records_are_kept_until_they_are_acknowledged() -> None:
    blocks = [b"one", b"two", b"three"]
    source = BlockSource(iter(blocks))
    assert taken(source) == blocks
    assert source.is_exhausted
    assert not source.is_done
    source.seek(1)
    assert taken(source) == blocks[1:]
    source.acknowledged(2)
    assert source.first_number == 2
    source.seek(0)
    assert taken(source) == [b"three"]
    source.acknowledged(3)
    assert source.is_done
    assert (source.first_number, taken(source)) == (3, [])


@pytest.mark.full
def test_a_collector_that_dies_in_between_gets_everything_once(node: Node) -> None:
    rank = Rank(0)
    for step in range(6):
        rank.log(step, loss=float(step))
    node.start_collector()
    is_half, may_continue = threading.Event(), threading.Event()

    def blocks() -> Iterator[bytes]:
        yield block_of((rank, 0, 2))
        yield block_of((rank, 3, 4))
        is_half.set()
        assert may_continue.wait(WAIT_S)
        yield block_of((rank, 5, 6))

    failed: list[BaseException] = []

    def deliver() -> None:
        try:
            deliver_blocks(Destination(node.place.collector_address, "node-a"), blocks(), lambda: None)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    assert is_half.wait(WAIT_S)
    assert node.collector is not None
    node.collector.kill()
    node.collector.wait()
    node.start_collector()
    may_continue.set()
    thread.join(WAIT_S)
    assert failed == []
    rows = node.until("SELECT count(*) AS n, sum(value) AS total FROM metrics", lambda rows: rows[0]["n"] >= 6)
    assert rows == [{"n": 6, "total": 15.0}]


def test_a_file_arrives_whole_and_a_second_time_costs_nothing(node: Node, tmp_path: Path) -> None:
    node.start_collector()
    data = bytes(range(256)) * 9_000  # several times the credit
    digest = hashlib.sha256(data)
    (tmp_path / "data").write_bytes(data)
    (tmp_path / "empty").touch()
    contents = {digest.hexdigest(): tmp_path / "data", hashlib.sha256().hexdigest(): tmp_path / "empty"}
    sizes: list[int] = []
    for _ in range(2):
        deliver_files(Destination(node.place.collector_address, "node-a"), contents, sizes.append)
    assert sizes == [len(data), 0] * 2
    assert content_path(node.place.files, digest.digest()).read_bytes() == data
    (tmp_path / "data").write_bytes(data[:-1] + b"x")
    other = {hashlib.sha256(data + b"x").hexdigest(): tmp_path / "data"}
    with pytest.raises(DeliveryError, match="has changed since it was checked"):
        deliver_files(Destination(node.place.collector_address, "node-a"), other, sizes.append)


def test_a_collector_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_delivery, "CONNECT_WAIT_S", 0.2)
    nowhere = Destination(f"ipc://{tmp_path}/collector.sock", "node-a")
    with pytest.raises(DeliveryError, match=r"collector\.sock: no collector answers within 0\.2 s"):
        deliver_blocks(nowhere, iter([b"x"]), lambda: None)
    (tmp_path / "data").write_bytes(b"data")
    with pytest.raises(DeliveryError, match="no collector takes saved files within 0"):
        deliver_files(nowhere, {hashlib.sha256(b"data").hexdigest(): tmp_path / "data"}, lambda _: None)
