"""Curves of metrics, for three questions that differ in their points.

- `step_curves`, of the page: panels that grow and are zoomed. Values, or buckets of 2^n steps with minimum, mean and
  maximum. It reads points at several resolutions: the cost does not depend on the length of a run, and a page that asks
  again for the end gets the same buckets.
- `plotted_points`, of `chiplog plot`: one still picture. Columns of equal width in x, which is the step, the time or
  another metric, also in its logarithm; both extremes stay at their own x. It reads all values.
- `history`, of `chiplog.run_history`: a table for a program, with a column for each metric. All values of all steps, or
  means of buckets as of the macro `downsample()`.

The rules of the x axis are the same. The step metric of a key is that of `step_metrics`. A metric whose steps are all
the same is a curve over time, except in a history, whose rows are steps. Of a step that several attempts of a label did
the newest attempt counts; a plot over time has all. Smoothing is left to what draws. The page and the plot both use the
exponential moving average without the bias of its start.
"""

from chiplog_client.reads.curves.step_curves import (
    ANSWER_MAX,
    LINES_MAX,
    POINTS_MAX,
    VALUES_MAX,
    WIDTH_MAX,
    CurvesRequest,
    band_of,
    bucket_width,
    lines_of,
    read_curves,
    shorten,
)

__all__ = [
    "ANSWER_MAX",
    "LINES_MAX",
    "POINTS_MAX",
    "VALUES_MAX",
    "WIDTH_MAX",
    "CurvesRequest",
    "band_of",
    "bucket_width",
    "lines_of",
    "read_curves",
    "shorten",
]
