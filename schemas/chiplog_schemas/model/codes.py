"""The codes that accompany texts on the wire and in tables. Programs read the code, people read the text.

A value is never reused or changed: logs and databases hold it. A reader treats an unknown code as absent.
"""

from enum import StrEnum


class QuarantineCode(StrEnum):
    """Why the index put something into quarantine: the column `code` of base.quarantine, and `code` in the body."""

    LOG_DAMAGED = "log_damaged"  # bytes of the log that are not a record
    UNKNOWN_RECORD = "unknown_record"  # a record of an unknown kind
    INVALID_RECORD = "invalid_record"  # the payload does not match the record's kind
    INVALID_DELIVERY = "invalid_delivery"  # an agent sent bytes that are not a record; the receiver kept them
    INVALID_BLOCK = "invalid_block"
    NEWER_BLOCK = "newer_block"  # parked; applied after an upgrade
    UNREAD_BLOCK = "unread_block"  # the log has admitted its version, and this index is of an older one
    SEQ_OUT_OF_RANGE = "seq_out_of_range"  # of one or more producers of a block
    RECORD_GONE = "record_gone"  # a refused record was kept, and can no longer be read
    RECORD_FAILED = "record_failed"  # applying or writing the record raised an exception
    UNKNOWN_EVENT = "unknown_event"  # an event of an unknown kind, or not an event
    EVENT_REJECTED = "event_rejected"  # applying the event raised an exception


class RefusalReason(StrEnum):
    """Why an agent or a collector refused something: the label `reason` of `chiplog_refused_total`."""

    UNAUTHORIZED = "unauthorized"  # a handshake or message of a key without the right
    NODE = "node"  # an event or session of a node that the sender's key does not name
    OTHER_KEY = "other_key"  # a session of a sender that used another key before
    VERSION = "version"  # a session without a common version of the protocol
    SESSIONS = "sessions"  # a session above SESSIONS_MAX
    MALFORMED = "malformed"  # bytes that are not a message


class EndCause(StrEnum):
    """Why a process failed or crashed: `cause` of a STATE map, and of the body of a NOTICE `traceback`."""

    EXCEPTION = "exception"  # none of the next three
    INTERRUPTED = "interrupted"  # requested from outside: KeyboardInterrupt, SystemExit of 128 + a signal
    PEER_LOST = "peer_lost"  # torch.distributed, NCCL, gloo or a launcher reports that another process is gone
    CONNECTION_LOST = "connection_lost"  # an exception about a connection, perhaps one to another rank
    OUT_OF_MEMORY = "out_of_memory"  # the kernel killed it
    EXIT_STATUS = "exit_status"  # only its exit code or signal is known
    UNSEEN = "unseen"  # not even the exit status is known


def end_cause(value: object) -> EndCause | None:
    """Return the cause that a peer names, or None if it names none or an unknown one."""
    try:
        return EndCause(value) if isinstance(value, str) else None
    except ValueError:
        return None
