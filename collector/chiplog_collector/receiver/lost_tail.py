"""What a log that lost its end says of that, once: by the receiver at its start, or by `chiplog rebuild`."""

from chiplog_collector.receiver.commit import empty_receipt
from chiplog_schemas.storage.segments import SegmentLog, now_us


def append_receipt_for_lost_tail(log: SegmentLog) -> None:
    """Write an empty receipt behind numbers that a log had and lost; nothing for a whole one. Raises OSError."""
    if log.lost_tail is not None:
        receipt = empty_receipt(now_us())
        log.append(receipt.kind, receipt.payload)
        log.commit()
