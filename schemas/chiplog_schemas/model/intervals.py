"""A set of integers as sorted, disjoint, closed intervals. Used for the seqs of a producer that have arrived."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator


class Intervals:
    """Closed intervals [first, last] over the non-negative integers. Adjacent ones are joined.

    The usual case, a range that continues the last interval, costs O(1).
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """Return the number of intervals, not of integers."""
        return len(self._firsts)

    def __contains__(self, number: int) -> bool:
        index = bisect_left(self._lasts, number)
        return index < len(self._firsts) and self._firsts[index] <= number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    @property
    def total(self) -> int:
        """The number of integers in the set."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    @property
    def end(self) -> int:
        """The largest integer in the set plus 1; 0 when the set is empty."""
        return self._lasts[-1] + 1 if self._lasts else 0

    def add(self, first: int, last: int) -> list[tuple[int, int]]:
        """Add [first, last] and return the parts of it that were missing before."""
        assert 0 <= first <= last, (first, last)
        lasts = self._lasts
        if not lasts or first > lasts[-1]:
            if lasts and first == lasts[-1] + 1:
                lasts[-1] = last
            else:
                self._firsts.append(first)
                lasts.append(last)
            return [(first, last)]
        fresh = self.missing(first, last)
        # Replace all intervals that touch [first - 1, last + 1] by their hull.
        low = bisect_left(lasts, first - 1)
        high = low
        while high < len(lasts) and self._firsts[high] <= last + 1:
            high += 1
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, lasts[high - 1])
        self._firsts[low:high] = [first]
        lasts[low:high] = [last]
        return fresh

    def remove(self, first: int, last: int) -> None:
        """Remove [first, last] from the set."""
        kept: list[tuple[int, int]] = []
        for have_first, have_last in self:
            if have_first < first:
                kept.append((have_first, min(have_last, first - 1)))
            if have_last > last:
                kept.append((max(have_first, last + 1), have_last))
        self._firsts = [kept_first for kept_first, _ in kept]
        self._lasts = [kept_last for _, kept_last in kept]

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of [first, last] that are not in the set, in order."""
        result: list[tuple[int, int]] = []
        index = bisect_left(self._lasts, first)
        while first <= last:
            if index == len(self._firsts) or self._firsts[index] > last:
                result.append((first, last))
                break
            if first < self._firsts[index]:
                result.append((first, self._firsts[index] - 1))
            first = self._lasts[index] + 1
            index += 1
        return result


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Group an ascending sequence of integers into its closed runs."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
