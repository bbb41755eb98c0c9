"""The receiving end of saved files, a pure state machine: the files of several senders at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chiplog_schemas.limits import FILE_CREDIT_BYTES, FILES_AT_ONCE, FILES_PER_KEY_AT_ONCE, PEER_SILENT_S
from chiplog_schemas.protocol import file_messages, messages
from chiplog_schemas.protocol.actions import Reply
from chiplog_schemas.protocol.file_messages import FileMessage, FileMessageKind
from chiplog_schemas.protocol.messages import WireError
from chiplog_schemas.security.permissions import Permission, scoped_sender_id

BUSY_WAIT_S = 1.0  # the receiver is busy with other files; each takes seconds
NO_ROOM_WAIT_S = 30.0  # retry interval while the receiver has no space


@dataclass(frozen=True, slots=True)
class Open:
    """Find out how much of a content exists. Answered by `opened`, `refused`, `mismatched` or `stored`."""

    token: int
    digest: bytes
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Write:
    """Append bytes. Answered by `written` or `refused`."""

    token: int
    payload: Any  # bytes or memoryview


@dataclass(frozen=True, slots=True)
class Finish:
    """All bytes have arrived: verify and keep them. Answered by `stored`, `refused` or `mismatched`."""

    token: int


@dataclass(frozen=True, slots=True)
class Close:
    """No agent sends this file any more; keep the bytes written so far. Answered by `closed`."""

    token: int


FileReceiverAction = Reply | Open | Write | Finish | Close


@dataclass(slots=True)
class _Transfer:
    """One file being received. Offsets count its bytes: received from the wire, and written."""

    token: int
    digest: bytes
    n_bytes: int
    sender: bytes
    session: bytes
    routing: bytes
    permit: Permission | None
    last_received_s: float
    taken: int = -1  # not opened yet
    written: int = 0
    is_finishing: bool = False


@dataclass(slots=True)
class FileReceiverProtocol:
    """The receiving end of all senders. Actions go to a store in order, whose answers come back in order.

    malformed: the number of invalid messages. A token identifies one opened file, and ends with `stored`, `refused`,
    `mismatched` or `closed`. This bounds the bytes that are with the store and in memory at a time.
    """

    malformed: int = 0
    _tokens: dict[int, _Transfer] = field(default_factory=dict)  # with the store
    _by_digest: dict[bytes, _Transfer] = field(default_factory=dict)  # contents that an agent is sending
    _by_session: dict[bytes, _Transfer] = field(default_factory=dict)
    _next_token: int = 0

    @property
    def is_idle(self) -> bool:
        """Return True if no file is being received."""
        return not self._tokens

    def receive(
        self, routing: bytes, frames: list[bytes], now: float, permit: Permission | None = None
    ) -> list[FileReceiverAction]:
        """Process a message from the peer with this routing ID. `permit` is that of its key, if it has one."""
        try:
            message = file_messages.parse(frames)
        except WireError:
            self.malformed += 1
            return []
        if message.kind == FileMessageKind.OFFER:
            return self._offered(routing, message, now, permit)
        if message.kind != FileMessageKind.CHUNK:
            return []
        transfer = self._by_session.get(message.session)
        name = permit.name if permit is not None else None
        if transfer is None or (transfer.permit.name if transfer.permit is not None else None) != name:
            return [Reply(routing, messages.reset(message.session, "session is unknown here"), permit)]
        transfer.last_received_s, transfer.routing, transfer.permit = now, routing, permit
        return self._on_chunk(transfer, message.offset, memoryview(message.payload))

    def tick(self, now: float) -> list[FileReceiverAction]:
        """Close the files that no agent sends any more."""
        silent = [t for t in self._by_digest.values() if now - t.last_received_s > PEER_SILENT_S and not t.is_finishing]
        return [self._detach(transfer) for transfer in silent]

    # -- answers of the store --

    def opened(self, token: int, offset: int) -> list[FileReceiverAction]:
        """The store has this much of the file."""
        transfer = self._active(token)
        if transfer is None:
            return []
        transfer.taken = transfer.written = offset
        return self._finish_or_want(transfer)

    def written(self, token: int, offset: int) -> list[FileReceiverAction]:
        """The store has written everything before this offset."""
        transfer = self._active(token)
        if transfer is None or transfer.is_finishing:
            return []
        transfer.written = offset
        return [self._want(transfer)]

    def refused(self, token: int, reason: str, wait_s: float = NO_ROOM_WAIT_S) -> list[FileReceiverAction]:
        """The store cannot write the file."""
        return self._end(token, lambda session: file_messages.denied(session, wait_s, reason))

    def mismatched(self, token: int) -> list[FileReceiverAction]:
        """The bytes have another digest than the offered one."""
        return self._end(token, file_messages.mismatch)

    def stored(self, token: int) -> list[FileReceiverAction]:
        """The file and the log record of it are on stable storage."""
        return self._end(token, file_messages.stored)

    def closed(self, token: int) -> None:
        """The store has closed the file."""
        self._tokens.pop(token, None)

    def sender_of(self, token: int) -> tuple[bytes, Permission | None]:
        """Return the sender of a file that is with the store."""
        transfer = self._tokens[token]
        return transfer.sender, transfer.permit

    # -- inside --

    def _offered(
        self, routing: bytes, message: FileMessage, now: float, permit: Permission | None
    ) -> list[FileReceiverAction]:
        def denied(wait_s: float, reason: str) -> list[FileReceiverAction]:
            return [Reply(routing, file_messages.denied(message.session, wait_s, reason), permit)]

        lowest, highest = file_messages.FILE_VERSIONS
        if message.versions[0] > highest or message.versions[1] < lowest:
            spoken = f"file versions {message.versions[0]}..{message.versions[1]} are not supported here"
            return denied(NO_ROOM_WAIT_S, f"{spoken} ({lowest}..{highest}); upgrade the older end")
        sender = message.sender
        if permit is not None:
            if (objection := permit.denial_reason(message.info.get("node"))) is not None:
                return denied(NO_ROOM_WAIT_S, objection)
            sender = scoped_sender_id(sender, permit)
        actions: list[FileReceiverAction] = []
        found = self._by_digest.get(message.digest)
        if found is not None and (found.sender, found.n_bytes) == (sender, message.bytes):
            self._by_session.pop(found.session, None)
            found.session, found.routing, found.permit, found.last_received_s = message.session, routing, permit, now
            self._by_session[message.session] = found
            return [self._want(found)] if found.taken >= 0 and not found.is_finishing else []
        if found is not None and found.sender != sender:
            return denied(BUSY_WAIT_S, "another agent is delivering this content")
        for other in [t for t in self._by_digest.values() if t.sender == sender and not t.is_finishing]:
            actions.append(self._detach(other))  # its sender has moved on to another file
        if len(self._tokens) >= FILES_AT_ONCE or message.digest in self._by_digest:
            return actions + denied(BUSY_WAIT_S, f"{FILES_AT_ONCE} files are being received, which is the limit")
        if permit is not None and self._taken_of(permit) >= FILES_PER_KEY_AT_ONCE:
            limit = (
                f"{FILES_PER_KEY_AT_ONCE} files of key {permit.name!r} are being received, which is the limit per key"
            )
            return actions + denied(BUSY_WAIT_S, f"{limit}; give each host a key of its own")
        self._next_token += 1
        transfer = _Transfer(
            self._next_token, message.digest, message.bytes, sender, message.session, routing, permit, now
        )
        self._tokens[transfer.token] = transfer
        self._by_digest[transfer.digest] = self._by_session[transfer.session] = transfer
        return [*actions, Open(transfer.token, transfer.digest, transfer.n_bytes)]

    def _taken_of(self, permit: Permission) -> int:
        """Return how many files of a key are with the store. The sender IDs that the key presents do not matter."""
        return sum(t.permit is not None and t.permit.name == permit.name for t in self._tokens.values())

    def _on_chunk(self, transfer: _Transfer, offset: int, payload: memoryview) -> list[FileReceiverAction]:
        end = offset + len(payload)
        if transfer.is_finishing:
            return []
        if transfer.taken < 0 or offset > transfer.taken:
            return self._broken(transfer, f"bytes {transfer.taken}..{offset - 1} were lost on the way")
        if end <= transfer.taken:
            return [self._want(transfer)]
        if end > transfer.n_bytes or end > transfer.written + FILE_CREDIT_BYTES:
            return self._broken(transfer, f"bytes up to {end} are more than was offered or asked for")
        payload = payload[transfer.taken - offset :]
        transfer.taken = end
        actions: list[FileReceiverAction] = [Write(transfer.token, payload)]
        return actions + self._finish_or_want(transfer, is_told=False)

    def _finish_or_want(self, transfer: _Transfer, *, is_told: bool = True) -> list[FileReceiverAction]:
        if transfer.taken == transfer.n_bytes:
            transfer.is_finishing = True
            return [Finish(transfer.token)]
        return [self._want(transfer)] if is_told else []

    def _want(self, transfer: _Transfer) -> Reply:
        credit = transfer.written + FILE_CREDIT_BYTES - transfer.taken
        return Reply(transfer.routing, file_messages.want(transfer.session, transfer.taken, credit), transfer.permit)

    def _broken(self, transfer: _Transfer, reason: str) -> list[FileReceiverAction]:
        reply = Reply(transfer.routing, messages.reset(transfer.session, reason), transfer.permit)
        return [reply, self._detach(transfer)]

    def _detach(self, transfer: _Transfer) -> Close:
        self._by_digest.pop(transfer.digest, None)
        self._by_session.pop(transfer.session, None)
        return Close(transfer.token)

    def _active(self, token: int) -> _Transfer | None:
        """Return a transfer, or None if it was closed."""
        transfer = self._tokens.get(token)
        return transfer if transfer is not None and self._by_digest.get(transfer.digest) is transfer else None

    def _end(self, token: int, said: Callable[[bytes], list[bytes]]) -> list[FileReceiverAction]:
        live = self._active(token)
        self._tokens.pop(token, None)
        if live is None:
            return []
        self._detach(live)
        return [Reply(live.routing, list(said(live.session)), live.permit)]
