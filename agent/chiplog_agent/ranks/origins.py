"""Where a producer's process runs, by the kernel: the host and PID that a rank reports hold only in its container."""

import os
from collections.abc import Mapping
from typing import Any

from chiplog_agent.pipeline.batcher import Origin
from chiplog_schemas.process.procfs import boot_id, pid_namespace, start_ticks

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SLACK_US = 1_000_000  # one clock tick, and rounding


def origin_of_living(pid: int, identity: Mapping[str, Any], *, is_local: bool) -> Origin:
    """Return the origin of a producer that has just connected.

    pid: from the kernel, 0 if unknown. identity: its own. is_local: it connected through a Unix socket. A producer that
    connected over TCP is on this machine if it names this boot, which all containers of a machine share; it is not
    sampled.
    """
    if not is_local:  # safeguard: no-samples-over-tcp
        return Origin(is_remote=identity.get("boot") != boot_id())
    start = start_ticks(pid) if pid > 0 else 0
    uptime_us = identity.get("uptime", start * 1_000_000 // _TICKS_PER_S)
    if start * 1_000_000 // _TICKS_PER_S > uptime_us + _SLACK_US:  # safeguard: reused-pid-is-another
        return Origin()  # the process is younger than the producer: the PID was reused
    return Origin(pid, start)


def origin_of_dead(pid: int, identity: Mapping[str, Any]) -> Origin:
    """Return the origin of a producer whose journal was adopted and that never connected.

    pid: from the kernel, if this agent saw the process; 0 otherwise. Then the journal's own PID counts if it is of this
    PID namespace. A journal of another boot may have been copied from another machine.
    """
    if identity.get("boot", boot_id()) != boot_id():
        return Origin(is_remote=True)
    if pid <= 0 and identity.get("pid_namespace", 0) == pid_namespace() != 0:  # safeguard: pid-of-own-namespace
        pid = identity.get("pid", 0)
    return Origin(max(0, pid))
