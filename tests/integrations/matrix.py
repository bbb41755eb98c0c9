"""Run the trainings of real libraries, and print what each gave as one table: `python -m tests.integrations.matrix`.

Arguments go to pytest, as in `python -m tests.integrations.matrix -k Keras`.
"""

import os
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from tests.integrations.environment import prepare

PYTHON = "CHIPLOG_INTEGRATIONS_PYTHON"  # variable: the interpreter that has the libraries
ROW = "integration row"  # the property of a test's report that holds a line of the table
_COLUMNS = ("library", "version", "ranks", "rows")


class Matrix:
    """A pytest plugin that prints the table after pytest's own summary."""

    def __init__(self) -> None:
        self._reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the report of a test that ran, or that could not begin."""
        if report.when == "call" or (report.when == "setup" and report.failed):
            self._reports.append(report)

    def pytest_terminal_summary(self) -> None:
        """Print the table."""
        table = Table(title="real libraries: what they log, and what SQL has")
        for column in (*_COLUMNS, "verdict"):
            table.add_column(column, justify="right" if column in ("ranks", "rows") else "left")
        for report in self._reports:
            row = dict(report.user_properties).get(ROW, {"library": report.nodeid})
            verdict = "[green]exact[/]" if report.passed else f"[bold red]{report.outcome}[/]"
            table.add_row(*(str(row.get(name, "–")) for name in _COLUMNS), verdict)
        Console(width=None if sys.stdout.isatty() else 120).print(table)


def main() -> int:
    """Run them in the environment that `CHIPLOG_INTEGRATIONS_PYTHON` names, or in one that it builds first."""
    if PYTHON not in os.environ:
        os.environ[PYTHON] = prepare()
    return int(pytest.main([str(Path(__file__).parent), *sys.argv[1:]], plugins=[Matrix()]))


if __name__ == "__main__":
    sys.exit(main())
