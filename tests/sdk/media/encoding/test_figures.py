"""Figures of matplotlib as PNG."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import matplotlib
import pytest
from PIL import Image

from chiplog.media.encoding.figures import draw_png, is_drawn
from chiplog.values.media_value import MediaError

matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture
def figure() -> Iterator[Any]:
    figure, axes = plt.subplots(figsize=(2, 1), dpi=50)
    axes.plot([1, 2])
    yield figure
    plt.close("all")


def test_a_figure_its_parts_and_pyplot_are_drawn(figure: Any) -> None:
    [axes] = figure.axes
    for value in (figure, axes, axes.lines[0], plt):
        assert is_drawn(value)
        assert Image.open(BytesIO(draw_png(value))).size == (100, 50)
    assert not is_drawn(1) and not is_drawn("a")


def test_a_closed_figure_is_still_drawn_but_pyplot_has_none(figure: Any) -> None:
    plt.close(figure)
    assert draw_png(figure)
    with pytest.raises(MediaError, match=r"no figure is open in pyplot; log it before plt.close\(\)"):
        draw_png(plt)
    assert plt.get_fignums() == []


def test_a_cleared_figure_and_an_artist_without_one_are_refused(figure: Any) -> None:
    line = matplotlib.lines.Line2D([0], [1])
    with pytest.raises(MediaError, match="it belongs to no figure"):
        draw_png(line)
    figure.clf()
    with pytest.raises(MediaError, match="the figure is empty, as after"):
        draw_png(figure)


def test_an_object_that_draws_itself_is_drawn(figure: Any) -> None:
    class Grid:  # as seaborn's
        def savefig(self, file: Any, format: str) -> None:
            figure.savefig(file, format=format)

    assert is_drawn(Grid()) and draw_png(Grid()).startswith(b"\x89PNG")
