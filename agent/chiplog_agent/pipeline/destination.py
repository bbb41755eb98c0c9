"""Where a starting agent delivers: to the collector that it was given, else to the one for which the spool was filled.

An agent that a training or a reader starts in place of a configured one delivers to the same collector, with the same
keys and under the same node name. So an agent that was killed costs nothing until its service starts it again.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from chiplog_schemas.addresses import check_connect
from chiplog_schemas.paths import Paths
from chiplog_schemas.security.key_files import host_key_name, keys_dir, node_name
from chiplog_schemas.transport.collector_memory import (
    LOCAL,
    RememberedCollector,
    forget_collector,
    remember_collector,
    remembered_collector,
)

_log = logging.getLogger("chiplog.agent")


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an agent delivers, and as which node. address: None for the collector of the same CHIPLOG_DIR."""

    address: str | None
    keys: str
    node: str
    is_configured: bool  # by `chiplog agent`, not by the environment of a training

    def keep(self, places: Paths) -> None:
        """Remember this for the agents that follow, and log a change. A disk that refuses is logged."""
        former = remembered_collector(places.agent)
        present = None
        if self.address is not None:
            present = RememberedCollector(self.address, self.keys, self.node, self.is_configured)
        if former is not None and (present is None or former.address != present.address):
            goal = self.address or "the collector of this directory"
            _log.warning("events go to %s now, with all that wait; the spool was for %s", goal, former.address)
        try:
            if present is None:
                forget_collector(places.agent)
            elif present != former:
                remember_collector(places.agent, present)
        except OSError as error:
            _log.warning("the collector of the spool cannot be remembered: %s", error)


def choose_destination(
    places: Paths,
    collector: str | None,
    keys: str | None,
    node: str | None,
    environ: Mapping[str, str],
    *,
    embedded: bool,
) -> Destination:
    """Return where to deliver. collector, keys, node: the options. Raises AddressError, KeysError."""
    former = remembered_collector(places.agent)
    named = collector or environ.get("CHIPLOG_COLLECTOR") or None
    # safeguard: configured-collector-kept
    if former is not None and collector is None and (named is None or (embedded and former.is_configured)):
        if named is not None and named != former.address:
            _log.warning("CHIPLOG_COLLECTOR %s is not used: the spool is for %s", named, former.address)
        kept_keys = str(keys_dir(keys, environ, places.root)) if keys else former.keys
        return Destination(former.address, kept_keys, node_name(node or former.node), former.is_configured)
    address = check_connect(named) if named is not None and named != LOCAL else None
    own = node or environ.get("CHIPLOG_NODE", "").strip() or host_key_name()
    return Destination(address, str(keys_dir(keys, environ, places.root)), node_name(own), not embedded)
