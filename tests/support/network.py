"""Several hosts on one machine: network namespaces on a bridge, whose links are cut, lost, delayed and healed.

Host i has the address 10.77.0.i and the name node{i}. Nothing touches the machine's own network: every interface is
made inside a namespace. Namespaces carry this process's PID in their names, so that two runs do not meet, and are torn
down by `close`; those of a test process that was killed are removed by the next. Needs root and TOOLS.
"""

import atexit
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.tools import NAMESPACES, require
from tests.support.waiting import WAIT_S, wait_until

PREFIX = "chiplog"
TOOLS = ("ip", "iptables", "ethtool", "unshare", NAMESPACES)
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_RUN_DIR = Path("/run/netns")
_ONE_WAY_S = 0.5  # time in which an agent whose rank logs sends something that requires an answer
_numbers = itertools.count()


class Network:
    """Hosts 1..n on a bridge. A context manager; `close` ends what still runs on them.

    slow: hosts whose link has a delay of `delay_ms` ± `jitter_ms` in each direction and loses `loss_percent`.
    """

    def __init__(
        self,
        hosts: int,
        *,
        slow: Iterable[int] = (),
        delay_ms: float = 50,
        jitter_ms: float = 20,
        loss_percent: float = 2,
    ) -> None:
        require(*TOOLS)
        _remove_leftovers()
        self._name = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
        self._slow = frozenset(slow)
        self._wire = [str(delay_ms), str(jitter_ms), str(loss_percent)]
        self._wires: dict[int, subprocess.Popen[bytes]] = {}
        self._namespaces: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        atexit.register(self.close)
        try:
            self._switch = self._namespace("sw")
            _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "br0", "addrgenmode", "none", "up")
            for host in range(1, hosts + 1):
                self._connect(host)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- hosts --

    @staticmethod
    def address(host: int) -> str:
        """Return a host's IP address."""
        return f"10.77.0.{host}"

    def start(self, host: int, command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a process on a host. Its PID is that of the command itself. It is killed by `close` at the latest."""
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"node{host}", *command]
        process = subprocess.Popen(["ip", "netns", "exec", self._host(host), *inside], env=_environ(options), **options)
        self._processes.append(process)
        return process

    def run(self, host: int, *command: str) -> str:
        """Run a command on a host and return its output."""
        return _call("ip", "netns", "exec", self._host(host), *command)

    def vanish(self, host: int) -> None:
        """Remove a host without notice: no FIN and no RST. Its processes are killed."""
        self.unplug(host)
        # A process that is syncing dies when its disk has answered, and one that was just forked is found next time.
        wait_until(lambda: not self._kill_all(host), "the end of a host's processes")
        _ip("-n", self._switch, "link", "del", f"p{host}")
        _ip("netns", "del", self._host(host))
        self._namespaces.remove(self._host(host))

    def appear(self, host: int) -> None:
        """Let a host that vanished come again: another machine with the same address, which knows no connection."""
        self._connect(host)

    # -- faults --

    def cut(self, at: int, source: int) -> None:
        """Drop at one host what comes from another: one way."""
        self._filter(at, "-A", "INPUT", "-s", self.address(source), "-j", "DROP")

    def reset(self, at: int, source: int) -> None:
        """Answer at one host each TCP segment of another by RST, as a restarted firewall does, until `heal`."""
        self._filter(
            at, "-A", "INPUT", "-s", self.address(source), "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"
        )

    def forget_flows(self, at: int, source: int, port: int) -> list[str]:
        """Drop at one host, both ways, what belongs to the connections that another has to its port now.

        A middlebox whose table was emptied does the same: new connections pass, the old ones stay silent. The host's
        own packets are dropped a moment before those to it, so that an answer is under way that never arrives. Return
        the other's ports.
        """
        ports = self.connected_ports(at, source, port)
        for other in ports:
            self._filter(at, "-A", "OUTPUT", "-d", self.address(source), "-p", "tcp", "--dport", other, "-j", "DROP")
        time.sleep(_ONE_WAY_S)
        for other in ports:
            self._filter(at, "-A", "INPUT", "-s", self.address(source), "-p", "tcp", "--sport", other, "-j", "DROP")
        return ports

    def connected_ports(self, at: int, source: int, port: int) -> list[str]:
        """Return from which ports a host has connections to a port of another, as the latter sees it."""
        output = self.run(
            at, "ss", "-Htn", "state", "established", f"sport = :{port}", "and", f"dst {self.address(source)}"
        )
        return [line.split()[3].rpartition(":")[2] for line in output.splitlines()]

    def heal(self, host: int) -> None:
        """Undo every `cut`, `reset` and `forget_flows` at a host."""
        self._filter(host, "-F")

    def unplug(self, host: int) -> None:
        """Pull a host's cable."""
        _ip("-n", self._switch, "link", "set", f"p{host}", "down")

    def plug(self, host: int) -> None:
        """Put it in again."""
        _ip("-n", self._switch, "link", "set", f"p{host}", "up")

    # -- the end --

    def close(self) -> None:
        """Kill what runs on the hosts and remove them. May be called twice."""
        atexit.unregister(self.close)
        for process in [*self._processes, *self._wires.values()]:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._processes.clear()
        self._wires.clear()
        for namespace in reversed(self._namespaces):
            _remove(namespace)
        self._namespaces.clear()

    # -- inside --

    def _kill_all(self, host: int) -> int:
        """Kill what runs on a host; return how many processes."""
        pids = _call("ip", "netns", "pids", self._host(host)).split()
        for pid in pids:
            _kill(int(pid))
        return len(pids)

    def _host(self, host: int) -> str:
        return f"{self._name}-n{host}"

    def _namespace(self, name: str) -> str:
        full = f"{self._name}-{name}"
        _ip("netns", "add", full)
        self._namespaces.append(full)
        _ip("-n", full, "link", "set", "lo", "up")
        return full

    def _connect(self, host: int) -> None:
        namespace = self._namespace(f"n{host}")
        port = f"p{host}"
        if host in self._slow:
            self._pair(namespace, "e0", self._switch, f"a{host}")
            self._pair(self._switch, f"b{host}", self._switch, port)
            for end in (f"a{host}", f"b{host}"):
                _call("ip", "netns", "exec", self._switch, "ethtool", "-K", end, "gro", "off")
            command = [sys.executable, "-m", "tests.support.wire", f"a{host}", f"b{host}", *self._wire]
            self._wires[host] = subprocess.Popen(["ip", "netns", "exec", self._switch, *command])
        else:
            self._pair(namespace, "e0", self._switch, port)
        # The address of the card stays with the host's number: a successor's is the same, as when a machine moves.
        _ip("-n", namespace, "link", "set", "e0", "down")
        _ip("-n", namespace, "link", "set", "e0", "address", f"02:77:00:00:00:{host:02x}")
        _ip("-n", namespace, "addr", "add", f"{self.address(host)}/24", "dev", "e0")
        _ip("-n", namespace, "link", "set", "e0", "up")
        _call("ip", "netns", "exec", namespace, "ethtool", "-K", "e0", "tx", "off", "tso", "off", "gso", "off")
        _ip("-n", self._switch, "link", "set", port, "master", "br0")

    def _pair(self, one: str, end: str, other: str, other_end: str) -> None:
        _ip("link", "add", end, "netns", one, "type", "veth", "peer", "name", other_end, "netns", other)
        _ip("-n", one, "link", "set", end, "addrgenmode", "none", "up")
        _ip("-n", other, "link", "set", other_end, "addrgenmode", "none", "up")

    def _filter(self, host: int, *rule: str) -> None:
        _call("ip", "netns", "exec", self._host(host), "iptables", "-w", *rule)


def _environ(options: dict[str, Any]) -> dict[str, str]:
    return {**options.pop("env", os.environ), "PATH": _PATH}


def _ip(*arguments: str) -> None:
    _call("ip", *arguments)


def _call(*command: str) -> str:
    done = subprocess.run(command, env={**os.environ, "PATH": _PATH}, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass  # it ended by itself in this moment


def _remove(namespace: str) -> None:
    """Remove a namespace and the processes in it, as far as they are still there."""
    environ = {**os.environ, "PATH": _PATH}
    pids = subprocess.run(["ip", "netns", "pids", namespace], env=environ, capture_output=True, text=True, check=False)
    for pid in pids.stdout.split():
        _kill(int(pid))
    subprocess.run(["ip", "netns", "del", namespace], env=environ, capture_output=True, check=False)


def _remove_leftovers() -> None:
    """Remove the namespaces of test processes that were killed before they could."""
    for path in _RUN_DIR.glob(f"{PREFIX}-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            _remove(path.name)
