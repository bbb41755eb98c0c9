"""An index that is published to a store on this disk, in several pieces."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.piece_cutter import PieceCutter
from chiplog_collector.store.publisher import Publisher
from tests.support.index import Index
from tests.support.sample_log import everything


def publish_in_pieces(
    index: Index,
    lake: Path | str,
    payloads: Sequence[Any],
    n_pieces: int = 3,
    take: Callable[..., Any] = Index.take,
) -> DeltaStore:
    """Apply payloads, and publish what they add to the index after each part of them; return the store.

    lake: a directory, or the address of a store. take: lets an index take some payloads.
    """
    url, outbox = lake if isinstance(lake, str) else f"file://{lake}", Outbox(index.directory / "store")
    store = DeltaStore(url, index.log_id.hex())
    publisher = Publisher(store, outbox, index.log_id.hex(), None)
    publisher.begin()
    for part in range(n_pieces):
        take(index, *payloads[part * len(payloads) // n_pieces : (part + 1) * len(payloads) // n_pieces])
        cutter = PieceCutter(index.database.connection, index.log_id, outbox, url)
        cutter.start()
        cutter.close()
        while publisher.publish_next():
            pass
    store.put_heartbeat({"host": "this host", "at": time.time()})
    return store


def everything_published(directory: Path) -> tuple[Index, DeltaStore]:
    """Return an index of one of everything, and its store in `lake`: copies, to which nothing more can be published."""
    for name, content in _published().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    index = Index(directory)
    return index, DeltaStore(f"file://{directory / 'lake'}", index.log_id.hex())


@cache
def _published() -> dict[str, bytes]:
    """Return the files of an index and of its store, by name. To make them takes a second of CPU time."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        index = Index(directory)
        publish_in_pieces(index, directory / "lake", everything()[:-1])
        index.close()
        files = [*directory.glob("index.duckdb"), *directory.glob("log/*"), *directory.glob("lake/**/*")]
        return {str(path.relative_to(directory)): path.read_bytes() for path in files if path.is_file()}
