"""Plain lines and Markdown: aligned, with every value whole, and text that stays text."""

import pytest

from chiplog_cli.tables.plain_table import Column, markdown_lines, plain_lines
from tests.support.safeguard import proves

COLUMNS = [Column("name"), Column("n", is_number=True), Column("last")]


def test_columns_are_aligned_by_cells_of_the_terminal_without_blanks_at_the_end():
    assert list(plain_lines(COLUMNS, [("你好", "1", "x"), ("abc", "1000", "")])) == [
        "name     n  last",
        "────────────────",
        "你好     1  x",
        "abc   1000",
    ]
    assert list(plain_lines(COLUMNS, [])) == ["name  n  last", "─────────────"]
    assert list(plain_lines(COLUMNS[:2], [("a", "10")], has_header=False)) == ["a  10"]


def test_no_value_is_cut():
    (_, _, line) = plain_lines(COLUMNS, [("x" * 5_000, "1", "end")])
    assert line == f"{'x' * 5_000}  1  end"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("train/loss_mean", "train/loss_mean"),
        ("_x_", r"\_x\_"),
        ("a|b", r"a\|b"),
        ("*a* `b` <c> [d](e) ~f~ &lt; g\\h", r"\*a\* \`b\` \<c> \[d](e) \~f\~ \&lt; g\\h"),
    ],
)
def test_a_text_in_markdown_is_no_markup(text, escaped):
    heading, rule, row = markdown_lines([Column("a"), Column("b", is_number=True)], [(text, "1")])
    assert row == f"| {escaped} |   1 |"
    assert len(heading) == len(rule) == len(row) and rule.endswith("--: |")


@proves("long-name-pads-none", "a long name pads no other row in a pipe", value="widest")
def test_a_long_name_pads_no_other_row():
    columns = [Column("key", is_name=True, width_max=64), Column("points", is_number=True)]
    lines = list(plain_lines(columns, [("loss", "7"), ("k" * 200, "12")]))
    assert lines[2:] == ["loss       7", f"{'k' * 200}      12"]
