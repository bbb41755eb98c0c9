"""The table of XIDs."""

from chiplog_agent.stats.gpu.xids import XIDS, xid_of


def test_each_code_has_a_text_a_level_of_events_and_advice() -> None:
    for code, xid in XIDS.items():
        assert xid.text and xid.advice and xid.severity in ("info", "warning", "error"), code
    assert list(XIDS) == sorted(XIDS)


def test_what_loses_the_gpu_or_the_job_is_an_error() -> None:
    assert {xid_of(code).severity for code in (13, 31, 48, 64, 74, 79, 94, 95, 119)} == {"error"}
    assert {xid_of(code).severity for code in (45, 63, 92)} == {"warning"}


def test_an_unknown_code_is_a_warning_that_says_where_to_look() -> None:
    unknown = xid_of(9999)
    assert unknown.severity == "warning" and "docs.nvidia.com" in unknown.advice
