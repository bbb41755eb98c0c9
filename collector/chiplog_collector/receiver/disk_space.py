"""The room on a collector's disk, pure: when to warn, and when to take no more events.

Deletions need room themselves: a record, a transaction of DuckDB, the copy of a segment. So events stop before the disk
is full. Their agents keep them, and requests to delete are still carried out.
"""

from chiplog_schemas.limits import DISK_WARNING_PERCENT, GIB, LOG_FREE_BYTES_MIN

_SMALL_DISK_SHARE = 100  # of a disk smaller than this many times LOG_FREE_BYTES_MIN, one part stays free
_QUIET_PERCENT = DISK_WARNING_PERCENT - 2  # the warning may come again once less is used


class DiskSpace:
    """Remembers what was reported. is_short: no events are taken now."""

    def __init__(self) -> None:
        self.is_short = False
        self._is_warned = False

    def check(self, free_bytes: int, total_bytes: int) -> str | None:
        """Return a line to log, if there is something new. free_bytes: for this user."""
        least = min(LOG_FREE_BYTES_MIN, total_bytes // _SMALL_DISK_SHARE)
        percent = 100 * (1 - free_bytes / total_bytes) if total_bytes else 0.0
        text = None
        if free_bytes < least and not self.is_short:
            self.is_short = True
            text = (
                f"only {free_bytes:,} bytes are free, so no events are taken; agents keep them. Delete runs "
                "(chiplog prune), or make room"
            )
        elif self.is_short and free_bytes >= 2 * least:  # not at once again
            self.is_short = False
            text = f"{free_bytes:,} bytes are free: events are taken again"
        elif percent >= DISK_WARNING_PERCENT and not self._is_warned:
            text = f"{percent:.0f} % of the disk is in use, {free_bytes / GIB:.1f} GiB are free; see chiplog prune"
        self._is_warned = percent >= (_QUIET_PERCENT if self._is_warned else DISK_WARNING_PERCENT)
        return text
