"""Commands whose only network is the loopback interface, of a network namespace of their own."""

import os
from pathlib import Path

from tests.support.tools import NETWORK_NAMESPACE, require

TOOLS = ("ip", "unshare", NETWORK_NAMESPACE)
# Python for a process inside: how many packets had no route there since the namespace was made. Each try to reach an
# address beyond loopback is one, of any process in any language, also a name that DNS is asked for.
N_STRAY = "int(dict(zip(*(line.split() for line in open('/proc/net/snmp') if line[:3] == 'Ip:')))['OutNoRoutes'])"


def on_loopback(command: list[str]) -> list[str]:
    """Return what runs a command in a namespace of its own. Only sockets in the file system lead out of it."""
    require(*TOOLS)
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    inside = 'PATH="$PATH:/usr/sbin:/sbin" ip link set lo up && exec "$@"'
    return ["unshare", *user, "--net", "sh", "-c", inside, "sh", *command]


def processes_with(variable: str, value: str) -> list[int]:
    """Return the processes that have a variable in their environment, as it was when they were started."""
    entry = f"{variable}={value}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            pass  # it has ended, or it is another user's
    return found
