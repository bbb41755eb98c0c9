"""Figures of matplotlib and of libraries that draw with it, as PNG."""

import sys
from io import BytesIO
from typing import Any

from chiplog.values.media_value import MediaError


def is_drawn(value: Any) -> bool:
    """Return True if a value is a figure of matplotlib, a part of one, the module pyplot, or has such a figure."""
    if getattr(value, "__name__", "") == "matplotlib.pyplot":
        return True
    return "matplotlib" in sys.modules and (
        type(value).__module__.startswith("matplotlib.") or callable(getattr(value, "savefig", None))
    )


def draw_png(value: Any) -> bytes:
    """Return what a figure shows now, as PNG in the figure's own size and resolution. Raises MediaError."""
    figure = _figure_of(value)
    if hasattr(figure, "get_children") and len(figure.get_children()) <= 1:  # its background
        raise MediaError("the figure is empty, as after clf(); log it before it is cleared")
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _figure_of(value: Any) -> Any:
    if getattr(value, "__name__", "") == "matplotlib.pyplot":
        if not value.get_fignums():
            raise MediaError("no figure is open in pyplot; log it before plt.close(), or log the figure itself")
        return value.gcf()
    for _ in range(3):  # an artist of a subfigure of a figure
        if callable(getattr(value, "savefig", None)):
            return value
        value = getattr(value, "figure", None)
    raise MediaError("it belongs to no figure; log the figure itself")
