"""Parse alerts, and limit how many a run records from one process: one loop must not bury the alerts of others.

Records of logging and of warnings have the same limits.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from chiplog.safety.diagnostics import Diagnostic
from chiplog.safety.text import clean_utf8, short_repr
from chiplog_schemas.rate_limit import TokenBucket

ALERT_BURST = 5  # of one title, at once
ALERT_INTERVAL_S = 10.0  # then one of this title in this time
ALERTS_PER_MINUTE = 100  # of all titles: both the burst and the rate
TITLES_MAX = 1_000  # tracked separately; a title that contains a step number is new each time
_REPORT_INTERVAL_S = 60.0  # between two notices of suppressed alerts
_TITLES_REPORTED_MAX = 20  # listed by title; the others are summed up
_TITLE_CHARS_MAX = 200
_OTHERS = "other titles"
LEVELS = ("debug", "info", "warning", "error")
_ALIASES = {"warn": "warning", "critical": "error", "fatal": "error"}
_NO_TITLE = "alert"


def parse_alert(title: Any, level: Any, report_fault: Callable[[Diagnostic], None]) -> tuple[str, str]:
    """Return title and level as they appear in `events`; report bad ones."""
    kept = "" if title is None else clean_utf8(str(title))
    if not kept.strip():
        kept = _NO_TITLE
        message = f"alert() has the title {short_repr(title)}; {_NO_TITLE!r} is used instead, so give it one"
        report_fault(Diagnostic("alert_without_title", short_repr(title), message))
    word = str(getattr(level, "value", level)).lower()  # for a foreign enum
    meant = _ALIASES.get(word, word)
    if meant not in LEVELS:
        meant = "warning"
    if word not in (meant, "warn"):
        message = f"alert level {short_repr(level)} is not one of {', '.join(LEVELS)}; {meant} is used"
        report_fault(Diagnostic("bad_level", short_repr(level), message))
    return kept, meant


class AlertLimit:
    """Token buckets, one for each title and one for all. Call `allow` for each alert, `take_suppressed` regularly.

    Takes no lock: a signal handler may raise an alert in the middle of another. Two threads at once may miscount by
    one, not more.
    """

    def __init__(self) -> None:
        self._titles: dict[str, TokenBucket] = {}
        self._bucket = TokenBucket(0.0, ALERTS_PER_MINUTE / 60, ALERTS_PER_MINUTE)
        self._suppressed: Counter[str] = Counter()
        self._report_at: float | None = None

    def allow(self, title: str, now: float) -> bool:
        """Return True if an alert must be recorded. now: monotonic, s."""
        title = title[:_TITLE_CHARS_MAX]
        if title not in self._titles and len(self._titles) >= TITLES_MAX:
            self._titles = {
                name: kept for name, kept in list(self._titles.items()) if now - kept.called_at < ALERT_INTERVAL_S
            }
            title = title if len(self._titles) < TITLES_MAX else _OTHERS
        bucket = self._titles.get(title)
        if bucket is None:
            bucket = self._titles[title] = TokenBucket(now, 1 / ALERT_INTERVAL_S, ALERT_BURST)
        is_admitted = bucket.allow(now)
        if is_admitted and not self._bucket.allow(now):
            is_admitted = False
            bucket.allowance += 1  # it was not used
        if not is_admitted:
            self._suppressed[title if title in self._suppressed or len(self._suppressed) < TITLES_MAX else _OTHERS] += 1
        return is_admitted

    def take_suppressed(self, now: float | None = None) -> tuple[int, dict[str, int]] | None:
        """Return (count, by title) of alerts suppressed since the last report. None: none, or `now` is too soon."""
        if not self._suppressed or (now is not None and self._report_at is not None and now < self._report_at):
            return None
        if now is not None:
            self._report_at = now + _REPORT_INTERVAL_S
        suppressed, self._suppressed = self._suppressed, Counter()
        reported = dict(suppressed.most_common(_TITLES_REPORTED_MAX))
        if rest := suppressed.total() - sum(reported.values()):
            reported[_OTHERS] = reported.get(_OTHERS, 0) + rest
        return suppressed.total(), reported
