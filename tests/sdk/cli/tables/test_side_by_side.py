"""Runs beside each other: which rows and columns a section has."""

from chiplog_cli.tables.side_by_side import Section, run_letters, section_sheet, value_rows

ENTRIES = [
    {"key": "loss", "values": [1.0, None, 3.0], "is_same": False, "step": 5},
    {"key": "acc", "values": [2.0, 2.0, 2.0], "is_same": True, "step": None},
]
SECTION = Section("metric", "Metrics", "key", ENTRIES, lambda _, value: f"{value:g}", hides_same=True)


def test_equal_values_are_left_out_unless_all_are_shown() -> None:
    sheet = section_sheet(SECTION, 3, 20)
    assert sheet is not None
    assert list(sheet.lines()) == [
        "Metrics: 1 of 2 differ",
        "key   step  A       B  C",
        "────────────────────────",
        "loss     5  1  (none)  3",
    ]
    whole = section_sheet(SECTION, 3, None)
    assert whole is not None and [line.split() for line in whole.lines()][-1] == ["acc", "2", "2", "2"]


def test_left_out_rows_are_counted() -> None:
    sheet = section_sheet(SECTION._replace(hides_same=False), 3, 1)
    assert sheet is not None and (sheet.caption, sheet.is_partial) == ("1 more; --all shows them", True)
    assert section_sheet(SECTION._replace(entries=[]), 3, None) is None


def test_programs_get_a_row_for_each_value_that_a_run_has() -> None:
    assert list(value_rows([SECTION], ["a", "b", "c"])) == [
        ("metric", "loss", 5, "a", 1.0),
        ("metric", "loss", 5, "c", 3.0),
        *(("metric", "acc", None, run, 2.0) for run in "abc"),
    ]
    assert run_letters(3) == "ABC"
