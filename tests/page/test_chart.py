"""Pure functions of charts, small curves and tables, in tables: one page evaluates them all."""

import itertools
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.support.page_site import Site

EVALUATE = """async (cases) => {
  const found = [];
  for (const [module, name, values] of cases) {
    found.push((await import(`./static/js/${module}.js`))[name](...values));
  }
  return found;
}"""
NAMES = [{"y": 50}, {"y": 52}, {"y": 10}]
COLUMNS = [{"width": 100}, {"width": 50}, {"width": 80}]
# Module below static/js, function, arguments; the result.
CASES: list[tuple[str, str, list[Any], Any]] = [
    ("charts/chart", "logRoom", [0.0003, 0.0003], [0.00015, 0.0006]),  # a constant series is in the middle
    ("charts/chart", "logRoom", [None, None], [1, 10]),
    ("charts/chart", "logRoom", [5e-324, 1.7e308], [5e-324, 1.7976931348623157e308]),
    ("charts/chart", "logSplits", [0.00015, 0.0006], [0.0002, 0.0003, 0.0004, 0.0005, 0.0006]),
    ("charts/chart", "logSplits", [48, 250], [50, 60, 70, 80, 90, 100, 200]),  # round numbers in a small part, too
    ("charts/chart", "logSplits", [2100, 2600], [2100, 2200, 2300, 2400, 2500, 2600]),
    ("charts/chart", "spreadNames", [NAMES, 0, 100, 11], [{"y": 10}, {"y": 50}, {"y": 61}]),
    ("charts/chart", "spreadNames", [NAMES, 0, 60, 11], [{"y": 10}, {"y": 49}, {"y": 60}]),  # there is no room below
    ("charts/chart", "spreadNames", [[{"y": 5}] * 64, 0, 22, 11], [{"y": 0}, {"y": 11}, {"y": 22}]),
    ("charts/chart", "lineStyle", [7], {"colour": "--series-8", "dash": None}),
    ("charts/chart", "lineStyle", [8], {"colour": "--series-9", "dash": [6, 3]}),
    ("charts/chart", "lineStyle", [23], {"colour": "--series-8", "dash": [6, 3]}),
    ("charts/chart", "lineStyle", [24], {"colour": "--series-9", "dash": [2, 3]}),
    ("charts/chart", "axisText", [1.2e14, [1.1e14, 1.2e14]], "1.2e14"),
    ("charts/chart", "axisText", [100, [None, None, 100, 200]], "100"),  # None: there is no room for its text
    ("charts/sparklines", "pathOf", [[1, None, None, 3]], "M12.5 18.0L87.5 2.0"),  # logged in few of the parts
    ("charts/sparklines", "pathOf", [[None, 2, None, None]], "M37.5 10.0h0"),  # a dot
    ("charts/sparklines", "pathOf", [[1, "nan", 3, 3]], "M12.5 18.0h0M62.5 2.0L87.5 2.0"),
    ("tables/table", "fittedWidths", [COLUMNS, [300, 20, 120], 1000], [300, 50, 120]),
    ("tables/table", "fittedWidths", [COLUMNS, [300, 20, 120], 350], [200, 50, 100]),  # half of what they lack
    ("tables/table", "fittedWidths", [COLUMNS, [300, 20, 120], 200], [100, 50, 80]),  # the table scrolls
    ("text/texts", "durationText", [0], "0 s"),
    (
        "views/run/saved_files",
        "tableText",
        [{"head": ["a"], "rows": [["1"]] * 20, "nRows": 30}],
        "20 of 30 rows, 1 column.",
    ),
    ("views/run/saved_files", "tableText", [{"head": ["a"], "rows": [["1"]], "nRows": 1}], "1 row, 1 column."),
]


def test_axes_names_small_curves_and_columns(curved: Site, page: Page) -> None:
    curved.visit(page, "#/runs")
    found = page.evaluate(EVALUATE, [[module, name, values] for module, name, values, _ in CASES])
    for (module, name, values, wanted), result in zip(CASES, found, strict=True):
        near = result == pytest.approx(wanted) if isinstance(result, list) and all(map(is_number, result)) else False
        assert near or result == wanted, (module, name, values, result)


def is_number(value: object) -> bool:
    return isinstance(value, int | float)


def test_a_chart_over_seconds_has_ticks_at_whole_minutes(curved: Site, page: Page) -> None:
    curved.visit(page, "#/runs")
    steps = page.evaluate("import('./static/js/text/texts.js').then(({ TIME_STEPS }) => TIME_STEPS)")
    assert steps == sorted(steps)
    assert all(step % 60 == 0 for step in steps if step >= 60) and 100 not in steps


TIME_AXIS = """async () => {
  const { Chart } = await import("./static/js/charts/chart.js");
  const texts = [];
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const half = this.measureText(text).width / 2;
    if (this.textAlign === "center" && text.includes(":")) texts.push([x - half, x + half, this.canvas.width]);
    return draw.apply(this, arguments);
  };
  const element = document.body.appendChild(document.createElement("div"));
  element.style.width = "380px";
  const chart = new Chart(element, document.createElement("div"), { label: "x", isUtc: true });
  const x = [0, 1, 2].map((second) => 1767326410 + second);
  chart.draw({ x, kind: "time", lines: [{ name: "a", values: [0, 5, 9], colour: "--series-1" }], marks: [] });
  await new Promise((resolve) => setTimeout(resolve));
  CanvasRenderingContext2D.prototype.fillText = draw;
  return texts;
}"""


def test_the_times_of_an_axis_over_seconds_are_whole_and_apart(curved: Site, page: Page) -> None:
    curved.visit(page, "#/runs")
    texts = page.evaluate(TIME_AXIS)
    assert len(texts) >= 3
    assert all(left >= 0 and right <= width for left, right, width in texts), texts
    assert all(one[1] + 6 <= other[0] for one, other in itertools.pairwise(texts)), texts
