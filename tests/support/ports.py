"""Free TCP ports of this host, for addresses that a test must know before a process listens there."""

import random
import socket

# Below the ports that Linux gives to clients (net.ipv4.ip_local_port_range): no connection of another test takes one
# before its process listens, and no client that waits for a listener connects to itself.
_FIRST, _LAST = 12_000, 32_000


def free_ports(count: int = 2, host: str = "127.0.0.1") -> int:
    """Return the first of `count` consecutive free ports: a collector answers SQL at the port after that of events."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        first = random.SystemRandom().randint(_FIRST, _LAST - count)  # tests run side by side
        probes = [socket.socket(family) for _ in range(count)]
        try:
            for port, probe in enumerate(probes, start=first):
                probe.bind((host, port))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
