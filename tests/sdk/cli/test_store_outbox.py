"""What waits at a collector for its store, as `chiplog status` shows it."""

import os
import time
from pathlib import Path

import pytest

from chiplog_cli.store_outbox import store_outbox
from chiplog_collector.store.outbox import Outage, Outbox, Piece, Published
from chiplog_schemas.paths import Paths, paths_for_root

LOG, URL = "ab" * 16, "s3://lake/runs"


@pytest.fixture
def where(tmp_path: Path) -> Paths:
    place = paths_for_root(tmp_path)
    place.collector.mkdir(parents=True)
    return place


def put(outbox: Outbox, until: int) -> None:
    def write(directory: Path) -> Piece:
        (directory / "metrics.parquet").write_bytes(b"rows")
        return Piece(LOG, until - 1, until, "2026-11-28", {"metrics": 1})

    outbox.add(write)


def test_without_a_store_there_is_no_outbox(where: Paths) -> None:
    assert store_outbox(where) is None


def test_pieces_are_counted_and_the_oldest_is_the_lag(where: Paths) -> None:
    outbox = Outbox(where.store)
    outbox.set_published(Published(LOG, URL, 4, {}))
    found = store_outbox(where)
    assert found is not None and found.line == f"{URL}, nothing waits"
    for until in (5, 6):
        put(outbox, until)
    minute_ago = time.time() - 60
    os.utime(where.store / "pieces" / f"{5:020d}" / "piece.json", (minute_ago, minute_ago))
    found = store_outbox(where)
    assert found is not None
    assert (found.url, found.n_pieces, found.n_bytes) == (URL, 2, outbox.size_bytes())
    assert 60 <= found.lag_s < 90
    assert found.line.startswith(f"{URL}, waiting: 2 pieces, {found.n_bytes:,} bytes, the oldest for ")


def test_an_outage_and_a_copied_directory_are_named(where: Paths) -> None:
    outbox = Outbox(where.store)
    outbox.set_published(Published(LOG, URL, 4, {}))
    outbox.set_outage(Outage("0a", False, "the store cannot be used: 503"))
    found = store_outbox(where)
    assert found is not None and found.line == f"{URL}, nothing waits; the store cannot be used: 503"
    outbox.set_outage(Outage("0a", True, "the store cannot be used: 503"))
    found = store_outbox(where)
    assert found is not None and found.trouble == ""
    outbox.set_published(Published(LOG, URL, 4, {}, is_foreign=True))
    found = store_outbox(where)
    assert found is not None and "chiplog rebuild" in found.line


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"url": 5}', b"\xff"])
def test_a_damaged_note_is_no_outbox(where: Paths, content: bytes) -> None:
    Outbox(where.store).set_published(Published(LOG, URL, 4, {}))
    (where.store / "published.json").write_bytes(content)
    assert store_outbox(where) is None
