"""Changes as records of a log, and ranks to apply them to."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chiplog_collector.index.changes.change_queue import ChangeQueue
from chiplog_schemas.model.change_record import Action, Change, encode_change
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import Rank
from tests.support.index import Index


def change(action: Action, number: int = 1, **body: Any) -> tuple[int, bytes]:
    return Kind.MANAGE, encode_change(Change(number.to_bytes(8, "big"), action, body))


def deletion(*ranks: Rank, run: str = "r", number: int = 1) -> tuple[int, bytes]:
    return change(Action.DELETE, number, producers=[rank.uuid for rank in ranks], runs=[run])


def logged(number: int, n_steps: int = 3, **identity: Any) -> Rank:
    rank = Rank(number, **identity)
    for step in range(n_steps):
        rank.log(step, x=float(step))
    return rank


def at_once_and_one_by_one(
    directory: Path, payloads: Sequence[Any], look: Callable[[Index], Any], *, reopens: bool = False
) -> list[Any]:
    """Return what a look finds after one flush of all payloads, and after a flush of each.

    reopens: opens the database again after each.
    """
    found = []
    for name in ("one", "each"):
        (directory / name).mkdir()
        index = Index(directory / name)
        if name == "one":
            index.take(*payloads)
        for payload in payloads if name == "each" else ():
            index.take(payload)
            if reopens:
                index.reopen()
        found.append(look(index))
        index.close()
    return found


class ChangedIndex:
    """An index, its queue of changes, and the receiver's end of its channel."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.receiver, self.channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.queue = ChangeQueue(self.channel)
        self.now = 0.0

    def turn_until_done(self, turn: Callable[[], None], step_s: float) -> int:
        """Do what the writer does, until nothing happens; return how many records the log got.

        turn: of what makes requests. step_s: the time from one look of it to the next.
        """
        n_records = 0
        while True:
            self.now += step_s
            for _ in range(2):  # a request, its answer
                turn()
                self.queue.turn(self.index.follower.state, self.index.database.next_number, self.now)
            try:
                payload = self.receiver.recv(1 << 20, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return n_records
            self.index.take((Kind.MANAGE, payload))
            n_records += 1

    def close(self) -> None:
        self.receiver.close()
        self.channel.close()
