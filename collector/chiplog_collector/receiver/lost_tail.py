"""A log that lost its end: an empty receipt, from the receiver at its start or `chiplog rebuild`, and a note."""

import hashlib
import logging

from chiplog_collector.receiver.commit import empty_receipt
from chiplog_schemas.clock import now_us
from chiplog_schemas.model.change_record import REQUEST_ID_BYTES, Action, Change, encode_change
from chiplog_schemas.storage.segment_log import SegmentLog

_log = logging.getLogger("chiplog.collector")


def append_receipt_for_lost_tail(log: SegmentLog) -> None:
    """Append an empty receipt after numbers that a log had and lost; nothing to a complete log. Raises OSError."""
    if log.lost_tail is not None:
        receipt = empty_receipt(now_us())
        log.append(receipt.kind, receipt.payload)
        log.commit()


def lost_end_note(kept: int, next_number: int) -> bytes | None:
    """Report a lost end in one line, and return the record for `events`; None for a complete log.

    kept: the number after the last record that is left. next_number: of the next one.
    """
    if next_number <= kept:
        return None
    text = f"the log lost its end: records {kept}..{next_number - 1} are gone; it continues at {next_number}"
    _log.warning("%s", text)
    id = hashlib.sha256(f"{kept} {next_number}".encode()).digest()[:REQUEST_ID_BYTES]
    return encode_change(Change(id, Action.NOTE, {"kind": "log_end_lost", "text": text}))
