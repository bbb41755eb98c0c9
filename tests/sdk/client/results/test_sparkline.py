"""A curve as one line: from the lowest bar to the highest, and values that are not numbers."""

import pytest

from chiplog_client.results.sparkline import sparkline


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], ""),
        ([5.0], "▁"),
        ([3.0, 3.0], "▁▁"),
        (list(range(8)), "▁▂▃▄▅▆▇█"),
        ([-1.0, None, 1.0], "▁·█"),
        ([float("nan"), 0.0, float("inf"), 1.0, float("-inf")], "×▁×█×"),
        ([float("nan")], "×"),
        ([None], "·"),
        ([-1.7e308, 1.7e308, 0.0], "▁█▅"),
    ],
)
def test_bars_go_from_the_lowest_to_the_highest_value(values, shown):
    assert sparkline(values) == shown
