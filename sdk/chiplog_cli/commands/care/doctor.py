"""`chiplog doctor`: check this machine; `--canary`: check that all sent events arrive."""

import dataclasses
import os
from typing import TYPE_CHECKING

import click

from chiplog_cli import health_checks
from chiplog_cli.health_checks import ERROR, OK, Finding
from chiplog_cli.output import FORMATS, Output, output_options
from chiplog_cli.tables.tables import plain_cell
from chiplog_cli.tables.writers import Rows, write_result
from chiplog_client import daemons
from chiplog_schemas.paths import Paths, paths_for_root
from chiplog_schemas.process.recording_dir import recording_dir

if TYPE_CHECKING:
    from chiplog_cli.tables.fitted_table import Sheet

CANARIES = 1_000
_COLOURS = {OK: "green", health_checks.WARNING: "yellow", ERROR: "red"}


@click.command()
@click.option("--canary", is_flag=True, help="Send events through the whole pipeline, and compare what arrives.")
@click.option(
    "--events",
    type=click.IntRange(1, 100_000),
    default=CANARIES,
    show_default=True,
    help="How many, with --canary.",
)
@click.option(
    "--timeout-s", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="For all of them to arrive."
)
@click.option("--dir", "directory", metavar="DIR", help="In place of CHIPLOG_DIR (default ~/.chiplog).")
@output_options(*FORMATS)
def doctor(canary: bool, events: int, timeout_s: float, directory: str | None, output: Output) -> None:
    """Check this machine and report what to fix. Exit code 1 if something is bad.

    With --canary the command sends events through the agent and the collector into SQL. It counts lost, doubled and
    altered ones, and measures the time. They are rows of kind `canary` in `events`, and belong to no run.
    """
    where = paths_for_root(recording_dir(directory))
    findings = list(health_checks.run_checks(where))
    if canary:
        findings.append(_fly(where, events, timeout_s))
    columns = [field.name for field in dataclasses.fields(Finding)]
    write_result(Rows(columns, map(dataclasses.astuple, findings)), output, sheets=lambda: [_sheet(findings)])
    if any(finding.verdict == ERROR for finding in findings):
        raise click.exceptions.Exit(1)


def _fly(where: Paths, events: int, timeout_s: float) -> Finding:
    """Send canaries. Start an agent and a collector if none runs, as a training does."""
    from chiplog_cli import canary

    address = os.environ.get("CHIPLOG_AGENT")
    if not address and not daemons.daemon_pid(where, daemons.AGENT):
        try:
            daemons.start(where, daemons.AGENT, ["--embedded"])
        except OSError as error:
            return Finding("canary", ERROR, str(error), "fix the problem, then run chiplog doctor again")
    flight = canary.send_canaries(where, address, timeout_s, events)
    if flight.visible_s is None or flight.acknowledged_s is None:
        stop = "by the agent" if flight.acknowledged_s is None else "in SQL"
        found = f"{flight.lost:,} of {events:,} events missing {stop} after {timeout_s:g} s: {flight.reason}"
        return Finding("canary", ERROR, found, "chiplog status shows where they wait")
    found = (
        f"{events:,} events sent, {flight.arrived:,} arrived, {flight.lost} lost, {flight.doubled} doubled, "
        f"{flight.altered} altered; acknowledged after {flight.acknowledged_s * 1e3:.0f} ms, "
        f"in SQL after {flight.visible_s * 1e3:.0f} ms"
    )
    return Finding("canary", OK if flight.ok else ERROR, found, "" if flight.ok else "please report this: it is a bug")


def _sheet(findings: list[Finding]) -> "Sheet":
    from chiplog_cli.tables.fitted_table import Column, Sheet

    sheet = Sheet(
        Column(name, is_whole=name in ("verdict", "check")) for name in ("verdict", "check", "found", "remedy")
    )
    for finding in findings:
        sheet.add(
            plain_cell(finding.verdict, _COLOURS[finding.verdict]),
            finding.check,
            plain_cell(finding.found),
            plain_cell(finding.remedy),
        )
    return sheet
