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


def test_a_fault_of_the_application_is_not_fatal_for_the_gpu() -> None:
    assert [xid_of(code).is_fatal for code in (79, 48, 95, 119)] == [True] * 4
    assert [xid_of(code).is_fatal for code in (13, 31, 43, 63, 999)] == [False] * 5
