"""The bounds: each has its reason, and those that depend on each other fit."""

import re
from pathlib import Path

from chiplog_schemas import limits

LINES = Path(limits.__file__).read_text(encoding="utf-8").splitlines()


def test_each_bound_has_a_reason_beside_or_above_it() -> None:
    for above, line in zip(["", *LINES], LINES, strict=False):
        if re.match(r"[A-Z_]+ = ", line) and not re.match(r"(KIB|MIB|GIB)\b", line):
            assert "  # " in line or above.startswith(("#", "FILES_")), line


def test_bounds_that_hold_each_other_fit() -> None:
    assert limits.EVENT_BYTES_MAX * 4 <= limits.RECORD_BYTES_MAX
    assert limits.BATCH_BYTES_MAX <= limits.CREDIT_BYTES
    assert limits.FILE_CHUNK_BYTES <= limits.FILE_CREDIT_BYTES
    assert limits.HEARTBEAT_INTERVAL_S * 4 < limits.PEER_SILENT_S
    assert limits.BACKOFF_MIN_S < limits.BACKOFF_MAX_S < limits.PEER_SILENT_S
    assert limits.JOURNAL_RESERVE_BYTES < limits.JOURNAL_MEMORY_BYTES_MAX < limits.JOURNAL_BYTES_MAX
