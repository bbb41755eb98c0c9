"""An index that is published to a store on this disk, in several pieces."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.piece_cutter import PieceCutter
from chiplog_collector.store.publisher import Publisher
from tests.support.index import Index


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
