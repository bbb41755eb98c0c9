"""`chiplog plot`: curves of a run in the terminal, or as a picture."""

import os
import shutil

import click

from chiplog_cli.charts.braille_chart import draw_panel
from chiplog_cli.charts.curves import PlotRequest, read_panels
from chiplog_cli.charts.picture import PIXELS, picture_format, require_matplotlib, write_picture
from chiplog_cli.completion import complete_keys, complete_runs
from chiplog_cli.options import open_client, resolve_run, source_options
from chiplog_cli.tables.tables import print_tables
from chiplog_cli.tables.writers import atomic_output

CURVES_MAX = 8  # as many colours tell apart
_LINES_MIN = 12  # of a panel; more panels than fit scroll
EXAMPLES = """\b
Examples:
chiplog plot latest train/loss
chiplog plot gpt-1 train/loss val/loss --together --log-y
chiplog plot gpt-1 train/loss --run gpt-2 --smooth 0.9 -o loss.png
chiplog plot gpt-1 grad_norm --x time --label rank0 --label rank7
"""


@click.command(epilog=EXAMPLES)
@click.argument("run", shell_complete=complete_runs)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=complete_keys)
@click.option("--run", "more", multiple=True, metavar="RUN", help="Another run in the same picture; may be repeated.")
@click.option(
    "--x",
    metavar="X",
    help="step, time (since the run's start) or a key.  [default: as define_metric says, else step, or time where all "
    "steps are the same]",
)
@click.option("--label", "labels", multiple=True, metavar="NAME", help="Only this label; may be repeated.")
@click.option(
    "--curves-max",
    type=click.IntRange(1),
    default=CURVES_MAX,
    show_default=True,
    metavar="N",
    help="More labels than N become a band of minimum, median and maximum.",
)
@click.option("--together", is_flag=True, help="All keys with one y axis, instead of one below the other.")
@click.option(
    "--smooth",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="W",
    help="Exponential moving average, of weight W of what came before: 0 to below 1.",
)
@click.option("--log-x", is_flag=True, help="Logarithmic x axis.")
@click.option("--log-y", is_flag=True, help="Logarithmic y axis.")
@click.option("-o", "--output", metavar="FILE", help="Write a .png, .svg or .pdf; needs chiplog[plot].")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@source_options
def plot(
    run: str,
    keys: tuple[str, ...],
    more: tuple[str, ...],
    x: str | None,
    labels: tuple[str, ...],
    curves_max: int,
    together: bool,
    smooth: float,
    log_x: bool,
    log_y: bool,
    output: str | None,
    force: bool,
    dir_: str | None,
    url: str | None,
) -> None:
    """Plot metrics: a curve per label, or a band of many labels, in the terminal or as a picture.

    RUN is an ID, the beginning of one, a name, or `latest`. Each KEY has a plot with its own y axis. Points are
    down-sampled to the width of the picture; of each column the lowest and the highest stay, so that no spike is lost.
    Of a step that was done in several attempts the newest one counts, on the axis `time` all do. NaN and infinite
    values are left out and counted. In a band the median is that of the labels at each step.

    --smooth W draws s(i) / (1 - W^i) with s(i) = W s(i-1) + (1 - W) value(i), as TensorBoard and W&B do. A column of n
    points counts as n points of their mean.
    """
    form = ""
    if output is not None:
        form = picture_format(output)
        if os.path.lexists(output) and not force:  # safeguard: picture-kept
            raise click.UsageError(f"file {output!r} exists; --force replaces it")
        require_matplotlib()
    elif force:
        raise click.UsageError("--force replaces the file of -o, which is missing; give -o FILE")
    size = shutil.get_terminal_size((80, 24))
    with open_client(dir_, url) as client:
        runs = list(dict.fromkeys(resolve_run(client, name) for name in (run, *more)))
        request = PlotRequest(
            runs=runs,
            keys=list(dict.fromkeys(keys)),
            n_buckets=PIXELS if output is not None else 2 * size.columns,
            x=x,
            labels=labels,
            is_log_x=log_x,
            is_log_y=log_y,
            smooth=smooth,
            curves_max=curves_max,
            is_together=together,
        )
        panels, notes = read_panels(client, request)
    if output is not None:
        with atomic_output(output) as temporary:
            write_picture(panels, temporary, form, is_log_x=log_x, is_log_y=log_y)
    else:
        height = max(_LINES_MIN, (size.lines - 2) // len(panels))
        for panel in panels:
            print_tables(*draw_panel(panel, size.columns, height, is_log_x=log_x, is_log_y=log_y))
    for note in notes:
        click.echo(note, err=True)
