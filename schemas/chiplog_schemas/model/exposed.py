"""What a daemon shows to a monitoring system: values with labels, and whether it works."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Exposed(NamedTuple):
    """Values of one device with the labels that say whose they are. Names of SYSTEM_METRICS; others are left out."""

    labels: Mapping[str, str]
    names: Sequence[str]
    values: Sequence[float]


class Health(NamedTuple):
    """What a daemon answers with. Each function is called in a thread of the server.

    is_alive and is_ready return why not in one line, "" if so.
    """

    collect: Callable[[], Iterable[Exposed]]
    is_alive: Callable[[], str]
    is_ready: Callable[[], str]
