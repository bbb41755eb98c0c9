"""Figures of plotting libraries."""

import json
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image

from chiplog.media.figure import Figure
from chiplog.values.media_value import MediaError

matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


class Plotly:
    """A figure with the two methods of plotly's that are called."""

    def to_plotly_json(self) -> dict[str, Any]:
        return {"data": [{"y": [1, 2]}], "layout": {}}

    def to_json(self) -> str:
        return json.dumps(self.to_plotly_json())


def test_a_figure_of_matplotlib_is_drawn_at_once() -> None:
    figure, axes = plt.subplots(figsize=(2, 1), dpi=50)
    axes.plot([1, 2])
    logged = Figure(figure, caption="loss")
    axes.set_visible(False)
    content = logged.to_content()
    assert (content.kind, content.metadata) == ("figure", {"format": "png", "caption": "loss"})
    assert np.asarray(Image.open(BytesIO(content.data)).convert("L")).min() < 255
    figure.clf()
    with pytest.raises(MediaError, match="the figure is empty"):
        Figure(figure).to_content()
    plt.close("all")


def test_a_figure_of_plotly_becomes_its_json() -> None:
    content = Figure(Plotly()).to_content()
    assert (content.kind, content.metadata) == ("figure", {"format": "plotly.json"})
    assert json.loads(content.data) == Plotly().to_plotly_json()


@pytest.mark.parametrize("value", [None, 1, "a.png", np.zeros((2, 2)), lambda: 1, Plotly])
def test_what_is_not_a_figure_is_said_by_to_content(value: Any) -> None:
    with pytest.raises(MediaError, match=r"is not a figure; log one of matplotlib or plotly, or chiplog\.Image"):
        Figure(value).to_content()
