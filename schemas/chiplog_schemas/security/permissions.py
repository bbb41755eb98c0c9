"""What a peer's key permits, pure. A key carries roles, and the nodes for which it may deliver."""

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import blake2b

SENDER_BYTES = 16


class Role(StrEnum):
    """What a key is for."""

    COLLECTOR = "collector"  # run a collector: always the server
    AGENT = "agent"  # deliver to a collector; serve ranks
    READER = "reader"  # query with SQL
    RANK = "rank"  # deliver to an agent
    ADMIN = "admin"  # change what was recorded; in addition to reader


CLIENT_ROLES = (Role.AGENT, Role.READER, Role.RANK, Role.ADMIN)

# The purpose of a server socket, as ZAP's domain, and the role that it admits.
DOMAINS = {"ingest": Role.AGENT, "query": Role.READER, "ranks": Role.RANK}


@dataclass(frozen=True, slots=True)
class Permission:
    """What one allowed key may do. nodes: names or patterns (`gpu-*`, `*`); without any, no node."""

    name: str
    roles: frozenset[str]
    nodes: tuple[str, ...]
    public: str

    def denial_reason(self, node: object) -> str | None:
        """Return one line with the reason why this key may not deliver for a node, None if it may."""
        if isinstance(node, str) and matches_node(self.nodes, node):
            return None
        return (
            f"key {self.name} may speak for {', '.join(self.nodes) or 'no node'}, not for node {str(node)[:128]!r}; "
            f"give the agent that --node, or allow its key again with this one"
        )


def matches_node(nodes: tuple[str, ...], node: str) -> bool:
    """Return True if one of these names or patterns covers a node."""
    return any(fnmatchcase(node, pattern) for pattern in nodes)  # safeguard: foreign-node-refused


def scoped_sender_id(sender: bytes, permit: Permission) -> bytes:
    """Return the internal ID of a sender.

    It depends on the key, so no key reaches the numbers of another key's senders.
    """
    return blake2b(sender, key=permit.name.encode()[:64], digest_size=SENDER_BYTES).digest()
