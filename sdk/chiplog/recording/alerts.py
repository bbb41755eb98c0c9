"""What an alert is made of, and how many a run takes from one process: a loop that alerts must not bury the others."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from chiplog.values.metrics import Diagnostic, clean_utf8, short_repr

ALERT_BURST = 5  # of one title, at once; then …
ALERT_INTERVAL_S = 10.0  # … one in this time
ALERTS_PER_MINUTE = 100  # of all titles: as many may come at once, and no more in the long run
TITLES_MAX = 1_000  # that are told apart; a title that holds a step number is another each time
_REPORT_INTERVAL_S = 60.0  # between two notices of what was left out
_TITLES_TOLD_MAX = 20  # by name; the others are summed up
_TITLE_CHARS_MAX = 200
_OTHERS = "other titles"
_LEVELS = ("debug", "info", "warning", "error")
_ALIASES = {"warn": "warning", "critical": "error", "fatal": "error"}
_NO_TITLE = "alert"


def parse_alert(title: Any, level: Any, complain: Callable[[Diagnostic], None]) -> tuple[str, str]:
    """Return title and level as `events` has them; complain of what they are not."""
    kept = "" if title is None else clean_utf8(str(title))
    if not kept.strip():
        kept = _NO_TITLE
        message = f"alert() has the title {short_repr(title)}; {_NO_TITLE!r} stands in its place, so give it one"
        complain(Diagnostic("alert_without_title", short_repr(title), message))
    word = str(getattr(level, "value", level)).lower()  # of an enum of somebody else's
    meant = _ALIASES.get(word, word)
    if meant not in _LEVELS:
        meant = "warning"
    if word not in (meant, "warn"):
        message = f"alert level {short_repr(level)} is none of {', '.join(_LEVELS)}; {meant} is used"
        complain(Diagnostic("bad_level", short_repr(level), message))
    return kept, meant


class AlertLimit:
    """Token buckets, one for each title and one for all. Call `admit` for each alert; `report` now and then.

    Takes no lock: an alert may come from a signal handler in the middle of another. What two threads do at once may
    cost a count, never more.
    """

    def __init__(self) -> None:
        self._titles: dict[str, tuple[float, float]] = {}  # title -> (tokens, when they were counted), s
        self._all = (float(ALERTS_PER_MINUTE), 0.0)
        self._suppressed: Counter[str] = Counter()
        self._report_at: float | None = None

    def allow(self, title: str, now: float) -> bool:
        """Tell whether an alert is to be recorded. now: monotonic, s."""
        title = title[:_TITLE_CHARS_MAX]
        if title not in self._titles and len(self._titles) >= TITLES_MAX:
            self._titles = {name: kept for name, kept in self._titles.items() if now - kept[1] < ALERT_INTERVAL_S}
            title = title if len(self._titles) < TITLES_MAX else _OTHERS
        known = self._titles.get(title)
        tokens = _refill(known or (float(ALERT_BURST), now), now, ALERT_BURST, 1 / ALERT_INTERVAL_S)
        overall = _refill(self._all, now, ALERTS_PER_MINUTE, ALERTS_PER_MINUTE / 60)
        is_admitted = tokens >= 1 and overall >= 1
        self._titles[title] = (tokens - is_admitted, now)
        self._all = (overall - is_admitted, now)
        if not is_admitted:
            self._suppressed[title if title in self._suppressed or len(self._suppressed) < TITLES_MAX else _OTHERS] += 1
        return is_admitted

    def take_suppressed(self, now: float | None = None) -> tuple[int, dict[str, int]] | None:
        """Return (how many, by title) were left out since the last report. None: nothing, or `now` is too soon."""
        if not self._suppressed or (now is not None and self._report_at is not None and now < self._report_at):
            return None
        if now is not None:
            self._report_at = now + _REPORT_INTERVAL_S
        suppressed, self._suppressed = self._suppressed, Counter()
        told = dict(suppressed.most_common(_TITLES_TOLD_MAX))
        if rest := suppressed.total() - sum(told.values()):
            told[_OTHERS] = told.get(_OTHERS, 0) + rest
        return suppressed.total(), told


def _refill(bucket: tuple[float, float], now: float, size: float, per_s: float) -> float:
    tokens, counted_at = bucket
    return min(size, tokens + max(0.0, now - counted_at) * per_s)
