"""What every source of samples is: a small class that reads, and says how often, and how long that may take."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

DUE_SLACK_S = 0.05  # a timer wakes late or early: what is due each 10 s must not skip to the 11th
HOST_DEVICE = ""  # the device of what belongs to the whole node
READ_ERRORS = (OSError, ValueError, KeyError, IndexError, AttributeError, RuntimeError)  # psutil's included


class Reading(NamedTuple):
    """Values of one device. `names`, all of them in SYSTEM_METRICS, and `values` correspond by position."""

    device: str
    names: tuple[str, ...]
    values: tuple[float, ...]


class AbsentError(Exception):
    """This machine lacks what a source reads: the source is left out. The message is a line with the reason, if any."""


class Source(ABC):
    """Reads some metrics.

    Attributes:
        title: Names the source where it fails or does not answer; the device, if it has only one.
        period_s: Between two readings, in s; 0: each interval of the agent.
        deadline_s: After which a reading is late, in s. None: it cannot hang, as files of /proc, and is read in the
            sampler's loop; any other has a thread of its own.
        missing: A line about values that the last reading lacked, and why; "" without any.
    """

    title: str
    period_s: float = 0.0
    deadline_s: float | None = None
    missing: str = ""

    @abstractmethod
    def read(self) -> Iterable[Reading]:
        """Return the current values. Raises AbsentError, or one of READ_ERRORS: then this reading is left out."""
