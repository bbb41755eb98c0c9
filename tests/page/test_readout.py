"""What the legend of a chart says of each value, in tables: one page evaluates them all."""

import math
from typing import Any

from playwright.sync_api import Page, expect

from tests.support.page_site import Site

Line = dict[str, Any]


def line(label: str, values: list[float | None], **more: Any) -> Line:
    """Return a line of an answer, whose missing values are no gaps."""
    return {"label": label, "mean": values, "min": None, "max": None, "gaps": [], "gap_texts": [], **more}


def lines(width: int, *of: Line) -> dict[str, Any]:
    """Return a curve whose places are the steps 0, width, 2 * width …; the last bucket has a step less."""
    steps = [at * width for at in range(len(of[0]["mean"]))]
    last = steps[-1] + max(width - 2, 0)
    return {
        "kind": "lines",
        "width": width,
        "step": steps,
        "ts": [1000 * s for s in steps],
        "last_step": last,
        "lines": of,
    }


SPIKY = line("a", [1.0, 0.843], min=[0.5, 0.5], max=[1.25, 1.0], last={"step": 6, "value": 0.5})
VALUES = line("a", [1.0, None, 3.0], last={"step": 2, "value": 3.0})
LATE = line("b", [5.0, 6.0, None], last={"step": 1, "value": 6.0})
BROKEN = line("a", [1.0, None], gaps=[1], gap_texts=["nan"], last={"step": 1, "value": "nan"})
BAND = {
    "kind": "band",
    "width": 4,
    "step": [0, 4],
    "ts": [0, 4000],
    "last_step": 6,
    "n_labels": 64,
    "n_present": [64, 64],
    "min": [0.0, 1.0],
    "median": [2.5, 3.5],
    "max": [8.0, 9.0],
    "min_label": ["x", "x"],
    "max_label": ["y", "y"],
    "last": {"step": 6, "min": 1.5, "median": 3.0, "max": 7.0},
}
SAMPLED = lines(16, line("gpu", [70.0], last={"step": 15, "value": 71.0}))
# A name: curves, weight of the smoothing, place (None: the end); where, and a text for each line.
READOUTS: dict[str, tuple[list[Any], float, int | None, str, list[str]]] = {
    "the end is the last value": ([lines(4, SPIKY)], 0, None, "last, step 6", ["0.5"]),
    "a bucket": ([lines(4, SPIKY)], 0, 1, "steps 4–6: mean (least…most)", ["0.843 (0.5…1)"]),
    "a value": ([lines(1, VALUES)], 0, 2, "step 2", ["3"]),
    "the value before has its step": ([lines(1, VALUES, LATE)], 0, 1, "step 1", ["1 at step 0", "6"]),
    "after the end of a line": ([lines(1, VALUES, LATE)], 0, 2, "step 2", ["3", "–"]),
    "ends at several steps": ([lines(1, VALUES, LATE)], 0, None, "last, step 2", ["3", "6 at step 1"]),
    "smoothed and raw": (
        [lines(4, SPIKY)],
        0.5,
        1,
        "steps 4–6: mean (least…most), ~ smoothed",
        ["0.843 (0.5…1) ~0.895333"],
    ),
    "the end, smoothed": ([lines(4, SPIKY)], 0.5, None, "last, step 6, ~ smoothed", ["0.5 ~0.895333"]),
    "NaN": ([lines(1, BROKEN)], 0, 1, "step 1", ["NaN"]),
    "NaN at the end": ([lines(1, BROKEN)], 0.5, None, "last, step 1, ~ smoothed", ["NaN"]),
    "a band": ([BAND], 0, 0, "steps 0–3, median of means", ["8", "2.5", "0"]),
    "the end of a band": ([BAND], 0, None, "last, step 6", ["7", "3", "1.5"]),
    "bounds are not smoothed": ([BAND], 0.5, 1, "steps 4–6, median of means, ~ smoothed", ["9", "3.5 ~3.16667", "1"]),
    "runs with other buckets": (
        [lines(1, VALUES), lines(4, SPIKY)],
        0,
        2,
        "step 2: mean (least…most)",
        ["3", "1 (0.5…1.25) at steps 0–3"],
    ),
}
NUMBERS = [
    (111_111_110_100_000, "1.11111e14"), (1.9995312, "1.99953"), (0.0, "0"), (-3, "-3"), (12_345_678, "12,345,678"),
    (1234567.5, "1,234,568"), (1234.5, "1,234.5"), (0.00012345678, "0.000123457"), (1e-7, "1e-7"), (-2.5e-5, "-2.5e-5"),
    (1e15, "1e15"), (0.30000000000000004, "0.3"), (None, ""), ("text", "text"), (True, "true"),
]  # fmt: skip


READ = """async (cases) => {
  const { modelOf } = await import("./static/js/charts/curve_model.js");
  const { readout } = await import("./static/js/charts/readout.js");
  return cases.map(([curves, weight, at]) => {
    const runs = curves.map((curve, number) => ({ run: `r${number}`, name: `r${number}`, startMs: 0, curve }));
    return readout(modelOf(runs, { x: "step", isLog: false, weight, range: null }).model, at);
  });
}"""


def test_the_legend_has_exact_values_and_their_steps(curved: Site, page: Page) -> None:
    curved.visit(page, "#/runs")
    found = page.evaluate(READ, [[curves, weight, at] for curves, weight, at, _, _ in READOUTS.values()])
    read = {name: (one["where"], one["texts"]) for name, one in zip(READOUTS, found, strict=True)}
    # Of several runs a band has one visible line; hidden and silent lines have a text nevertheless.
    assert read == {name: (where, texts) for name, (_, _, _, where, texts) in READOUTS.items()}
    numbers = "(all) => import('./static/js/text/texts.js').then(({ numberText }) => all.map((one) => numberText(one)))"
    assert page.evaluate(numbers, [number for number, _ in NUMBERS]) == [text for _, text in NUMBERS]


def test_a_system_metric_beside_values_has_the_steps_of_its_sample(curved: Site, page: Page) -> None:
    curved.visit(page, "#/runs")
    both = """async ([curve, sampled]) => {
      const { combined, modelOf } = await import("./static/js/charts/curve_model.js");
      const { readout } = await import("./static/js/charts/readout.js");
      const view = { x: "step", isLog: false, weight: 0, range: null };
      const modelOfOne = (curve) => modelOf([{ run: "r", name: "r", startMs: 0, curve }], view).model;
      const [one, other] = [curve, sampled].map(modelOfOne);
      const lines = other.lines.map((line) => ({ ...line, isOnRight: true }));
      const model = combined(one, { ...other, lines });
      return [2, null].map((at) => readout(model, at));
    }"""
    near, end = page.evaluate(both, [lines(1, VALUES), SAMPLED])
    assert (near["where"], near["texts"]) == ("step 2", ["3", "70 at steps 0–14"])
    assert (end["where"], end["texts"]) == ("last, step 2", ["3", "71 at step 15"])


def test_the_csv_has_values_or_says_that_it_has_buckets(curved: Site, page: Page) -> None:
    curved.visit(page, "#/runs")
    rows = "(runs) => import('./static/js/charts/curve_model.js').then(({ rowsOf }) => rowsOf(runs))"
    time = ["1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.000Z"]
    assert page.evaluate(rows, [{"run": "r", "curve": lines(1, BROKEN)}]) == [
        ["run", "label", "step", "time", "value"],
        ["r", "a", 0, time[0], 1],
        ["r", "a", 1, time[1], "nan"],
    ]
    bucketed = page.evaluate(rows, [{"run": "r", "curve": lines(4, SPIKY)}])
    assert bucketed[0] == ["run", "label", "first_step", "last_step", "time", "mean", "min", "max"]
    assert bucketed[2][2:4] + bucketed[2][5:] == [4, 6, 0.843, 0.5, 1]
    band = page.evaluate(rows, [{"run": "r", "curve": BAND}])
    assert band[0][4:] == ["time", "median_of_means", "min", "max"] and band[1][1] == "64 labels"


def test_a_long_run_has_exact_ends_and_hovering_describes_the_bucket(curved: Site, page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 1600})
    curved.visit(page, "#/run/long/curves")
    loss = page.locator('.panel.curve[data-key="train/loss"]')
    expect(loss.locator(".curve-where")).to_contain_text("last, step 3,999")
    expect(loss.locator(".curve-line")).to_have_text(["rank00", "rank10.5"])  # a bucket's mean is 1.4
    loss.locator(".curve-box").press("ArrowRight")
    expect(loss.locator(".curve-where")).to_have_text("steps 0–15: mean (least…most)")
    expect(loss.locator(".curve-line")).to_have_text(["rank01.5 (1…2)", "rank11.5 (1…2)"])
    page.set_viewport_size({"width": 2560, "height": 1600})
    loss.get_by_role("button", name="Wide").click()
    expect(loss.locator(".curve-notes")).to_contain_text("each point covers 2 steps")
    assert math.isclose(loss.locator("canvas").evaluate("canvas => canvas.clientWidth"), 2500, rel_tol=0.05)
