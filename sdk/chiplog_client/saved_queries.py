"""The saved queries: SQL for common views of a run, each with the parameter `$run`. They share `sql/labels.sql`."""

from importlib.resources import files
from typing import NamedTuple


class _Saved(NamedTuple):
    about: str
    ending: str  # which labels, and their order


_BY_RANK = "ORDER BY c.rank NULLS LAST, c.label\n"
_SAVED = {
    "primary": _Saved(
        "The primary of a run alone: how it is doing, what it logged last, what it printed last.",
        f"WHERE c.is_primary\n{_BY_RANK}",
    ),
    "failed": _Saved(
        "Workers of a run that failed or crashed, the first to end first: why, and what they logged and printed last.",
        "WHERE c.state IN ('failed', 'crashed')\nORDER BY c.ended_at, c.rank NULLS LAST, c.label\n",
    ),
    "all": _Saved(
        "All workers of a run: how each is doing, what it logged last, what it printed last.",
        _BY_RANK,
    ),
}
NAMES = tuple(_SAVED)


def query_of(name: str) -> str:
    """Return the text of a saved query. Raises KeyError for a name that is not in NAMES."""
    saved = _SAVED[name]
    shared = (files("chiplog_client") / "sql" / "labels.sql").read_text(encoding="utf-8")
    return f"-- {saved.about}\n{shared}{saved.ending}"


def about(name: str) -> str:
    """Return what a saved query shows."""
    return _SAVED[name].about
