"""Write curves as PNG, SVG or PDF with matplotlib, which is imported here alone and only then."""

import os
from collections.abc import Sequence

import click

from chiplog_cli.charts.braille_chart import time_text
from chiplog_cli.charts.curves import Panel

SUFFIXES = (".png", ".svg", ".pdf")
PIXELS = 1000  # of the width
_DPI = 100
_PANEL_INCHES = 3.6
_DASHES = ("-", "--", ":", "-.")  # matplotlib has ten colours; the next ten curves are dashed
_LEGEND_MAX = 20  # names; more hide the curves


def picture_format(path: str) -> str:
    """Return the format for a file by its suffix. Raises UsageError."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise click.UsageError(f"file {path!r} has none of the suffixes {', '.join(SUFFIXES)}; give one of them")
    return suffix[1:]


def require_matplotlib() -> None:
    """Raise ClickException with the remedy if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise click.ClickException(
            f"a picture needs matplotlib, which cannot be imported ({error}); pip install 'chiplog[plot]'"
        ) from error


def write_picture(
    panels: Sequence[Panel], path: str, form: str, *, is_log_x: bool = False, is_log_y: bool = False
) -> None:
    """Write panels below one another into a new file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "chiplog"}):  # text stays text, and files comparable
        figure = Figure(figsize=(PIXELS / _DPI, _PANEL_INCHES * len(panels) + 0.4), dpi=_DPI, layout="constrained")
        for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
            for number, curve in enumerate(panel.curves):
                colour, dashes = f"C{number % 10}", _DASHES[number // 10 % len(_DASHES)]
                if curve.low is not None:
                    axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.25, linewidth=0)
                if curve.raw is not None:
                    axes.plot(curve.raw.x, curve.raw.y, color=colour, alpha=0.25, linewidth=0.8)
                marker = "o" if len(curve.x) == 1 else None
                name = _plain(curve.name)
                axes.plot(curve.x, curve.y, dashes, color=colour, linewidth=1.2, marker=marker, label=name)
            axes.set_xscale("log" if is_log_x else "linear")
            axes.set_yscale("log" if is_log_y else "linear")
            axes.set_title(_plain(panel.title), loc="left", fontsize=11)
            axes.set_xlabel(_plain(panel.x_title))
            axes.grid(alpha=0.3)
            if panel.is_time and not is_log_x:
                axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value)))
            elif not is_log_x and panel.x_title == "step":
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if len(panel.curves) <= _LEGEND_MAX:
                axes.legend(fontsize=8, loc="best")
        figure.savefig(path, format=form, metadata={"Date": None} if form == "svg" else None)


def _plain(text: str) -> str:
    """Return a text without matplotlib's marks for formulas."""
    return text.replace("$", r"\$")
