"""Draw curves in a terminal with braille characters: two by four dots each."""

import math
from collections.abc import Callable, Sequence

from rich.text import Text

from chiplog_cli.charts.curves import Curve, Panel
from chiplog_cli.tables.format_values import printable

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WIDTH_MIN, HEIGHT_MIN = 30, 4  # of the dots' area, in characters
_X_TICK_COLUMNS = 16  # one tick for that many columns
_Y_TICK_LINES = 4
_TICKS_MIN = 3  # fewer do not show a scale
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # [column][row] of a character, Unicode 2800 to 28FF
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


class Axis:
    """Maps values to the range 0 to 1, linear or logarithmic, and places ticks."""

    def __init__(self, low: float, high: float, is_log: bool) -> None:
        if low == high or (is_log and math.log(low) == math.log(high)):
            low, high = (low / 2, high * 2) if is_log else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
        self.low, self.high, self.is_log = low, high, is_log

    def place(self, value: float) -> float:
        """Return where a value lies between the ends."""
        if self.is_log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        # Halved, because the difference of two large doubles may be infinite.
        span = self.high / 2 - self.low / 2
        return (value / 2 - self.low / 2) / span if span else 0.5  # of two neighbouring doubles close to 0

    def ticks(self, count: int, steps: Sequence[float] = ()) -> list[float]:
        """Return about `count` round values within the range. steps: preferred differences, such as of times."""
        count = max(2, count)
        if self.is_log:
            found = self._log_ticks(count)
            if len(found) >= _TICKS_MIN:
                return found
        span = self.high - self.low
        if not math.isfinite(span) or span <= 0:
            return [self.low, self.high]
        for rough in (span / count, span / count / 2, span / count / 4):
            found = self._ticks_apart(rough, steps)
            if len(found) >= _TICKS_MIN:
                break
        return found

    def _ticks_apart(self, rough: float, steps: Sequence[float]) -> list[float]:
        """Return ticks at multiples of a round number of at least `rough`."""
        if rough < 1e-300:  # its power of ten would be 0
            return [self.low, self.high]
        base = 10.0 ** math.floor(math.log10(rough))
        step = next((s for s in steps if s >= rough), 0) or next(
            m * base for m in (1, 2, 5, 10, 20) if m * base >= rough
        )
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)] if last - first < 1000 else [self.low, self.high]

    def _log_ticks(self, count: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(1, -(-(last - first) // count))
        parts = (1, 2, 5) if (last - first) * 3 <= count * 2 else (1,)
        values = [part * 10.0**power for power in range(first, last + 1, every) for part in parts]
        return [value for value in values if self.low <= value * (1 + 1e-9) and value <= self.high * (1 + 1e-9)]


def tick_text(value: float) -> str:
    """Return a number for a tick: four digits are enough to tell ticks apart."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.6g}"
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def time_text(seconds: float) -> str:
    """Return a time for a tick."""
    whole = round(seconds)
    if abs(seconds) < 60:
        return f"{seconds:g}s"
    if whole < 3600:
        return f"{whole // 60}m" + (f"{whole % 60:02d}s" if whole % 60 else "")
    if whole < 86_400:
        return f"{whole // 3600}h" + (f"{whole // 60 % 60:02d}m" if whole // 60 % 60 else "")
    return f"{whole // 86_400}d" + (f"{whole // 3600 % 24:02d}h" if whole // 3600 % 24 else "")


class _Canvas:
    """Dots in characters, each character in the colour that was drawn last."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._bits = [[0] * width for _ in range(height)]
        self._styles = [[""] * width for _ in range(height)]

    def dot(self, x: int, y: int, style: str) -> None:
        """Set a dot; y counts from the bottom. Dots outside are left out."""
        if 0 <= x < self.width * 2 and 0 <= y < self.height * 4:
            row = self.height * 4 - 1 - y
            self._bits[row // 4][x // 2] |= _DOTS[x % 2][row % 4]
            self._styles[row // 4][x // 2] = style

    def line(self, start: tuple[int, int], end: tuple[int, int], style: str) -> None:
        """Draw a straight line."""
        (x0, y0), (x1, y1) = start, end
        steps = max(abs(x1 - x0), abs(y1 - y0))
        for step in range(steps + 1):
            part = step / steps if steps else 0.0
            self.dot(round(x0 + (x1 - x0) * part), round(y0 + (y1 - y0) * part), style)

    def rows(self) -> list[Text]:
        """Return the lines, from the top."""
        lines = []
        for bits, styles in zip(self._bits, self._styles, strict=True):
            line = Text()
            for bit, style in zip(bits, styles, strict=True):
                line.append(chr(0x2800 + bit) if bit else " ", style)
            lines.append(line)
        return lines


def draw_panel(panel: Panel, width: int, height: int, *, is_log_x: bool = False, is_log_y: bool = False) -> list[Text]:
    """Return a panel as lines: title, dots with ticks, and one entry per curve with its last value."""
    x_axis, y_axis = Axis(*panel.x_range(), is_log_x), Axis(*panel.y_range(), is_log_y)
    legend = _legend(panel.curves, width)
    rows = max(HEIGHT_MIN, height - 3 - len(legend))
    y_ticks = y_axis.ticks(rows // _Y_TICK_LINES)
    y_width = max(len(tick_text(tick)) for tick in y_ticks)
    columns = max(WIDTH_MIN, width - y_width - 4)
    canvas = _Canvas(columns, rows)
    for part in (_draw_band, _draw_line):
        for number, curve in enumerate(panel.curves):
            part(canvas, curve, x_axis, y_axis, COLOURS[number % len(COLOURS)])
    texts = {_row_of(y_axis.place(tick), rows): tick_text(tick) for tick in y_ticks}
    ends = _ends(panel.curves, y_axis, rows)
    lines = [Text(printable(panel.title), style="bold", no_wrap=True, overflow="ellipsis")]
    for number, dots in enumerate(canvas.rows()):
        line = Text(f"{texts.get(number, ''):>{y_width}} {'┤' if number in texts else '│'}", "dim")
        line.append_text(dots)
        if number in ends:
            line.append(f" {LETTERS[ends[number] % 26]}", COLOURS[ends[number] % len(COLOURS)])
        lines.append(line)
    lines += _x_axis(x_axis, panel.x_title, columns, y_width, panel.is_time)
    return lines + legend


def _draw_line(canvas: _Canvas, curve: Curve, x_axis: Axis, y_axis: Axis, colour: str) -> None:
    dots = [
        (_dot_of(x_axis.place(x), canvas.width * 2), _dot_of(y_axis.place(y), canvas.height * 4))
        for x, y in zip(curve.x, curve.y, strict=True)
    ]
    for start, end in zip(dots, dots[1:] or dots, strict=False):
        canvas.line(start, end, colour)


def _draw_band(canvas: _Canvas, curve: Curve, x_axis: Axis, y_axis: Axis, colour: str) -> None:
    """Fill a band with every fourth dot, so that the median stays visible without colours."""
    if curve.low is None or curve.high is None:
        return
    spans: dict[int, tuple[int, int]] = {}
    before: tuple[int, int, int] | None = None
    for x, low, high in zip(curve.x, curve.low, curve.high, strict=True):
        column = _dot_of(x_axis.place(x), canvas.width * 2)
        bottom, peak = _dot_of(y_axis.place(low), canvas.height * 4), _dot_of(y_axis.place(high), canvas.height * 4)
        first = before or (column, bottom, peak)
        for between in range(first[0], column + 1):
            part = (between - first[0]) / (column - first[0]) if column > first[0] else 1.0
            ends = (round(first[1] + (bottom - first[1]) * part), round(first[2] + (peak - first[2]) * part))
            known = spans.get(between, ends)
            spans[between] = (min(known[0], ends[0]), max(known[1], ends[1]))
        before = (column, bottom, peak)
    for column, (bottom, peak) in spans.items():
        for row in range(bottom, peak + 1):
            if column % 2 == 0 and row % 2 == 0:
                canvas.dot(column, row, f"dim {colour}")


def _dot_of(place: float, dots: int) -> int:
    return min(dots - 1, max(0, round(place * (dots - 1))))


def _row_of(place: float, rows: int) -> int:
    return rows - 1 - min(rows - 1, max(0, _dot_of(place, rows * 4) // 4))


def _ends(curves: Sequence[Curve], y_axis: Axis, rows: int) -> dict[int, int]:
    """Return at which line each curve ends, for its letter; a letter whose line is taken moves to the next free one."""
    taken: dict[int, int] = {}
    if len(curves) < 2:
        return taken
    for number, curve in sorted(enumerate(curves), key=lambda item: -item[1].last):
        row = _row_of(y_axis.place(curve.last), rows)
        free = [other for other in range(rows) if other not in taken]
        if free:
            taken[min(free, key=lambda other: (abs(other - row), other))] = number
    return taken


def _x_axis(axis: Axis, title: str, columns: int, y_width: int, is_time: bool) -> list[Text]:
    text: Callable[[float], str] = time_text if is_time else tick_text
    ticks = axis.ticks(max(2, columns // _X_TICK_COLUMNS), _TIME_STEPS if is_time and not axis.is_log else ())
    rule, numbers = ["─"] * columns, [" "] * columns
    free = 0
    for tick in ticks:
        column = _dot_of(axis.place(tick), columns * 2) // 2
        label = text(tick)
        start = min(max(0, column - len(label) // 2), columns - len(label))
        if start < free:
            continue
        rule[column] = "┬"
        numbers[start : start + len(label)] = label
        free = start + len(label) + 1
    name = printable(title)
    # The name of the axis goes below its middle if no number is there, else to the right end.
    end = columns - len(name)
    below = "".join(numbers).rstrip()
    if len(below) < end:
        below = below + " " * (end - len(below)) + name
        extra: list[Text] = []
    else:
        extra = [Text(" " * (y_width + 2) + f"{name:>{columns}}", "dim")]
    return [
        Text(" " * (y_width + 1) + "└" + "".join(rule), "dim"),
        Text(" " * (y_width + 2) + below, "dim"),
        *extra,
    ]


def _legend(curves: Sequence[Curve], width: int) -> list[Text]:
    """Return the letters, names and last values of the curves, as many on a line as fit."""
    lines = [Text()]
    for number, curve in enumerate(curves):
        letter = f"{LETTERS[number % 26]} " if len(curves) > 1 else ""
        entry = Text(f"{letter}{printable(curve.name)} ", COLOURS[number % len(COLOURS)])
        entry.append(f"{curve.last:.5g}", "bold")
        if lines[-1].cell_len and lines[-1].cell_len + 3 + entry.cell_len > width:
            lines.append(Text())
        if lines[-1].cell_len:
            lines[-1].append("   ")
        lines[-1].append_text(entry)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines
