"""The collector's end of saved files: messages to the state machine, jobs to the store, records of stored files.

A file counts as stored once the log has its record: then its agent gets STORED and removes its copy.
"""

from dataclasses import dataclass
from pathlib import Path

from chiplog_collector.receiver.file_store import (
    ContentMismatch,
    ContentStored,
    FileStore,
    OpenPhase,
    PartClosed,
    PartWritten,
    WriteDenied,
)
from chiplog_schemas.protocol.actions import Reply
from chiplog_schemas.protocol.file_receiver import FileReceiverAction, FileReceiverProtocol
from chiplog_schemas.security.permissions import Permission


@dataclass(frozen=True, slots=True)
class Arrived:
    """A content is on stable storage and must be logged. nodes: of its sender's key, None when unrestricted."""

    sender: bytes
    nodes: tuple[str, ...] | None
    digest: bytes
    n_bytes: int


class FileTransfers:
    """Receives files. Owned by the receiver's thread; only the store has a thread."""

    def __init__(self, directory: Path, bytes_max: int) -> None:
        self._protocol = FileReceiverProtocol()
        self._store = FileStore(directory, bytes_max)
        self._logged: list[int] = []  # tokens whose record waits for a commit

    def fileno(self) -> int:
        """Return a descriptor that is readable when `step` has something to do."""
        return self._store.fileno()

    @property
    def is_idle(self) -> bool:
        """Return True if no file is being received."""
        return self._protocol.is_idle

    @property
    def malformed(self) -> int:
        """How many messages were invalid."""
        return self._protocol.malformed

    def receive(self, routing: bytes, frames: list[bytes], now: float, permit: Permission | None) -> list[Reply]:
        """Process a message of an agent; return the answers."""
        return self._act(self._protocol.receive(routing, frames, now, permit))

    def step(self, now: float) -> tuple[list[Reply], list[Arrived]]:
        """Process the store's answers and timeouts; return replies, and the files to log."""
        replies = self._act(self._protocol.tick(now))
        arrived: list[Arrived] = []
        for answer in self._store.results():
            match answer:
                case OpenPhase(token, offset):
                    replies += self._act(self._protocol.opened(token, offset))
                case PartWritten(token, offset):
                    replies += self._act(self._protocol.written(token, offset))
                case WriteDenied(token, reason):
                    replies += self._act(self._protocol.refused(token, reason))
                case ContentMismatch(token):
                    replies += self._act(self._protocol.mismatched(token))
                case PartClosed(token):
                    self._protocol.closed(token)
                case ContentStored(token, digest, n_bytes):
                    sender, permit = self._protocol.sender_of(token)
                    arrived.append(Arrived(sender, permit.nodes if permit is not None else None, digest, n_bytes))
                    self._logged.append(token)  # safeguard: stored-after-log
        return replies, arrived

    def committed(self) -> list[Reply]:
        """Return the replies to the senders whose records the last commit made durable."""
        logged, self._logged = self._logged, []
        return [reply for token in logged for reply in self._act(self._protocol.stored(token))]

    def close(self) -> None:
        """Let the store finish its current jobs."""
        self._store.close()

    def _act(self, actions: list[FileReceiverAction]) -> list[Reply]:
        replies = []
        for action in actions:
            if isinstance(action, Reply):
                replies.append(action)
            else:
                self._store.submit(action)
        return replies
