"""The codes: what was written once keeps its meaning."""

from chiplog_schemas.model.codes import QuarantineCode


def test_values_that_were_written_are_never_changed() -> None:
    assert [code.value for code in QuarantineCode] == [
        "log_damaged",
        "unknown_record",
        "invalid_record",
        "invalid_delivery",
        "invalid_block",
        "newer_block",
        "seq_out_of_range",
        "record_gone",
        "record_failed",
        "unknown_event",
        "event_rejected",
    ]
