"""How far the host's clock is off, as the kernel knows it from NTP or PTP."""

import ctypes
import os

from chiplog_agent.stats.source import HOST_DEVICE, AbsentError, Reading, Source
from chiplog_schemas.model.system_metrics import SLOW_S

_STA_UNSYNC, _STA_NANO = 0x0040, 0x2000  # adjtimex(2)
_UNSYNCHRONISED = "system.clock.offset is absent while nothing synchronises the clock"
_ERROR = 5  # TIME_ERROR: the clock is not synchronised


class _Timex(ctypes.Structure):
    """The beginning of struct timex of 64-bit Linux, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


class ClockSource(Source):
    """The offset that is still to be corrected; absent while nothing synchronises the clock."""

    title = "clock"
    period_s = SLOW_S

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def read(self) -> list[Reading]:
        """Ask the kernel. Raises OSError where that is forbidden, AbsentError where libc has no adjtimex."""
        timex = _Timex()
        try:
            adjtimex = self._libc.adjtimex
        except AttributeError as error:
            raise AbsentError("system.clock.offset is absent: libc has no adjtimex") from error
        state = adjtimex(ctypes.byref(timex))
        if state < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        offset_s = offset_of(timex.offset, timex.status, state)
        self.missing = _UNSYNCHRONISED if offset_s is None else ""
        return [] if offset_s is None else [Reading(HOST_DEVICE, ("system.clock.offset",), (offset_s,))]


def offset_of(offset: int, status: int, state: int) -> float | None:
    """Return the offset in s; None while the clock is not synchronised."""
    if status & _STA_UNSYNC or state == _ERROR:
        return None
    return offset / (1e9 if status & _STA_NANO else 1e6)
