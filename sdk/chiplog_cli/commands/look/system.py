"""`chiplog system`: samples of the GPUs, hosts and processes of a run as lines, and what went wrong with GPUs."""

from collections.abc import Iterator
from typing import Any

import click

from chiplog_cli.completion import complete_labels, complete_runs
from chiplog_cli.options import local_option, open_client, require_label, resolve_run, source_options
from chiplog_cli.output import Output, output_options
from chiplog_cli.suggestions import require_known
from chiplog_cli.tables.fitted_table import Sheet
from chiplog_cli.tables.format_values import Zone, common_timezone, number_text
from chiplog_cli.tables.plain_table import Column
from chiplog_cli.tables.tables import plain_cell
from chiplog_cli.tables.writers import write_object, write_sheets
from chiplog_client.reads.system.system_curves import SystemRequest, read_names, read_system_curves
from chiplog_client.results.sparkline import sparkline

POINTS = 40  # of a line: half the width of a terminal
LINES_MAX = 64  # devices; above that a band
MARKS_SHOWN = 20
# The sizes of the units of each quantity of a `SampleName`, from large to small, as on the page.
_UNITS = {
    "share": ((0.01, "%"),),
    "cores": ((0.01, "% of a core"),),
    "bytes": ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "hertz": ((1e9, "GHz"), (1e6, "MHz"), (1, "Hz")),
    "watts": ((1, "W"),),
    "celsius": ((1, "°C"),),
    "joules": ((1, "J"),),
    "seconds": ((1, "s"),),
}
_UNITS_OF_RATES = {"joules": ((1, "W"),), "seconds": ((0.01, "% of the time"),)}


@click.command()
@click.argument("run", default="latest", shell_complete=complete_runs)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--label", "labels", multiple=True, metavar="NAME", shell_complete=complete_labels, help="Only theirs.")
@click.option("--by", type=click.Choice(("time", "step")), help="Over which axis the lines go.  [default: time]")
@output_options("table", "json", "md")
@local_option
@source_options
def system(
    run: str,
    names: tuple[str, ...],
    labels: tuple[str, ...],
    by: str | None,
    output: Output,
    is_local: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Show samples of the GPUs, hosts and processes of a run.

    RUN is an ID, the beginning of one, a name, or `latest`, which is also the default. Without a NAME it lists what was
    sampled, and the last marks: throttling and errors of GPUs. With names such as hw.gpu.utilization it shows a line
    for each device over the time of the run; counters are shown as growth per second. With --by step a sample is at the
    last step that its node had logged by then.
    """
    if by and not names:
        raise click.UsageError(f"--by {by} needs a NAME; chiplog system {run} lists them")
    zone = common_timezone(is_local)
    with open_client(dir_, url) as client:
        run_id = resolve_run(client, run)
        for label in labels:
            require_label(client, run_id, label)
        found = read_names(client, run_id)
        known = [row["name"] for row in found["names"]]
        for name in names:
            require_known(f"sample of run {run_id!r}", name, known, f"chiplog system {run_id} lists all")
        if names:
            request = SystemRequest(
                run_id, names, points=POINTS, labels=labels, lines_max=LINES_MAX, is_by_step=by == "step"
            )
            found = {"curves": read_system_curves(client, request)}
    if output.form == "json":
        write_object(found, output.path, zone)
    else:
        write_sheets(_curves(found["curves"], is_by_step=by == "step") if names else _names(found, zone), output)


def _names(found: dict[str, Any], zone: Zone) -> Iterator[Sheet | str]:
    if not found["names"]:
        yield "no sample"
        return
    columns = [Column("name", is_name=True), Column("what", drop=2), Column("devices", is_number=True)]
    sheet = Sheet([*columns, Column("samples", is_number=True, drop=1), Column("always", is_number=True, drop=3)])
    for row in found["names"]:
        always = "" if row["flat"] is None else _flat_text(row)
        title = row["title"] if row["title"] != row["name"] else ""
        sheet.add(plain_cell(row["name"]), plain_cell(title), str(row["n_devices"]), f"{row['n']:,}", always)
    yield sheet
    if found["marks"]:
        yield ""
        yield _marks(found, zone)


def _marks(found: dict[str, Any], zone: Zone) -> Sheet:
    shown = found["marks"][-MARKS_SHOWN:]
    named = zone.name(row["ts"] for row in shown)
    columns = [Column(f"when ({named})" if named else "when", is_whole=True), Column("step", is_number=True, drop=1)]
    sheet = Sheet([*columns, Column("label"), Column("device", drop=2), Column("what")], "GPUs")
    for row in shown:
        step = "" if row["step"] is None else str(row["step"])
        device, what = plain_cell(row["device"]), plain_cell(row["words"] or row["message"])
        sheet.add(zone.text(row["ts"], "seconds"), step, plain_cell(row["label"] or row["node"]), device, what)
    more = found["n_marks"] - len(shown)
    sheet.caption, sheet.is_partial = f"{more} earlier ones" if more else "", more > 0
    return sheet


def _curves(curves: list[dict[str, Any]], *, is_by_step: bool) -> Iterator[Sheet | str]:
    for number, curve in enumerate(curves):
        if number:
            yield ""
        size, unit = _unit(curve, max(map(abs, _extremes(curve)), default=0.0))
        columns = [Column("", is_name=True), *(Column(name, is_number=True) for name in ("last", "min", "max"))]
        steps = _steps_text(curve) if is_by_step and curve["step"] else ""
        over = Column("over steps" if is_by_step else "over time", is_whole=True)
        sheet = Sheet([*columns, over], f"{curve['title']}{unit and f', {unit}'}{steps}")
        if curve["kind"] == "band":
            last = curve["last"]["median"]
            texts = _texts(size, last, curve["min"], curve["max"])
            sheet.add(plain_cell(f"{curve['n_labels']} devices"), *texts, sparkline(curve["median"]))
        for line in curve.get("lines", ()):
            lows, highs = line["min"] or line["mean"], line["max"] or line["mean"]
            texts = _texts(size, line["last"]["value"], lows, highs)
            sheet.add(plain_cell(line["label"]), *texts, sparkline(line["mean"]))
        if not sheet.rows:
            sheet.caption = "no sample after the first step of its node" if is_by_step else "no sample"
        yield sheet


def _steps_text(curve: dict[str, Any]) -> str:
    """Return the first and the last step of a curve over steps."""
    lasts = [line["last"]["step"] for line in curve.get("lines", [curve])]
    return f", steps {curve['step'][0]:,} to {max(lasts):,}"


def _unit(row: dict[str, Any], most: float) -> tuple[float, str]:
    """Return the size and the name of the unit for values up to `most`. row: `quantity` and `is_rate` of a name."""
    own = _UNITS_OF_RATES.get(row["quantity"]) if row["is_rate"] else None
    sizes = own or _UNITS.get(row["quantity"]) or ((1, ""),)
    size, unit = next((pair for pair in sizes if most >= pair[0]), sizes[-1])
    return size, f"{unit} per second".strip() if row["is_rate"] and own is None else unit


def _flat_text(row: dict[str, Any]) -> str:
    """Return the one value of a name with its unit; 0 has none."""
    if not row["flat"]:
        return "0"
    size, unit = _unit(row, abs(row["flat"]))
    return f"{_number_text(row['flat'] / size)} {unit}".rstrip()


def _number_text(value: float) -> str:
    """Return a number with four digits: samples are no more exact."""
    return number_text(value if value == int(value) else float(f"{value:.4g}"))


def _extremes(curve: dict[str, Any]) -> Iterator[float]:
    columns = [curve["max"], curve["min"]] if curve["kind"] == "band" else []
    columns += [line[name] or line["mean"] for line in curve.get("lines", ()) for name in ("min", "max")]
    return (value for column in columns for value in column if isinstance(value, int | float))


def _texts(size: float, last: Any, lows: list[Any], highs: list[Any]) -> list[str]:
    """Return the newest, the lowest and the highest value in a unit of a size."""
    low = min((value for value in lows if value is not None), default=None)
    high = max((value for value in highs if value is not None), default=None)
    return [
        value if isinstance(value, str) else "" if value is None else _number_text(value / size)
        for value in (last, low, high)
    ]
