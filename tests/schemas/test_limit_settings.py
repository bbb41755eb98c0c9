"""The limits that users may set: defaults, ranges, bad values, and the table in the documentation."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from chiplog_schemas import limits
from chiplog_schemas.limit_settings import RANGES, LimitError, Limits, drop_bad_limits, keeps_files, read_limits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "configuration.md"


def name_of(variable: str) -> str:
    return variable.removeprefix("CHIPLOG_").lower()


def test_every_variable_is_a_bound_of_limits_and_its_default() -> None:
    assert [name_of(variable) for variable in RANGES] == [field.name for field in fields(Limits)]
    for variable, (least, most) in RANGES.items():
        default = getattr(Limits(), name_of(variable))
        assert default == getattr(limits, variable.removeprefix("CHIPLOG_"))
        assert least <= default <= most


def test_nothing_set_is_the_defaults_and_an_empty_variable_is_nothing() -> None:
    assert read_limits({}) == read_limits({"CHIPLOG_KEYS_MAX": "", "HOME": "/"}) == Limits()


@pytest.mark.parametrize("variable", RANGES)
def test_both_ends_of_the_range_are_taken_and_what_lies_beyond_is_refused(variable: str) -> None:
    least, most = RANGES[variable]
    for value in (least, most):
        assert getattr(read_limits({variable: f" {value} "}), name_of(variable)) == value
    for value in (least - 1, most + 1):
        with pytest.raises(LimitError, match=f"{variable}='{value}' is not a whole number from {least} to {most}"):
            read_limits({variable: str(value)})


@pytest.mark.parametrize("text", ["256MiB", "1e6", "nan", "-1", "0x10", "9" * 10_000, "\udcff", "１２"])
def test_a_bad_value_is_one_line_and_the_default_when_somebody_is_told(text: str) -> None:
    said: list[str] = []
    found = read_limits({"CHIPLOG_JOURNAL_BYTES_MAX": text, "CHIPLOG_KEYS_MAX": "7"}, said.append)
    assert found == Limits(keys_max=7)
    (line,) = said
    assert line.startswith("CHIPLOG_JOURNAL_BYTES_MAX=")
    assert f"{limits.JOURNAL_BYTES_MAX} is used" in line
    assert "\n" not in line
    assert len(line) < 200


def test_bad_values_leave_an_environment_that_children_inherit() -> None:
    said: list[str] = []
    environ = {"CHIPLOG_COLD_GB": "ten", "CHIPLOG_HOT_DAYS": "-1", "CHIPLOG_KEYS_MAX": "7", "HOME": "/"}
    assert drop_bad_limits(environ, said.append) == Limits(keys_max=7) == read_limits(environ)
    assert environ == {"CHIPLOG_KEYS_MAX": "7", "HOME": "/"}
    assert [line.partition("=")[0] for line in said] == ["CHIPLOG_COLD_GB", "CHIPLOG_HOT_DAYS"]


def test_saved_files_stay_at_the_collector_by_zero_alone() -> None:
    found = [keeps_files({"CHIPLOG_STORE_FILES": text}) for text in ("0", " 0 ", "1", "")]
    assert [*found, keeps_files({})] == [True, True, False, False, False]
    with pytest.raises(LimitError, match=r"^CHIPLOG_STORE_FILES='false' is neither 0 nor 1; change or unset it$"):
        keeps_files({"CHIPLOG_STORE_FILES": "false"})


def test_the_table_of_the_readme_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(CHIPLOG_[A-Z_]+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|", PAGE.read_text(), re.MULTILINE)
    documented = {name: tuple(int(number.replace(",", "")) for number in numbers) for name, *numbers in rows}
    assert documented == {variable: (getattr(Limits(), name_of(variable)), *ends) for variable, ends in RANGES.items()}
