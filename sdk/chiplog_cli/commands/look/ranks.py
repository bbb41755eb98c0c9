"""`chiplog ranks`: who is slow, in a sentence, as a heat map in the terminal, or as the phases of one step."""

import shutil
from collections.abc import Iterator
from typing import Any

import click

from chiplog_cli.charts.phase_lanes import NO_PHASE, build_lanes, phase_letters
from chiplog_cli.completion import complete_labels, complete_runs
from chiplog_cli.options import open_client, require_label, resolve_run, source_options
from chiplog_cli.output import Output, output_options
from chiplog_cli.tables.fitted_table import Sheet
from chiplog_cli.tables.format_values import duration_text, printable, seconds_text
from chiplog_cli.tables.plain_table import Column, cell_width
from chiplog_cli.tables.tables import BARS, plain_cell
from chiplog_cli.tables.writers import write_object, write_sheets
from chiplog_client.reads.heat import COLUMNS_MAX, UNITS, HeatRequest, read_heat
from chiplog_client.reads.parameters import BadRequestError
from chiplog_client.reads.run_verdict import read_verdict
from chiplog_client.reads.step_phases import read_step
from chiplog_client.reads.timeline import BAR_PX, TimelineRequest, read_timeline

ROWS_MAX = 32  # of the map: more labels share rows, each with the largest excess of its labels
COLUMNS_MIN = 10
_NAME_WIDTH = 16  # of labels beside the map
_PHASES_OF_STEP = ("step", "gc")  # they overlap the other phases


@click.command()
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.option("--phase", metavar="NAME", help="Default: that of the slow rank, else step.")
@click.option("--first", type=int, metavar="STEP", help="From this step on.")
@click.option("--last", type=int, metavar="STEP", help="Until this step.")
@click.option("--step", type=int, metavar="STEP", help="The phases of this step as a table, in place of the map.")
@click.option("--timeline", is_flag=True, help="The phases over time, in place of the map. Default: the last 20 steps.")
@click.option("--label", "labels", multiple=True, metavar="NAME", shell_complete=complete_labels, help="Only these.")
@output_options("table", "json")
@source_options
def ranks(
    run: str,
    phase: str | None,
    first: int | None,
    last: int | None,
    step: int | None,
    timeline: bool,
    labels: tuple[str, ...],
    output: Output,
    dir_: str | None,
    url: str | None,
) -> None:
    """Show which rank was slow: one sentence, and how much longer than the median each label took in each step.

    RUN is an ID, the beginning of one, a name, or `latest`, which is also the default. A cell of the map has the
    largest excess of its steps, so that a single slow step stays visible. The phase `outside` is the time in no phase.
    --step shows the phases of one step, of the labels that worked longest first. --timeline shows the phases of each
    label over time, each as a letter.
    """
    if step is not None and (phase is not None or first is not None or last is not None or timeline):
        raise click.UsageError("--step shows all phases of one step; leave out --phase, --first, --last and --timeline")
    if timeline and phase is not None:
        raise click.UsageError("--timeline shows all phases; leave out --phase")
    columns = min(max(shutil.get_terminal_size((80, 24)).columns - _NAME_WIDTH - 2, COLUMNS_MIN), COLUMNS_MAX)
    with open_client(dir_, url) as client:
        run_id = resolve_run(client, run)
        for label in labels:
            require_label(client, run_id, label)
        if step is not None:
            found: dict[str, Any] = {"step": step} | read_step(client, run_id, step, labels=labels)
        elif timeline:
            shown = TimelineRequest(run_id, first, last, columns * BAR_PX, rows=ROWS_MAX, labels=labels)
            found = read_timeline(client, shown)
        else:
            verdict = read_verdict(client, run_id)
            phase = phase or verdict.get("culprit", {}).get("phase")
            request = HeatRequest(run_id, phase, first, last, rows=ROWS_MAX, columns=columns, labels=labels)
            try:
                found = {"verdict": verdict["text"]} | read_heat(client, request)
            except BadRequestError as error:
                raise click.UsageError(str(error)) from error
    if output.form == "json":
        write_object(found, output.path)
    else:
        lines = _lane_lines(found, columns) if timeline else _map_lines(found)
        write_sheets([_step_sheet(found)] if step is not None else list(lines), output)


def _map_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the sentence and the map as lines."""
    if found["verdict"]:
        yield printable(found["verdict"])
        yield ""
    if not found["n_rows"]:
        yield "no phases of several labels to compare"
        return
    n_columns, per_row, excess = found["n_columns"], found["per_row"], found["excess"]
    last = found["start"] + n_columns * found["width"] - 1
    each = "" if found["width"] == 1 else f", {found['width']:,} steps in a column"
    yield f"phase {printable(found['phase'])}, steps {found['start']:,} to {min(last, found['last_step']):,}{each}"
    for row in range(found["n_rows"]):
        names = found["labels"][row * per_row : (row + 1) * per_row]
        name = _shortened(names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}")
        cells = "".join(map(_cell, excess[row * n_columns : (row + 1) * n_columns]))
        yield f"{name}{' ' * (_NAME_WIDTH - cell_width(name))}│{cells}".rstrip()
    if any(excess):
        most = found["unit_s"] * UNITS
        text = duration_text(most) if most >= 60 else seconds_text(most)
        yield f"{BARS[0]} at most the median … {BARS[-1]} {text} longer"
    else:
        yield f"{BARS[0]} at most the median"


def _lane_lines(found: dict[str, Any], columns: int) -> Iterator[str]:
    """Yield the phases over time as lines, and what the letters mean."""
    if not found["bars"]:
        yield "no phases in these steps"
        return
    each = "" if found["width"] == 1 else f", {found['width']:,} steps in a bar"
    yield f"steps {found['first']:,} to {found['last']:,}{each}, {seconds_text(found['span_s'])}"
    for label, lane in zip(found["labels"], build_lanes(found, columns), strict=True):
        name = _shortened(label)
        yield f"{name}{' ' * (_NAME_WIDTH - cell_width(name))}│{lane}".rstrip()
    if (more := found["n_labels"] - len(found["labels"])) > 0:
        yield f"{more} more labels; choose by --label"
    meant = zip(phase_letters(found["phases"]), map(printable, found["phases"]), strict=True)
    yield ", ".join([*(f"{letter} {phase}" for letter, phase in meant), f"{NO_PHASE} no phase"])


def _cell(units: int | None) -> str:
    return " " if units is None else BARS[-(-units * (len(BARS) - 1) // UNITS)]


def _shortened(name: str) -> str:
    name = printable(name)
    while cell_width(name) > _NAME_WIDTH:
        name = f"{name.removesuffix('…')[:-1]}…"
    return name


def _step_sheet(found: dict[str, Any]) -> Sheet:
    """Return the phases of a step: a row per label, a column per phase, and the medians."""
    rows = found["rows"]
    phases = sorted({row["phase"] for row in rows}, key=lambda phase: (phase not in _PHASES_OF_STEP, phase))
    sheet = Sheet([Column("label", is_name=True), *(Column(phase, is_number=True) for phase in phases)])
    typical = {row["phase"]: row["typical_s"] for row in rows}
    by_label: dict[str, dict[str, float]] = {}
    for row in rows:
        by_label.setdefault(row["label"], {})[row["phase"]] = row["seconds"]
    if rows:
        sheet.add(plain_cell("median", "dim"), *(seconds_text(typical[phase]) for phase in phases))
    for label, seconds in by_label.items():
        cells = (seconds_text(seconds[phase]) if phase in seconds else "" for phase in phases)
        sheet.add(plain_cell(label), *cells)
    more = found["n_labels"] - len(by_label)
    sheet.caption = f"{more} more labels" if more > 0 else "" if rows else f"no phases in step {found['step']}"
    sheet.is_partial = more > 0
    return sheet
