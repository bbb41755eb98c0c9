"""The GPUs that were found at each place of a node, and which are lost: a file, for a lost GPU tells no UUID."""

import json
from collections.abc import Mapping
from pathlib import Path

from chiplog_agent.stats.gpu.nvml import address_of
from chiplog_schemas.atomic_file import atomic_write

_ENTRIES_MAX = 1024  # places and devices; a node has 16 GPUs with 7 instances each
_FILE_BYTES_MAX = 1 << 20


class KnownGpus:
    """UUIDs by place, and the devices that are lost and not back. path: None: they are known to this process only.

    A damaged or missing file counts as empty.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.uuids: dict[str, str] = {}
        self.lost: frozenset[str] = frozenset()
        if path is not None:
            self._read(path)
        self._written = self._content()

    def note(self, places: Mapping[str, str]) -> dict[str, str]:
        """Note the GPUs that were found: place → UUID. One that was moved leaves its former place.

        Return the replaced ones: UUID → that of the GPU which has its PCI address now. An index says nothing, and
        takes the place of no address: GPUs that are lost may change it.
        """
        found = set(places.values())
        addressed = {uuid for place, uuid in places.items() if address_of(place)}
        replaced = {
            self.uuids[place]: uuid for place, uuid in places.items() if place in self.uuids and address_of(place)
        }
        left = {place for place, uuid in self.uuids.items() if uuid in (addressed if address_of(place) else found)}
        self.uuids = {place: uuid for place, uuid in self.uuids.items() if place not in left} | dict(places)
        return {former: uuid for former, uuid in replaced.items() if former not in found}

    def save(self, lost: frozenset[str]) -> None:
        """Write what has changed since the last call; a failure is tried again at the next one."""
        self.lost = lost
        content = self._content()
        if self._path is None or content == self._written:
            return
        try:
            atomic_write(self._path, content)
        except OSError:
            return  # a full disk
        self._written = content

    def _content(self) -> bytes:
        places = dict(list(self.uuids.items())[-_ENTRIES_MAX:])
        return json.dumps({"uuids": places, "lost": sorted(self.lost)[:_ENTRIES_MAX]}).encode()

    def _read(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                known = json.loads(file.read(_FILE_BYTES_MAX))
            self.uuids = {str(place): str(uuid) for place, uuid in known["uuids"].items()}
            self.lost = frozenset(map(str, known["lost"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.uuids, self.lost = {}, frozenset()
