"""Hosts with keys: those of agents, and the collector's."""

from pathlib import Path

import chiplog
from chiplog_cli.root import main
from chiplog_schemas.codec import unpack
from chiplog_schemas.storage.record import Kind, Record, scan_records
from chiplog_schemas.storage.segment_format import SEGMENT_HEADER_BYTES
from tests.support.node import Node
from tests.support.ports import free_ports
from tests.support.waiting import wait_until


class Host(Node):
    """A host: its directory, its keys, and what runs on it."""

    def keys(self, *arguments: str) -> None:
        assert main(["keys", "--keys", str(self.key_directory), *arguments]) == 0

    @property
    def key_directory(self) -> Path:
        return self.root / "keys"

    def start_at(self, address: str, *flags: str) -> None:
        """Start an agent that delivers to this collector."""
        self.start_agent("--collector", address, *flags)

    def log(self, *values: float) -> None:
        """Be a rank of this host."""
        with chiplog.init(dir=self.root, agent=self.place.agent_address, capture_console=False) as run:
            for value in values:
                run.log({"x": value})


class Centre(Host):
    """The collector's host."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.address = f"tcp://127.0.0.1:{free_ports()}"

    def start_collector(self, *flags: str) -> None:
        self.collector = self._start("chiplog_collector", "--bind", self.address, *flags)
        wait_until(lambda: self.try_sql("SELECT 1"), "a collector that answers")

    def admit(self, host: Host, role: str, *flags: str) -> None:
        """Let a new key of a host in, and give it the collector's."""
        host.keys("new", role, "--name", f"{host.root.name}-{role}")
        self.keys("allow", str(host.key_directory / f"{role}.pub"), *flags)
        give(self, host)

    def stored(self) -> list[float]:
        return sorted(row["value"] for row in self.try_sql("SELECT value FROM metrics WHERE key = 'x'"))

    def accepted(self) -> list[tuple[bytes, int]]:
        """Return what the receiver has accepted of others, by commit: the sender, and how many records."""
        found: list[tuple[bytes, int]] = []
        for path in sorted((self.place.collector / "log").glob("*.seg")):
            for record in scan_records(path.read_bytes()[SEGMENT_HEADER_BYTES:], sealed=False):
                if isinstance(record, Record) and record.kind == Kind.RECEIPT:
                    rows = unpack(record.payload)[1]
                    found += [(row[0], row[3]) for row in rows if any(row[0])]  # zeros: the collector itself
        return found


def give(centre: Host, host: Host, name: str = "collector") -> None:
    (host.key_directory / f"{name}.pub").write_bytes((centre.key_directory / f"{name}.pub").read_bytes())
