"""Tables of results: in a pipe, and on a terminal, where no number is cut and a long list of numbers is one line."""

import re
from decimal import Decimal

import pytest
from rich.cells import cell_len

from chiplog_cli.tables.tables import bars, print_tables, table_value
from chiplog_cli.tables.writers import TerminalText
from tests.support.command_line import COLOURS, ON_ONE_WORKER
from tests.support.marks import everyday
from tests.support.safeguard import proves

pytestmark = ON_ONE_WORKER


def test_a_table_says_in_which_zone_its_times_are(chiplog):
    for options, zone, shown in (((), "UTC", "03:04:05"), (("--local",), "CET", "04:04:05")):
        code, text, _ = chiplog("sql", "SELECT created_at, n_labels FROM runs ORDER BY 1 LIMIT 1", *options)
        assert code == 0
        assert re.split(r"\s{2,}", text.splitlines()[0]) == [f"created_at ({zone})", "n_labels"]
        assert text.splitlines()[2].split() == ["2026-01-02", shown, "4"]


def test_times_of_summer_and_winter_each_name_their_zone(chiplog):
    query = "VALUES (TIMESTAMPTZ '2026-01-01 12:00:00+00'), (TIMESTAMPTZ '2026-07-01 12:00:00+00')"
    _, text, _ = chiplog("sql", query, "--local")
    assert [line.strip() for line in text.splitlines()[2:]] == ["2026-01-01 13:00:00 CET", "2026-07-01 14:00:00 CEST"]


def test_a_line_that_looks_like_markup_is_printed_as_it_is():
    target = TerminalText()
    print_tables("phase [/loss] of [bold]", file=target)
    assert COLOURS.sub("", target.getvalue()) == "phase [/loss] of [bold]\n"


def test_a_table_in_a_pipe_is_not_wrapped(chiplog):
    code, text, _ = chiplog("sql", "SELECT repeat('word ', 200) AS a, repeat('x', 3000) AS b")
    assert code == 0
    assert len(text.splitlines()) == 3
    assert "x" * 3000 in text


@proves("text-differs-from-null", "a text differs from a missing value", value="text")
def test_a_missing_value_an_empty_text_and_the_word_differ(chiplog, on_terminal):
    query = "VALUES ('a', NULL), ('b', ''), ('c', 'NULL')"
    for text in (chiplog("sql", query)[1], COLOURS.sub("", on_terminal(80, "sql", query))):
        rows = [line.split() for line in text.splitlines() if line.split()[0] in ("a", "b", "c")]
        assert rows == [["a", "NULL"], ["b"], ["c", '"NULL"']]


@proves(
    "long-heading-not-cut",
    "a heading that is wider than the terminal is not cut",
    part="Cell(column.name)",
    new='Text(column.name, no_wrap=True, overflow="ellipsis")',
)
@pytest.mark.parametrize("width", everyday(1, [80, 100, 160]))
def test_a_heading_that_is_wider_than_the_terminal_is_whole(on_terminal, width):
    name = "".join(f"part{number:02}_" for number in range(30))
    for query in (f"SELECT 1 AS {name}", f"SELECT 1 AS {name}, repeat('y', 300) AS {name}b"):
        shown = "".join(line.strip() for line in COLOURS.sub("", on_terminal(width, "sql", query)).splitlines())
        assert all(f"part{number:02}_" in shown for number in range(30)) and "…" not in shown


NUMBERS = {
    "big": "123456789",
    "pid": "28376",
    "huge": "9.143876219677727e+300",
    "tiny": "-1.2345678901234567e-308",
    "sum": "170141183460469231731687303715884105727",
    "day": "2026-01-02 03:04:05.123456",
}
WIDE = (
    "SELECT 123456789 AS big, 28376 AS pid, 9.143876219677727e+300::DOUBLE AS huge, "
    "-1.2345678901234567e-308::DOUBLE AS tiny, 170141183460469231731687303715884105727::HUGEINT AS sum, "
    "TIMESTAMP '2026-01-02 03:04:05.123456' AS day, NULL AS nothing, 'grüße 你好 ' AS hello, "
    "'a-long-run-id-' || repeat('abcdef-', {n}) AS run_id, "
    "'{{\"text\": \"' || repeat('many words ', {n}) || '\"}}' AS body, [1.5, NULL, -2] AS few FROM range({rows})"
)


@proves("number-never-cut", "a number on a terminal is never cut", value="1, most")
@pytest.mark.parametrize("width", everyday(2, [80, 100, 160, 300]))
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("n", [0, 10])
def test_on_a_terminal_no_number_and_no_word_is_cut(on_terminal, width, rows, n):
    text = COLOURS.sub("", on_terminal(width, "sql", WIDE.format(n=n, rows=rows)))
    assert max(map(cell_len, text.splitlines())) <= width
    for name, number in NUMBERS.items():
        assert len(re.findall(rf"(?<!\S){re.escape(number)}(?!\S)", text)) == rows, (name, text)
    assert text.count("words") == text.count("many") == n * rows
    assert len(re.findall(r"abcdef-(?!\w{1,5}\b)", text)) == n * rows
    assert text.count("[1.5, null, -2") == rows


def test_a_histogram_is_one_line_on_a_terminal_and_whole_in_a_pipe(on_terminal, chiplog):
    query = (
        "SELECT 7 AS step, list(b / 8 ORDER BY b) AS edges, list((b * (64 - b))::DOUBLE ORDER BY b) AS counts "
        "FROM range(65) t(b)"
    )
    for width in (80, 100, 160):
        lines = COLOURS.sub("", on_terminal(width, "sql", query)).splitlines()
        (shown,) = [line for line in lines if "8.0" in line]
        assert re.search(r"0\.0 … 8\.0 \(65 numbers\)", shown)
        (shown,) = [line for line in lines if "█" in line]
        assert re.search(r"[▁▂▃▄▅▆▇█]{22} 65 counts, sum 43680", shown)
    for options in ((), ("--format", "csv")):
        assert "[0.0, 0.125, 0.25," in chiplog("sql", query, *options)[1]


@pytest.mark.parametrize(
    ("counts", "shown"),
    [([0, 1, 8], "·▁█"), ([0, 0], "··"), ([1_000_000, 1], "█▁"), ([1] * 64, "█" * 32), ([2] * 33, "█" * 16 + "▄")],
)
def test_only_a_count_of_zero_is_a_dot_and_many_counts_are_added_up(counts, shown):
    assert bars(counts) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "NULL"),
        ("", ""),
        ("NULL", '"NULL"'),
        ([float("nan"), None, ""], '[NaN, null, ""]'),
        ({"x": float("-inf")}, '{"x": -Infinity}'),
        (Decimal("0.10000000000000000000001"), "0.10000000000000000000001"),
        ("a\r\nb", "a\\r⏎b"),
        (False, "false"),
        (0.1 + 0.2, "0.30000000000000004"),
        ("a\x1b[2Jb\n", "a\\x1b[2Jb⏎"),
        (b"\xab", "ab"),
        (["\x07"], '["\\u0007"]'),
        (list(range(9)), "0 … 8 (9 numbers)"),
        ([3, 0, 0, 0, 0, 0, 0, 0, 6], "▄·······█ 9 counts, sum 9"),
        ([0.5] * 9, "0.5 … 0.5 (9 numbers)"),
        ([*range(8), None], "[0, 1, 2, 3, 4, 5, 6, 7, null]"),
    ],
)
def test_a_cell_is_exact_and_a_list_of_many_numbers_is_summed_up(value, shown):
    assert table_value(value, is_short=True) == shown
