"""Tables at any width: numbers are never cut, texts fold, columns are omitted by name, and at last rows are blocks."""

import io

import pytest
from rich.console import Console

from chiplog_cli.tables.fitted_table import Cell, Column, Sheet, fold
from tests.support.safeguard import proves

COLUMNS = [
    Column("run", is_name=True),
    Column("state", is_whole=True),
    Column("loss", is_number=True),
    Column("tags", drop=1),
    Column("notes"),
]
ROW = ("gpt-baseline-1", "finished", "0.123456789", "night large", "a text of several words that may fold anywhere")


def shown(sheet: Sheet, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(sheet)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return [line.rstrip() for line in lines]


def sheet_of(*rows: tuple[str, ...]) -> Sheet:
    sheet = Sheet(COLUMNS)
    for row in rows:
        sheet.add(*row)
    return sheet


def test_a_wide_terminal_has_each_row_on_one_line_with_numbers_to_the_right() -> None:
    head, _, first, second = shown(sheet_of(ROW, ("r", "failed", "2.5", "", "")), 160)
    assert head.split() == ["run", "state", "loss", "tags", "notes"]
    assert first.split()[:3] == ["gpt-baseline-1", "finished", "0.123456789"] and first.endswith(ROW[4])
    assert second.index("2.5") + len("2.5") == first.index(ROW[2]) + len(ROW[2])


@pytest.mark.parametrize("width", range(44, 130, 5))
def test_names_states_and_numbers_are_whole_at_every_width(width: int) -> None:
    text = "\n".join(shown(sheet_of(ROW), width))
    assert all(value in text for value in ROW[:3])
    assert all(word in text for word in ROW[4].split())
    assert "…" not in text


def test_a_column_that_may_be_omitted_is_named_below() -> None:
    text = shown(sheet_of(ROW), 48)
    assert "tags" not in text[0]
    assert text[-1] == "+1 column in a wider terminal: tags"


def test_a_table_that_does_not_fit_at_all_is_a_block_for_each_row() -> None:
    text = shown(sheet_of(ROW, ROW), 30)
    assert [line.split()[1] for line in text if line.startswith("-- ")] == ["1", "2"]
    assert [line.split()[0] for line in text if line and line[0].isalpha()] == [column.name for column in COLUMNS] * 2


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("short", 10, ["short"]),
        ("two words", 6, ["two", "words"]),
        ("train/loss_mean", 8, ["train/", "loss_", "mean"]),
        ("lr=1e-05", 5, ["lr=", "1e-05"]),
        ("at 12:30 or 1,000", 7, ["at", "12:30", "or", "1,000"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
    ],
)
def test_a_text_folds_at_separators_and_in_a_word_only_if_it_must(text: str, width: int, lines: list[str]) -> None:
    assert fold(text, width) == lines


def test_a_caption_is_below_and_markup_is_text() -> None:
    sheet = Sheet([Column("a")], "A title")
    sheet.add(Cell("[bold]no markup[/bold]"))
    sheet.caption = "and 3 more"
    title, *_, row, caption = shown(sheet, 80)
    assert (title, row, caption) == ("A title", "[bold]no markup[/bold]", "and 3 more")


@proves("long-name-costs-its-row", "a long name pads no other row on a terminal")
def test_a_long_name_pads_no_other_row() -> None:
    sheet = Sheet([Column("key", is_name=True, width_max=64), Column("points", is_number=True)])
    sheet.add("loss", "7")
    sheet.add("k" * 200, "12")
    lines = shown(sheet, 300)
    assert max(map(len, lines)) <= 64 + 2 + 6
    assert "".join(lines).count("k") == 200 + len("k")
