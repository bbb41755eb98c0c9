"""The oracle's verdict: nothing lost, doubled or altered passes it unseen, and no loss is declared that is none."""

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracle import Verdict, compare, read
from tests.support.safeguard import proves

ORACLE_FILE = "tests/support/oracle.py"


def line(step: int, value: float) -> str:
    return f"{step} {struct.pack('<d', value).hex()}\n"


def rows(*steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "value": step / 7} for step in steps]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Ten steps, as a rank writes them."""
    path = tmp_path / "oracle"
    path.write_text("".join(line(step, step / 7) for step in range(10)))
    return path


def test_what_came_out_once_and_unaltered_is_ok_honest_and_exact(file: Path) -> None:
    verdict = compare(file, rows(*range(10)))
    assert verdict == Verdict(expected=10)
    assert verdict.ok and verdict.is_honest and verdict.is_exact


@proves("double-rows-seen", "a row that is there twice is seen", part="count > 1", new="count > 2")
def test_each_trouble_is_found_by_its_step(file: Path) -> None:
    found = [*rows(0, 1, 2, 3, 3, 5, 6, 7, 8), {"step": 9, "value": 0.5}, *rows(12)]
    verdict = compare(file, found, lost=0)
    assert verdict == Verdict(10, lost=[4], doubled=[3], altered=[9], extra=[12], undeclared=1)
    assert not (verdict.ok or verdict.is_honest or verdict.is_exact)


@proves(
    "values-equal-to-last-bit",
    "values are compared to their last bit",
    part="values[step] != value",
    new="abs(values[step] - value) > 1e-9",
)
def test_a_value_that_differs_in_its_last_bit_is_altered(file: Path) -> None:
    import math

    found = [*rows(*range(9)), {"step": 9, "value": math.nextafter(9 / 7, 2)}]
    assert compare(file, found).altered == [9]


@proves(
    "false-loss-is-inexact",
    "a loss that is declared and is none is seen",
    part="self.declared == len(self.lost)",
    new="not self.undeclared",
)
@pytest.mark.parametrize(("declared", "is_honest", "is_exact"), [(1, False, False), (2, True, True), (3, True, False)])
def test_what_is_declared_and_there_all_the_same_is_not_exact(
    file: Path, declared: int, is_honest: bool, is_exact: bool
) -> None:
    """Two are missing: fewer declared is wrong, more is plausible as far as this file can show, and not exact."""
    verdict = compare(file, rows(*range(2, 10)), lost=declared)
    assert (verdict.lost, verdict.declared, verdict.undeclared) == ([0, 1], declared, max(0, 2 - declared))
    assert (verdict.is_honest, verdict.is_exact, verdict.ok) == (is_honest, is_exact, False)


@pytest.mark.parametrize("extra", [{"step": 3, "value": 3 / 7}, {"step": 4, "value": 0.0}])
def test_an_exact_count_excuses_nothing_doubled_or_altered(file: Path, extra: dict[str, Any]) -> None:
    verdict = compare(file, [*rows(0, 1, 2, 3, 5, 6, 7, 8, 9), extra], lost=1 - (extra["step"] == 4))
    assert verdict.doubled or verdict.altered
    assert not (verdict.is_honest or verdict.is_exact)


@proves("cut-line-ignored", "a line that a kill cut short does not count", new="if bits:")
def test_a_last_line_that_a_kill_cut_short_does_not_count(file: Path) -> None:
    file.write_text(file.read_text() + line(10, 1.0)[:-3])
    assert len(read(file)) == 10
