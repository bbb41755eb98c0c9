"""The table of XIDs."""

import pytest

from chiplog_agent.stats.gpu import xids
from chiplog_agent.stats.gpu.xids import APPLICATION_CODES, XIDS, xid_of

# NVIDIA's catalog of October 2025: the codes that are not "unused", by their immediate action.
RESETS = (46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 150, 151, 155, 156, 158)
RESTARTS = (8, 11, 13, 25, 31, 32, *range(39, 42), 60, *range(68, 73), *range(75, 78), 80, *range(82, 87), 88, 89, 94)
RESTARTS_TOO = (*range(96, 106), *range(126, 136), 139)
IGNORED = (37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161)
FATAL_BY_NAME = (167, 173)
OTHERS = (45, 78, 109, 142, *range(144, 150), 154, 159, *range(162, 173))


def test_each_code_has_a_text_a_level_of_events_and_advice() -> None:
    for code, xid in XIDS.items():
        assert xid.text and xid.advice and xid.severity in ("info", "warning", "error"), code
        assert len(xid.text) <= 70 and len(xid.advice) <= 110, code
    assert list(XIDS) == sorted(XIDS)


def test_each_code_is_in_one_row_of_the_table() -> None:
    codes = [code for of, *_ in xids._ROWS for code in ((of,) if isinstance(of, int) else of)]
    assert len(codes) == len(set(codes)) == len(XIDS)
    assert set(xids._ADVICE) <= set(codes)


def test_the_table_has_all_codes_of_the_catalog() -> None:
    assert {*RESETS, *RESTARTS, *RESTARTS_TOO, *IGNORED, *OTHERS} <= set(XIDS)


def test_what_needs_a_reset_is_fatal_and_what_restarts_the_application_is_a_warning() -> None:
    assert {code for code, xid in XIDS.items() if xid.is_fatal} == {*RESETS, *FATAL_BY_NAME}
    assert {xid_of(code).severity for code in (*RESETS, *FATAL_BY_NAME)} == {"error"}
    assert {xid_of(code).severity for code in (*RESTARTS, *RESTARTS_TOO)} == {"warning"}


def test_what_needs_nothing_or_accompanies_another_xid_is_information() -> None:
    assert {code for code, xid in XIDS.items() if xid.severity == "info"} == {45, 63, 106, 107, 154, 162, 171, 172}


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109])
def test_what_kubernetes_keeps_a_gpu_in_use_after_is_not_fatal(code: int) -> None:
    """The codes that NVIDIA's k8s-device-plugin ignores (internal/rm/health.go), as the application causes them."""
    assert code in APPLICATION_CODES and not xid_of(code).is_fatal


def test_an_unknown_code_is_a_warning_that_says_where_to_look() -> None:
    unknown = xid_of(9999)
    assert unknown.severity == "warning" and "docs.nvidia.com" in unknown.advice and not unknown.is_fatal
