"""`chiplog logs`: what the processes of a run printed, in the order of time."""

import sys
import time
import zlib
from dataclasses import replace
from typing import Any

import click

from chiplog_cli.completion import complete_labels, complete_runs
from chiplog_cli.options import local_option, open_client, require_label, resolve_run, source_options
from chiplog_cli.tables.format_values import Zone, common_timezone, console_text, printable
from chiplog_cli.tables.plain_table import cell_width
from chiplog_client.client import Client
from chiplog_client.reads.console import Line, LinesRequest, read_lines, read_newest, read_pages
from chiplog_client.reads.runs.label_names import read_label_names

FOLLOW_INTERVAL_S = 0.5  # shorter is not visible, and a query costs milliseconds
PAGE_LINES = 50_000  # even at 8 KiB a line far below the limit of a result; usually a few MB
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta")


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.option("--label", metavar="NAME", shell_complete=complete_labels, help="Only what this label printed.")
@click.option("--stream", type=click.Choice(("stdout", "stderr")), help="Only this stream.")
@click.option("-n", "--tail", type=click.IntRange(0, PAGE_LINES), metavar="N", help="Only the last N lines.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the run has ended.")
@click.option("--times", is_flag=True, help="Put the time before each line.")
@local_option
@source_options
def logs(
    run: str,
    label: str | None,
    stream: str | None,
    tail: int | None,
    follow: bool,
    times: bool,
    is_local: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Print what the processes of a run printed, ordered by time.

    RUN is an ID, the beginning of one, a name, or `latest`. Each line begins with its label, or the name of
    the run if its only label was generated, unless --label names one.
    """
    with open_client(dir_, url) as client:
        run = resolve_run(client, run)
        if label is not None:
            require_label(client, run, label)
        printer = _Printer(prefix=label is None, zone=common_timezone(is_local) if times else None)
        if label is None:
            printer.names = read_label_names(client, run)
        labels = () if label is None else (label,)
        request = LinesRequest(run, PAGE_LINES, labels, stream or "", is_forward=True)
        if tail is None:
            newest = _print_all(client, request, printer)
        else:
            newest = read_newest(client, run)  # what is stored while the last lines are read is printed after them
            rows, last = read_lines(client, replace(request, limit=tail, is_forward=False, until=newest))
            newest = newest or last
            printer.print(rows)
        if follow:
            _follow(client, replace(request, since=newest), printer)


def _print_all(client: Client, request: LinesRequest, printer: "_Printer") -> Line | None:
    """Print all lines of a request. Return the newest line of the run; that of the request if there is none."""
    newest = request.since
    for rows, last in read_pages(client, request):
        printer.print(rows)
        newest = last or newest
    return newest


def _follow(client: Client, request: LinesRequest, printer: "_Printer") -> None:
    """Print new lines until the run has ended and no more lines come.

    The last lines and the end are from different producers, so the lines may come slightly later.
    """
    ended = 0
    while True:
        running = client.sql("SELECT state FROM runs WHERE run_id = $run", {"run": request.run}).rows()
        newest = _print_all(client, request, printer)
        if newest != request.since:
            request = replace(request, since=newest)
        else:
            ended = ended + 1 if not running or running[0]["state"] != "running" else 0
            if ended > 1:
                return
            time.sleep(FOLLOW_INTERVAL_S)


class _Printer:
    """Prints rows of the console."""

    def __init__(self, prefix: bool, zone: Zone | None) -> None:
        self._prefix = prefix
        self._zone = zone  # for the times before the lines; None: no times
        self._colour = sys.stdout.isatty()
        self._width = 0
        self.names: dict[str, str] = {}  # to show in place of labels

    def print(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        if any(row["label"] not in self.names for row in rows):
            self.names = {}  # another label has begun
        shown = [printable(self.names.get(row["label"] or "", row["label"] or "")) for row in rows]
        self._width = max(self._width, *map(cell_width, shown))
        lines = []
        for row, name in zip(rows, shown, strict=True):
            label = row["label"] or ""
            line = console_text(row["line"] or "", self._colour)
            if self._zone is not None:
                line = f"{self._zone.stamp(row['ts'], 'milliseconds', ' ')} {line}"
            if self._prefix:
                prefix = f"{name}{' ' * (self._width - cell_width(name))} |"
                line = f"{click.style(prefix, fg=colour_of(label)) if self._colour else prefix} {line}"
            lines.append(line)
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


def colour_of(label: str) -> str:
    """Return the colour of a label: the same one in every run of the command."""
    return COLOURS[zlib.crc32(label.encode(errors="replace")) % len(COLOURS)]
