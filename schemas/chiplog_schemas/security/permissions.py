"""Who may do what: what the key of a peer allows it, pure. A key carries roles, and the nodes that it may speak for."""

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import blake2b

SENDER_BYTES = 16


class Role(StrEnum):
    """What a key is for."""

    COLLECTOR = "collector"  # be one: only ever the server
    AGENT = "agent"  # deliver to a collector; be the server of ranks
    READER = "reader"  # ask SQL
    RANK = "rank"  # deliver to an agent


CLIENT_ROLES = (Role.AGENT, Role.READER, Role.RANK)

# What a server socket is for, as ZAP knows it, and the role that is let in there.
DOMAINS = {"ingest": Role.AGENT, "query": Role.READER, "ranks": Role.RANK}


@dataclass(frozen=True, slots=True)
class Permission:
    """What one allowed key may do. nodes: names or patterns (`gpu-*`, `*`); a key without any speaks for no node."""

    name: str
    roles: frozenset[str]
    nodes: tuple[str, ...]
    public: str

    def denial_reason(self, node: object) -> str | None:
        """Return one line that says why this key may not speak for a node, None when it may."""
        if isinstance(node, str) and any(fnmatchcase(node, pattern) for pattern in self.nodes):
            return None
        return (
            f"key {self.name} may speak for {', '.join(self.nodes) or 'no node'}, not for node {str(node)[:128]!r}; "
            f"give the agent that --node, or allow its key again with this one"
        )


def scoped_sender_id(sender: bytes, permit: Permission) -> bytes:
    """Return the ID under which a sender is known inside: no key can reach the numbers of another key's senders."""
    return blake2b(sender, key=permit.name.encode()[:64], digest_size=SENDER_BYTES).digest()
