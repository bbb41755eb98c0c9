"""Add up the reports of several pytest runs: `python3 scripts/test_summary.py DIRECTORY`.

tests/support/run_report.py writes the reports. The last line is one summary in pytest's words over all cases. A test
may be skipped because there is no GPU, and for no other reason: the exit code is 1 otherwise, and if a run failed.
"""

import glob
import json
import os
import sys

PLURAL = {"error": "errors"}
PYTEST_FAILURES = (2, 3, 4)  # interrupted, internal error, usage: not all tests ran


def summary(reports):
    """Return one line in pytest's words over all reports."""
    counts = {}
    for report in reports:
        for outcome, count in report["counts"].items():
            counts[outcome] = counts.get(outcome, 0) + count
    parts = [f"{n} {PLURAL.get(name, name) if n > 1 else name}" for name, n in counts.items() if n]
    seconds = sum(report["duration_s"] for report in reports)
    return f"{', '.join(parts) or 'no tests ran'} in {seconds:.2f}s"


def refused_skips(reports):
    """Return a line for each test that was skipped for another reason than a missing GPU."""
    skips = [(test, reason) for report in reports for test, reason in report["skipped"]]
    return [f"{test}: {reason}" for test, reason in skips if "GPU" not in reason]


def main():
    """Print what is wrong, then the summary; return the exit code."""
    if len(sys.argv) != 2:
        sys.exit("usage: test_summary.py DIRECTORY")
    reports = []
    for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.json"))):
        with open(path, encoding="utf-8") as file:
            reports.append(json.load(file))
    refused = refused_skips(reports)
    if refused:
        print("skipped for another reason than a missing GPU:", *refused, sep="\n")
    broken = [report["exit_status"] for report in reports if report["exit_status"] in PYTEST_FAILURES]
    if broken:
        print(f"pytest did not run to its end: exit code {broken[0]}")
    counts = [report["counts"] for report in reports]
    passed = sum(count["passed"] for count in counts)
    failed = sum(count["failed"] + count["error"] for count in counts)
    print(summary(reports))
    return 0 if passed and not (failed or refused or broken) else 1


if __name__ == "__main__":
    sys.exit(main())
