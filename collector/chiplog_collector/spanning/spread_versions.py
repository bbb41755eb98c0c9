"""Numbers of the versions of artifacts in a store of several logs, pure: the same for every reader, and then fixed.

They are in the order in which their pieces were cut: by time, then by log and record. A version has no number until
each log that lives has published all that it cut up to that time: nothing can come before it any more.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Digest = tuple[str, str, str]  # project, name and digest


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """A version as one log has it.

    Attributes:
        log: The ID of the log.
        digest: What it is a version of, and its content.
        cut_us: When its piece was cut, in µs; None if that is not known yet.
        record: The record that ends the piece.
        version: Its number within the log.
    """

    log: str
    digest: Digest
    cut_us: int | None
    record: int
    version: int


def numbered(seen: Iterable[SeenVersion], passed: Mapping[str, int] | None) -> dict[Digest, int | None]:
    """Return the number of each version of artifacts; None while that is open.

    Args:
        seen: All versions of all logs.
        passed: By log that lives, the time in µs up to which the store has all that it cut; None: not known.
    """
    by_name: dict[tuple[str, str], list[SeenVersion]] = defaultdict(list)
    for version in seen:
        by_name[version.digest[:2]].append(version)
    found: dict[Digest, int | None] = {}
    for versions in by_name.values():
        first: dict[Digest, SeenVersion] = {}
        for version in sorted(versions, key=_order):
            first.setdefault(version.digest, version)
        for number, (digest, version) in enumerate(first.items()):
            found[digest] = number if _is_fixed(version, passed) else None
    return found


def _order(version: SeenVersion) -> tuple[bool, int, str, int, int]:
    return version.cut_us is None, version.cut_us or 0, version.log, version.record, version.version


def _is_fixed(version: SeenVersion, passed: Mapping[str, int] | None) -> bool:
    if version.cut_us is None or passed is None:
        return False
    # safeguard: version-waits-for-each-log
    return all(log == version.log or time_us > version.cut_us for log, time_us in passed.items())
