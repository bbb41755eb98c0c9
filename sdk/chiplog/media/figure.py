"""Figures of plotting libraries: of matplotlib as PNG, of plotly as JSON."""

from typing import Any

from chiplog.media.encoding.captured import CapturedMedia, caption_metadata
from chiplog.media.encoding.figures import draw_png, is_drawn
from chiplog.safety.lenient_calls import hide_unknown_arguments
from chiplog.values.media_value import Content, MediaError


class Figure(CapturedMedia):
    """A figure, logged as one value. It is drawn at once.

    Never raises: `log()` counts a value that cannot be stored, and says why in one line.

    Args:
        figure: One of these.

            - A figure of matplotlib, its axes, or `plt` for the current one. It becomes a PNG, as its `savefig` draws
              it. Libraries that draw with matplotlib, such as seaborn, are accepted too.
            - A figure of plotly. It becomes plotly's JSON, which `plotly.io.from_json` reads. HTML would need plotly's
              own script from the network, or 4 MB of it in each figure.
        caption: A text below the figure.

    Examples:
        >>> run.log({"curve": chiplog.Figure(figure)}, step=step)
    """

    @hide_unknown_arguments
    def __init__(self, figure: Any = None, caption: str | None = None, *more: Any, **unknown: Any) -> None:
        self._data = b""
        self._metadata: dict[str, Any] = {}

        def read() -> None:
            self._data, form = _read(figure)
            self._metadata = {"format": form, **caption_metadata(caption)}

        self._capture(figure, read, more, unknown)

    def _encode(self) -> Content:
        return Content("figure", self._data, self._metadata)


def _read(figure: Any) -> tuple[bytes, str]:
    if callable(getattr(figure, "to_plotly_json", None)) and not isinstance(figure, type):
        return str(figure.to_json()).encode(), "plotly.json"
    if is_drawn(figure):
        return draw_png(figure), "png"
    kind = type(figure).__name__
    raise MediaError(
        f"a value of type {kind} is not a figure; log one of matplotlib or plotly, or chiplog.Image(pixels)"
    )
