"""Counts of one pytest run in a file, for the summary over the runs of all make targets: scripts/test_summary.py.

CHIPLOG_TEST_REPORTS names the directory. The variable is removed from the environment, so that a pytest that a test
starts writes no report.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VARIABLE = "CHIPLOG_TEST_REPORTS"
OUTCOMES = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")  # words of pytest, in its order

_started_at_s = time.monotonic()
_directory = os.environ.pop(VARIABLE, "")


def write_run_report(stats: dict[str, list[Any]], exit_status: int) -> None:
    """Write the counts, and why tests were skipped."""
    if not _directory:
        return
    directory = Path(_directory)
    directory.mkdir(parents=True, exist_ok=True)
    report = {
        "counts": {outcome: len(stats.get(outcome, ())) for outcome in OUTCOMES},
        "skipped": list(_reasons(stats.get("skipped", ()))),
        "exit_status": exit_status,
        "duration_s": round(time.monotonic() - _started_at_s, 2),
    }
    path = directory / f"{os.getpid()}.json"
    path.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _reasons(reports: Iterable[Any]) -> Iterable[tuple[str, str]]:
    for report in reports:
        found = report.longrepr
        yield report.nodeid, found[2] if isinstance(found, tuple) else str(found)
