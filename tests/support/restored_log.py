"""A log that was restored from a backup, published to the store that has its first part."""

from typing import Any

from chiplog_collector.index.opening import rebuild_into
from chiplog_collector.store.delta_store import DeltaStore
from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.piece_cutter import PieceCutter
from chiplog_collector.store.publisher import Publisher
from chiplog_schemas.paths import Paths
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.segment_format import former_owner, log_owner
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.support.collector_log import receipt


class Restored:
    """A collector's directory that was restored from a backup, with its publisher."""

    def __init__(self, place: Paths, url: str) -> None:
        self.place, self.url = place, url
        self.outbox = Outbox(place.store)
        self.log_id = log_owner(place.collector / "log") or b""
        self.log = SegmentLog(place.collector / "log", self.log_id)
        self.follower = rebuild_into(place, place.index, self.log.next_number, lambda number: None)

    def take(self, payloads: list[Any]) -> None:
        for payload in payloads:
            kind, content = payload if isinstance(payload, tuple) else (Kind.BLOCK, payload)
            self.log.append(kind, content)
            self.log.append(Kind.RECEIPT, receipt(self.log.next_number))
        self.log.commit()
        while self.follower.database.next_number < self.log.next_number:
            self.follower.step(self.log.next_number)

    def publish(self) -> int:
        """Publish what is new; return the number of pieces."""
        log, former = self.log_id.hex(), former_owner(self.place.collector / "log")
        assert former is not None
        before = DeltaStore(self.url, former[0].hex()), former[1]
        publisher = Publisher(DeltaStore(self.url, log), self.outbox, log, None, before)
        publisher.begin()
        cutter = PieceCutter(self.follower.database.connection, self.log_id, self.outbox, self.url)
        cutter.start()
        cutter.close()
        n_pieces = len(self.outbox.ends())
        while publisher.publish_next():
            pass
        return n_pieces

    def close(self) -> None:
        self.follower.close()
        self.follower.database.close()
        self.log.close()
