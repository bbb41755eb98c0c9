"""The empty receipt for a log that lost its end, written by the receiver at its start or by `chiplog rebuild`."""

from chiplog_collector.receiver.commit import empty_receipt
from chiplog_schemas.clock import now_us
from chiplog_schemas.storage.segment_log import SegmentLog


def append_receipt_for_lost_tail(log: SegmentLog) -> None:
    """Append an empty receipt after numbers that a log had and lost; nothing to a complete log. Raises OSError."""
    if log.lost_tail is not None:
        receipt = empty_receipt(now_us())
        log.append(receipt.kind, receipt.payload)
        log.commit()
