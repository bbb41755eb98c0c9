"""Pure: histograms over steps as lines of a terminal: a row for each range of values, a column for each step."""

import math
from collections.abc import Iterator
from typing import Any

from chiplog_cli.tables.format_values import number_text
from chiplog_cli.tables.tables import BARS


def histogram_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the rows of `read_histograms` from the largest values down, each after the lower bound of its values."""
    names = [number_text(float(f"{edge:.3g}")) for edge in found["edges"]]
    width = max(map(len, names))
    n_columns = len(found["step"])
    yield f"{names[-1]:>{width}}"
    for row in reversed(range(len(names) - 1)):
        counts = found["counts"][row * n_columns : (row + 1) * n_columns]
        yield f"{names[row]:>{width}} │{''.join(_cell(count, found['largest']) for count in counts)}".rstrip()


def legend(found: dict[str, Any]) -> str:
    """Return the meaning of the cells."""
    most = number_text(float(f"{found['largest']:.3g}"))
    return f"{BARS[0]} few values … {BARS[-1]} {most} values of one step"


def bar(count: float, most: float, width: int) -> str:
    """Return a count as a bar; any count above 0 is visible."""
    return BARS[-1] * math.ceil(count / most * width) if most else ""


def _cell(count: float, most: float) -> str:
    """Return a blank for no value, else a character that rises with the count."""
    return BARS[min(int(count / most * len(BARS)), len(BARS) - 1)] if count else " "
