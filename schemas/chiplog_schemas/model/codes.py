"""The codes that travel or are stored beside texts: programs decide by the code, people read the text.

Values are never reused or changed: they are in logs and databases. A reader takes a code that it does not know as none.
"""

from enum import StrEnum


class QuarantineCode(StrEnum):
    """Why the index set something aside: the column `code` of base.quarantine, `code` in the event's body."""

    LOG_DAMAGED = "log_damaged"  # bytes of the log that are no record
    UNKNOWN_RECORD = "unknown_record"  # a record of a kind that this version does not know
    INVALID_RECORD = "invalid_record"  # a record whose payload is not what its kind has
    INVALID_DELIVERY = "invalid_delivery"  # what an agent sent was no record: the receiver kept the bytes
    INVALID_BLOCK = "invalid_block"
    NEWER_BLOCK = "newer_block"  # parked: applied after the upgrade
    SEQ_OUT_OF_RANGE = "seq_out_of_range"  # of some producers of a block
    RECORD_GONE = "record_gone"  # it was refused and kept, and can no longer be read
    RECORD_FAILED = "record_failed"  # applying or writing the record raised an exception
    UNKNOWN_EVENT = "unknown_event"  # of a kind that this version does not know, or no event
    EVENT_REJECTED = "event_rejected"  # applying the event raised an exception


class EndCause(StrEnum):
    """Why a process ended badly: `cause` of a STATE map, and of the body of a NOTICE `traceback`."""

    EXCEPTION = "exception"  # of another kind than the next three
    INTERRUPTED = "interrupted"  # something outside asked it to end: KeyboardInterrupt, SystemExit of 128 + a signal
    PEER_LOST = "peer_lost"  # torch.distributed, NCCL, gloo or a launcher says that another process is gone
    CONNECTION_LOST = "connection_lost"  # an exception about a connection, perhaps one to another rank
    OUT_OF_MEMORY = "out_of_memory"  # the kernel killed it
    EXIT_STATUS = "exit_status"  # nothing but its exit code or signal is known
    UNSEEN = "unseen"  # not even that


def end_cause(value: object) -> EndCause | None:
    """Return the cause that a peer names; None when it names none, or one that this version does not know."""
    try:
        return EndCause(value) if isinstance(value, str) else None
    except ValueError:
        return None
