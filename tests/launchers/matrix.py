"""Run the launcher tests, and print what each launcher gave as one table: `python -m tests.launchers.matrix`.

There is no second implementation: every cell is a result of the test's own check, passed through pytest's reports.
Arguments go to pytest, as in `python -m tests.launchers.matrix -k torchrun`.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

ROW = "launcher row"  # the property of a test's report that holds a line


class Matrix:
    """A pytest plugin that collects the lines and prints the table after pytest's own summary."""

    def __init__(self) -> None:
        self._rows: list[tuple[dict[str, Any], pytest.TestReport]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the lines of a test that ran, or that could not begin."""
        if report.when == "call" or (report.when == "setup" and report.failed):
            self._rows += [(row, report) for name, row in report.user_properties if name == ROW]

    def pytest_terminal_summary(self) -> None:
        """Print the table."""
        from tests.launchers.training import COLUMNS

        table = Table(title="what SQL says of a training, by what started it")
        table.add_column("launcher")
        for column in (*COLUMNS, "seconds", "test"):
            table.add_column(column, justify="right" if column == "seconds" else "left")
        for row, report in sorted(self._rows, key=lambda entry: (entry[1].nodeid, entry[0]["launcher"])):
            cells = [
                {True: "[green]yes[/]", False: "[bold red]NO[/]"}.get(row.get(name, None), "–") for name in COLUMNS
            ]
            verdict = "[green]passed[/]" if report.passed else f"[bold red]{report.outcome}[/]"
            table.add_row(row["launcher"], *cells, f"{report.duration:.1f}", verdict)
        Console(width=None if sys.stdout.isatty() else 160).print(table)


def main() -> int:
    """Run them."""
    tests = str(Path(__file__).parent)
    return int(pytest.main([tests, "-n", "2", "--dist", "loadgroup", *sys.argv[1:]], plugins=[Matrix()]))


if __name__ == "__main__":
    sys.exit(main())
