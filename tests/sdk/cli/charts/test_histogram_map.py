"""Histograms over steps as lines."""

from chiplog_cli.charts.histogram_map import bar, histogram_lines, legend

FOUND = {
    "edges": [-1.0, 0.0, 0.12345, 10.0],
    "step": [0, 5, 10],
    "counts": [1, 0, 80, 40, 0, 0, 0, 0, 2.5],
    "largest": 80,
}


def test_rows_go_down_from_the_largest_values_and_name_their_lower_bound() -> None:
    assert list(histogram_lines(FOUND)) == [
        "   10",
        "0.123 │  ·",
        "    0 │▄",
        "   -1 │· █",
    ]
    assert legend(FOUND) == "· few values … █ 80 values of one step"


def test_a_bar_of_any_count_is_visible() -> None:
    assert [bar(count, 80, 10) for count in (0, 1, 40, 80)] == ["", "█", "█████", "██████████"]
    assert bar(0, 0, 10) == ""
    assert bar(0.01, 0.02, 10) == "█████", "a share of a count"
