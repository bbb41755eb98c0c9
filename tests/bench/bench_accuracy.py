"""How exact the statistics of a host and a rank are, beside readings taken in another way in the same second."""

import os
import tempfile
from pathlib import Path

from chiplog_schemas.model.system_metrics import HOST_METRICS, RANK_METRICS
from tests.bench.figure import Figure
from tests.support.independent_readings import ROUNDING, Accuracy
from tests.support.observed_rank import observe

WATCHED_S = float(os.environ.get("CHIPLOG_BENCH_ACCURACY_S", "60"))
ERROR_MAX_PERCENT = 1.0


def measure() -> list[Figure]:
    """Compare each metric for a minute, or CHIPLOG_BENCH_ACCURACY_S."""
    with tempfile.TemporaryDirectory(dir=".") as folder:  # on a disk, for bytes that are written to it
        found = observe(WATCHED_S, Path(folder))
    for name in (HOST_METRICS | RANK_METRICS).keys() - found.keys():
        print(f"not on this machine: {name}")
    return [_figure(name, found[name]) for name in HOST_METRICS | RANK_METRICS if name in found]


def _figure(name: str, of: Accuracy) -> Figure:
    if of.n == 0:
        return Figure(f"{name}: samples", 0, "", at_least=1)
    if of.is_counter:
        beside = f"{of.n} samples, grown by {of.grown:,.10g}"
        return Figure(f"{name}: outside of the readings around", of.n_outside, "samples", 0.0, yardstick=beside)
    beside, at_most = f"{of.n} samples, {of.error:,.3g} in its unit", ERROR_MAX_PERCENT
    if name in ROUNDING and of.error <= ROUNDING[name]:
        beside += f"; rounded to {ROUNDING[name]:g}"
        at_most = max(at_most, 100 * of.share)
    return Figure(f"{name}: median error", 100 * of.share, "%", at_most, yardstick=beside)
