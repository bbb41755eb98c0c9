"""The codes: what was written once keeps its meaning."""

from chiplog_schemas.model.codes import EndCause, QuarantineCode, end_cause


def test_values_that_were_written_are_never_changed() -> None:
    assert [code.value for code in QuarantineCode] == [
        "log_damaged",
        "unknown_record",
        "invalid_record",
        "invalid_delivery",
        "invalid_block",
        "newer_block",
        "unread_block",
        "seq_out_of_range",
        "record_gone",
        "record_failed",
        "unknown_event",
        "event_rejected",
    ]
    assert [cause.value for cause in EndCause] == [
        "exception",
        "interrupted",
        "peer_lost",
        "connection_lost",
        "out_of_memory",
        "exit_status",
        "unseen",
    ]


def test_a_cause_that_is_not_known_is_none() -> None:
    assert end_cause("peer_lost") is EndCause.PEER_LOST
    assert [end_cause(value) for value in ("of the future", "", None, 3, ["unseen"], b"unseen")] == [None] * 6
