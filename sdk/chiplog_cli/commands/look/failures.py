"""`chiplog failures`: how the labels of one round ended, the first failure first."""

from collections.abc import Iterator
from typing import Any

import click

from chiplog_cli.commands.look.run_page import exit_text
from chiplog_cli.commands.look.runs import state_text
from chiplog_cli.completion import complete_runs
from chiplog_cli.options import local_option, open_client, resolve_run, source_options
from chiplog_cli.output import Output, output_options
from chiplog_cli.tables.fitted_table import Cell, Sheet
from chiplog_cli.tables.format_values import common_timezone, duration_text, seconds_text
from chiplog_cli.tables.plain_table import Column
from chiplog_cli.tables.tables import plain_cell
from chiplog_cli.tables.writers import write_object, write_sheets
from chiplog_client.reads.failures import read_failures
from chiplog_client.reads.parameters import BadRequestError

LABELS_SHOWN = 32  # without --all: as many as fit on a screen
TEXT_LINES_SHOWN = 6  # of one label on a terminal: an error of gloo begins with four lines of a path
_ROLES = {"first": "bold red", "cause": "red", "echo": ""}


@click.command()
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option(
    "--attempt", type=click.IntRange(0), metavar="N", help="Of this round. Default: the newest with a failure."
)
@click.option("--all", "everything", is_flag=True, help="All labels, and their texts in full.")
@output_options("table", "json", "md")
@local_option
@source_options
def failures(
    run: str,
    attempt: int | None,
    everything: bool,
    output: Output,
    is_local: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Show how the labels of a run ended in one round: the first failure, what followed it, and what still runs.

    RUN is an ID, the beginning of one, a name, or `latest`, which is also the default. `after` is the time since the
    first failure. Role `cause` is a failure that follows from no other, `echo` a consequence of another. GPUs are those
    of the label at its end.
    """
    zone = common_timezone(is_local)
    with open_client(dir_, url) as client:
        run_id = resolve_run(client, run)
        try:
            found = read_failures(client, run_id, attempt)
        except BadRequestError as error:
            raise click.UsageError(str(error)) from error
    if output.form == "json":
        write_object(found, output.path, zone)
    elif found["first"] is None:
        write_sheets([f"no label of run {run_id} has failed"], output)
    else:
        write_sheets(_sheets(found, None if everything else LABELS_SHOWN), output)


def _sheets(found: dict[str, Any], shown: int | None) -> Iterator[Sheet]:
    columns = [
        Column("label", is_name=True),
        Column("role", is_whole=True),
        Column("after", is_number=True),
        Column("state", is_whole=True),
        Column("node", drop=3),
        Column("last step", is_number=True, drop=4),
        Column("GPUs", drop=2),
        Column("exit"),
        Column("last line", drop=1),
    ]
    rounds = found["rounds"]
    sheet = Sheet(columns, f"Attempt {found['first']['attempt']}" if len(rounds) > 1 else "")
    lines_max = 0 if shown is None else TEXT_LINES_SHOWN
    for row in found["labels"][:shown]:
        sheet.add(
            plain_cell(row["label"]),
            plain_cell(row["role"], _ROLES.get(row["role"] or "", "")),
            "" if row["after_s"] is None else _after_text(row["after_s"]),
            state_text(row["state"]),
            plain_cell(row["node"]),
            "" if row["last_step"] is None else str(row["last_step"]),
            plain_cell(_gpu_text(row["gpu"] or {})),
            _text_cell(exit_text(row), lines_max),
            _text_cell(row["last_line"], lines_max),
        )
    more = len(found["labels"]) - len(found["labels"][:shown])
    notes = [f"{more} more labels; --all shows them"] * (more > 0)
    notes += [f"failures in attempts {', '.join(map(str, rounds))}; choose by --attempt"] * (len(rounds) > 1)
    sheet.caption, sheet.is_partial = "; ".join(notes), more > 0
    yield sheet


def _text_cell(text: str | None, lines_max: int) -> Cell:
    cell = plain_cell(text)
    cell.lines_max = lines_max
    return cell


def _after_text(seconds: float) -> str:
    text = duration_text(abs(seconds)) if abs(seconds) >= 60 else seconds_text(abs(seconds))
    return f"-{text}" if seconds < 0 else text


def _gpu_text(gpu: dict[str, Any]) -> str:
    """Return the state of a label's GPUs at its end, in a few words."""
    parts = list(gpu.get("events", ()))
    if gpu.get("throttled"):
        parts.append(f"throttled: {gpu['throttled']}")
    if gpu.get("temperature_c") is not None:
        parts.append(f"{gpu['temperature_c']:.0f} °C")
    if gpu.get("utilization") is not None:
        parts.append(f"{gpu['utilization']:.0%} busy")
    if gpu.get("memory_share") is not None:
        parts.append(f"{gpu['memory_share']:.0%} of memory")
    return ", ".join(parts)
