"""Which sender may deliver for which producer, pure: an agent's key covers node names, and a producer has a node.

A receipt names the nodes that the sender of a record may speak for. Data of its blocks about a producer of another node
is neither applied nor entered in the ledger, so that the data of the rightful sender still counts. A producer is bound

- to the node of its agent, which PEER names, in the current block or an earlier one;
- without any, as with older agents, to the node that its identity names, likewise;
- as long as no identity is known, to the names of the first restricted sender that delivers for it. Refusing it until
  then would lose everything after a damaged event 0, and no other sender can guess a producer's 16 random bytes.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from chiplog_collector.index.apply.apply_context import ApplyContext
from chiplog_collector.index.apply.validation import clean
from chiplog_schemas.codec import CodecError
from chiplog_schemas.limits import NAME_CHARS_MAX
from chiplog_schemas.model.block_decoder import Block, decode_block
from chiplog_schemas.model.block_format import OPAQUE, BlockError
from chiplog_schemas.model.events import (
    IDENTITY_FIELDS,
    LOCATION_FIELDS,
    PRODUCER_BYTES,
    EventKind,
    decode,
    select_typed,
)
from chiplog_schemas.model.import_event import identity_of_import
from chiplog_schemas.model.receipt import RestrictedSender
from chiplog_schemas.security import permissions

REFUSALS_PER_KEY_MAX = 1_000  # rows in `events` per set of nodes; a peer can invent producers and senders
_NODE_CHARS = 128  # of the node names in a message, which may be the whole list of a key


class NodeAuthorization:
    """Rejects what a restricted sender reports about producers of other nodes."""

    def __init__(self, context: ApplyContext) -> None:
        self._context = context
        self._state = context.state
        self._identities: dict[bytes, dict[str, Any]] = {}  # in the block being checked, by producer

    def unauthorized(self, restricted: RestrictedSender, number: int, block: Block) -> frozenset[int]:
        """Return the producers of a block that the sender may not deliver for. Bind those that are not bound yet.

        number: of the block's record.
        """
        # safeguard: key-checked-against-node
        for uuid, node, is_remote in _located(block):  # first, because the rest of this block depends on it
            if (
                uuid not in self._state.deleted
                and self.authorize(restricted, uuid, number, [node])
                and (about := self._context.producer(uuid)).agent_node is None
            ):
                about.agent_node, about.is_remote = node, is_remote
        claims: dict[int, list[str]] = {}
        self._identities = {}
        for index, node, identity in _claimed_nodes(block):
            claims.setdefault(index, []).append(node)
            self._identities[block.producers[index][0]] = identity
        producers = enumerate(block.producers)
        return frozenset(
            i
            for i, (uuid, _) in producers
            if uuid not in self._state.deleted and not self.authorize(restricted, uuid, number, claims.get(i, ()))
        )

    def foreign(self, nodes: tuple[str, ...], payload: bytes | memoryview) -> frozenset[bytes]:
        """Return the producers in a block that a key for these nodes does not cover."""
        try:
            groups = decode_block(payload).groups
        except BlockError:
            return frozenset()
        kinds = (EventKind.PEER, EventKind.LOST)
        named = [about for group in groups if group.kind in kinds for about in group.columns["about"]]
        producers = {about for about in named if isinstance(about, bytes) and len(about) == PRODUCER_BYTES}
        return frozenset(about for about in producers if self._foreign_node(nodes, about, ()) is not None)

    def authorize(
        self, restricted: RestrictedSender, uuid: bytes, number: int, claimed: list[str] | tuple[str, ...] = ()
    ) -> bool:
        """Return True if a sender may deliver for a producer, or report about it. A row in `events` reports a refusal.

        claimed: nodes that its agent, or the producer's identities, name in this block. An identity's node does not
        count once an agent has reported a node.
        """
        foreign = self._foreign_node(restricted.nodes, uuid, claimed)
        if foreign is not None:
            self._record(restricted, uuid, number, foreign)
            return False
        producer = self._context.producer(uuid)
        if producer.key_node is None and not producer.nodes:
            producer.nodes = list(restricted.nodes)  # safeguard: unnamed-producer-bound-to-key
            self._context.batch.producers.add(producer.producer)
        return True

    def _foreign_node(self, nodes: tuple[str, ...], uuid: bytes, claimed: list[str] | tuple[str, ...]) -> str | None:
        """Return the node, or the names, that the key does not cover."""
        producer = self._state.producers.get(uuid)
        if producer is not None and producer.agent_node is not None:
            return None if matches_node(nodes, producer.agent_node) else producer.agent_node
        for node in claimed:
            if not matches_node(nodes, node):
                return node
        if producer is not None and producer.node is not None:
            return None if matches_node(nodes, producer.node) else producer.node
        bound = tuple(producer.nodes) if producer is not None else ()
        if bound in ((), nodes):
            return None if nodes else "any"
        return None if claimed and all(matches_node(bound, node) for node in claimed) else ", ".join(bound)

    def _record(self, restricted: RestrictedSender, uuid: bytes, number: int, node: str) -> None:
        """Add one row per producer and sender, however often the sender tries."""
        reported = self._state.refused.setdefault(restricted.nodes, set())
        # safeguard: refusal-is-one-row
        if (uuid, restricted.sender) in reported or len(reported) >= REFUSALS_PER_KEY_MAX:
            return
        reported.add((uuid, restricted.sender))
        names = ", ".join(restricted.nodes) or "no node"
        run_id, label = self._run_of(uuid)
        message = (
            f"{label or 'a producer'} of {run_id or 'no run'} is refused: a key for {names} does not speak for "
            f"{node[:_NODE_CHARS]}; its events are kept until the key is allowed with --node for both"
        )
        body = {
            "record": number,
            "sender": restricted.sender.hex(),
            "producer": uuid.hex(),
            "nodes": list(restricted.nodes),
            "node": node[:_NODE_CHARS],
            "run_id": run_id,
            "label": label,
        }
        self._context.emit_event(None, number, self._context.received_us, "refused_node", "error", message, body)

    def _run_of(self, uuid: bytes) -> tuple[str | None, str | None]:
        """Return run ID and label of a producer: its own, else those that its identity in this block names."""
        producer = self._state.producers.get(uuid)
        if producer is not None and producer.run is not None:
            return self._state.runs_by_number[producer.run].run_id, producer.label
        described = self._identities.get(uuid, {})
        run_id, label = described.get("run_id"), described.get("label")
        return run_id and clean(run_id)[:NAME_CHARS_MAX], label and clean(label)[:NAME_CHARS_MAX]


def matches_node(nodes: tuple[str, ...], node: str) -> bool:
    """Return True if names or patterns cover a node. A node's name is compared as far as the index keeps it."""
    return _matches_node(nodes, node[:NAME_CHARS_MAX])  # safeguard: node-name-bounded


_matches_node = lru_cache(maxsize=4096)(permissions.matches_node)


def _located(block: Block) -> Iterator[tuple[bytes, str, bool]]:
    """Yield (producer's 16 bytes, node, is_remote) for the producers whose place an agent reports in a block."""
    for group in block.groups:
        if group.kind == EventKind.PEER:
            pairs = zip(group.columns["about"], group.columns["state"], strict=True)
            for uuid, body in pairs:
                about = select_typed(body, LOCATION_FIELDS)
                if "node" in about and isinstance(uuid, bytes) and len(uuid) == PRODUCER_BYTES:
                    yield uuid, clean(about["node"])[:NAME_CHARS_MAX], about.get("remote", False)


def _claimed_nodes(block: Block) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (producer's index, node, identity) of a block's identities, also of those in events kept verbatim."""
    for group in block.groups:
        if group.kind == EventKind.IDENTITY:
            bodies = group.columns["identity"]
        elif group.kind == OPAQUE:  # safeguard: opaque-identity-found
            bodies = [_identity_in(payload) for payload in group.columns["payload"]]
        else:
            continue
        for index, body in zip(group.producer.tolist(), bodies, strict=True):
            identity = select_typed(body, IDENTITY_FIELDS)
            if "node" in identity:
                yield index, clean(identity["node"])[:NAME_CHARS_MAX], identity  # as the registry stores it


def _identity_in(payload: object) -> object:
    try:
        event = decode(payload if isinstance(payload, bytes) else b"")
    except CodecError:
        return None
    if event[0] == EventKind.IMPORTED and len(event) > 2:
        return identity_of_import(event[2])  # safeguard: import-of-foreign-node-refused
    return event[2] if event[0] == EventKind.IDENTITY and len(event) > 2 else None
