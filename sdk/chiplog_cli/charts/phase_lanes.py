"""The phases of labels over time as lines: a lane per label, in each column the letter of the longest phase."""

from collections.abc import Iterator, Sequence
from typing import Any

from chiplog_client.reads.timeline import UNKNOWN

NO_PHASE, NOTHING = "·", " "
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def phase_letters(phases: Sequence[str]) -> list[str]:
    """Return a letter for each phase: of its name if that is free. Phases beyond the letters share `?`."""
    letters: list[str] = []
    for phase in phases:
        wanted = [*(letter for letter in phase.lower() if letter in _LETTERS), *_LETTERS]
        letters.append(next((letter for letter in wanted if letter not in letters), "?"))
    return letters


def build_lanes(found: dict[str, Any], columns: int) -> Iterator[str]:
    """Yield a line for each label of an answer of `read_timeline`, with so many columns for its whole time."""
    letters = phase_letters(found["phases"])
    cell_s = found["span_s"] / columns or 1.0
    spent: list[list[dict[int, float]]] = [[{} for _ in range(columns)] for _ in found["labels"]]
    for (row, _, start, _), pieces in zip(found["bars"], found["pieces"], strict=True):
        at = start
        for phase, seconds in zip(pieces[::2], pieces[1::2], strict=True):
            _add(spent[row], int(phase), at / cell_s, (at + seconds) / cell_s)
            at += seconds
    for cells in spent:
        yield "".join(_letter(cell, letters) for cell in cells).rstrip()


def _add(cells: list[dict[int, float]], phase: int, begin: float, end: float) -> None:
    """Add a phase between two places, in cells."""
    for place in range(max(int(begin), 0), min(int(end) + 1, len(cells))):
        share = min(end, place + 1) - max(begin, place)
        if share > 0:
            cells[place][phase] = cells[place].get(phase, 0.0) + share


def _letter(cell: dict[int, float], letters: Sequence[str]) -> str:
    if not cell:
        return NOTHING
    phase = max(cell, key=lambda one: (cell[one], -one))
    return NO_PHASE if phase == UNKNOWN else letters[phase]
