"""Curves in a terminal: they fit, ticks are round, and each curve has its letter and its last value."""

import math

import pytest
from rich.cells import cell_len

from chiplog_cli.charts.braille_chart import Axis, draw_panel, tick_text, time_text
from chiplog_cli.charts.curves import Curve, Panel


def rising(n: int = 100) -> Curve:
    return Curve("rank0", [float(x) for x in range(n)], [float(x) for x in range(n)])


def texts(panel: Panel, width: int = 80, height: int = 20, **more: bool) -> list[str]:
    return [line.plain for line in draw_panel(panel, width, height, **more)]


@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 24), (100, 30), (160, 50)])
@pytest.mark.parametrize("n", [1, 4, 30])
def test_a_chart_fits(width: int, height: int, n: int) -> None:
    curves = [Curve(f"rank{k}", [0.0, 1.0, 2.0], [k + 1.0, k + 5.0, k + 2.0]) for k in range(n)]
    lines = texts(Panel("train/loss", "step", curves), width, height)
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= max(height, 10) + 1 or n == 30


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right() -> None:
    lines = texts(Panel("loss", "step", [rising()]))
    dots = [line[5:] for line in lines[1:-3]]
    assert dots[-1].startswith("⣀") or dots[-1][0] != " "
    assert dots[0].rstrip()[-1] != " " and len(dots[0].rstrip()) > 65
    columns = [len(line) - len(line.lstrip()) for line in dots]
    assert columns == sorted(columns, reverse=True)


def test_a_straight_line_has_a_dot_in_each_column_at_its_value() -> None:
    lines = texts(Panel("loss", "step", [Curve("a", [0.0, 10.0], [0.0, 0.0])]))
    rows = [line for line in lines[1:-3] if any(0x2800 < ord(c) < 0x2900 for c in line)]
    assert len(rows) == 1
    assert sum(0x2800 < ord(c) < 0x2900 for c in rows[0]) >= 70


def test_a_band_is_filled_and_the_median_is_drawn_over_it() -> None:
    xs = [float(x) for x in range(50)]
    band = Curve("64 labels", xs, [5.0] * 50, low=[0.0] * 50, high=[10.0] * 50)
    lines = texts(Panel("loss", "step", [band]), 60, 20)
    dots = [sum((ord(c) - 0x2800).bit_count() for c in line if 0x2800 < ord(c) < 0x2900) for line in lines[1:-3]]
    assert min(dots) > 40, "each line is filled"
    assert sum(count > 1.4 * min(dots) for count in dots) == 1, "the median is a whole line of dots"


def test_several_curves_have_letters_at_their_ends_and_in_the_legend() -> None:
    curves = [Curve("rank0", [0.0, 1.0], [0.0, 10.0]), Curve("rank1", [0.0, 1.0], [10.0, 0.0])]
    lines = texts(Panel("loss", "step", curves))
    assert lines[1].endswith(" a") and any(line.endswith(" b") for line in lines[-5:-2])
    assert lines[-1] == "a rank0 10   b rank1 0"
    assert texts(Panel("loss", "step", [rising()]))[-1] == "rank0 99"


@pytest.mark.parametrize(
    ("low", "high", "is_log", "count", "ticks"),
    [
        (0.0, 10.0, False, 5, [0, 2, 4, 6, 8, 10]),
        (0.0, 4999.0, False, 4, [0, 2000, 4000]),
        (1.0, 1000.0, True, 4, [1, 10, 100, 1000]),
        (0.57, 4.1, True, 4, [1, 2, 3, 4]),
        (5.0, 5.0, False, 4, [3, 4, 5, 6, 7]),
        (0.5, 4.0, False, 2, [1, 2, 3, 4]),
    ],
)
def test_ticks_are_round(low: float, high: float, is_log: bool, count: int, ticks: list[float]) -> None:
    assert Axis(low, high, is_log).ticks(count) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("low", "high"), [(-1.7e308, 1.7e308), (0.0, 5e-324), (1e-300, 1e300), (1e16, 1e16 + 2), (-5.0, -5.0), (0.0, 0.0)]
)
@pytest.mark.parametrize("is_log", [False, True])
def test_any_finite_range_can_be_drawn(low: float, high: float, is_log: bool) -> None:
    if is_log and low <= 0:
        return
    lines = texts(Panel("x", "step", [Curve("a", [0.0, 1.0, 2.0], [low, high, low])]), is_log_y=is_log)
    assert max(map(cell_len, lines)) <= 80
    assert all(math.isfinite(tick) for tick in Axis(low, high, is_log).ticks(5))


def test_one_point_is_a_dot() -> None:
    lines = texts(Panel("loss", "step", [Curve("a", [3.0], [7.0])]))
    assert sum(0x2800 < ord(c) < 0x2900 for line in lines for c in line) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.001, "0.001"), (1500.0, "1500"), (1e6, "1e6"), (2.5e-5, "2.5e-5"), (-3e-10, "-3e-10")],
)
def test_numbers_of_ticks_are_short(value: float, text: str) -> None:
    assert tick_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (30, "30s"), (90, "1m30s"), (600, "10m"), (4800, "1h20m"), (86_400, "1d")]
)
def test_times_of_ticks_have_a_unit(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_control_characters_of_names_are_not_printed() -> None:
    lines = texts(Panel("lo\x1b[2Jss", "st\x07ep", [Curve("ra\nnk", [0.0, 1.0], [0.0, 1.0])]))
    assert not any(ord(c) < 32 for line in lines for c in line)
