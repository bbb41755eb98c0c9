"""Record a helper's lines: a separate producer, with the same journal and sender as a rank.

The first line opens the journal: most helpers of a thousand ranks never need one. A thread opens it and appends to it,
because the terminal must not wait for the imports on a busy machine.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from chiplog_schemas.clock import now_us

if TYPE_CHECKING:
    from chiplog.journal.journal import Journal

_QUEUED_CHARS_MAX = 4 << 20  # more than a second of any output
_QUEUE_WAIT_S = 0.001  # between two checks whether a full queue has room, or the journal is sealed
_STOP_S = 0.3  # for a sender that has nothing left to send
_DELIVER_WAIT_S = 5.0  # then the journal is left to the process that adopts it


class ConsoleJournal:
    """Console lines as events of a producer of role `console`, `of` the rank's. One thread may call the methods.

    orders: places, mode, address, limits and identity, from the rank. warn: called when the agent cannot be reached.
    """

    def __init__(self, orders: dict[str, Any], warn: Callable[[str], object]) -> None:
        self._orders = orders
        self._warn = warn
        self._journal: Journal | None = None
        self._queue: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()  # events; None: seal
        self._n_queued = self._n_appended = 0  # characters
        self._sealed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def is_crowded(self) -> bool:
        """Whether the journal is nearly full, so that lines must be dropped."""
        return self._journal is not None and self._journal.is_under_pressure

    def line(self, stream: int, line_no: int, line: str) -> None:
        """Record a line."""
        self._put("CONSOLE", stream, line_no, line)

    def lost(self, message: str, body: dict[str, int]) -> None:
        """Record that lines were lost, which becomes a row of `events`."""
        self._put("NOTICE", "console_lost", "warning", message, body)

    def seal(self) -> None:
        """Append what is queued and the final state, and have it delivered."""
        if self._thread.ident is not None:
            self._queue.put(None)
            while self._thread.is_alive() and not self._sealed.wait(_QUEUE_WAIT_S):
                pass

    def close(self) -> None:
        """Wait until a sealed journal is delivered, or is left to the process that adopts it."""
        if self._thread.ident is not None:
            self._thread.join()

    def _put(self, kind: str, *fields: Any) -> None:
        if self._thread.ident is None:
            self._thread.start()
        while self._n_queued - self._n_appended > _QUEUED_CHARS_MAX and self._thread.is_alive():
            time.sleep(_QUEUE_WAIT_S)
        if not self._thread.is_alive():
            raise RuntimeError("the thread that records lines has ended")
        self._n_queued += len(fields[-1])
        self._queue.put((kind, now_us(), *fields))

    def _run(self) -> None:
        """Append what is queued until the seal, then send the rest."""
        from chiplog.journal.factory import open_journal
        from chiplog.journal.sender import SenderThread
        from chiplog_schemas.limit_settings import Limits
        from chiplog_schemas.model.events import EventKind, encode
        from chiplog_schemas.paths import Paths

        orders, started_us = self._orders, now_us()
        root, local, run = map(Path, orders["places"])
        places, is_online = Paths(root, local, run), orders["mode"] != "offline"
        # No PID: the agent would take this process for a rank's, and sample it.
        info = {"role": "console", "started_at": started_us, **orders["identity"]}
        journal, _ = open_journal(places, orders["mode"], Limits(**orders["limits"]), info, started_us, self._warn)
        self._journal = journal
        # An explicit address keeps the sender from starting an agent, and it reports no place: the rank does both.
        sender = SenderThread(
            journal,
            places,
            info,
            agent_address=orders["agent"] or places.agent_address,
            online=is_online,
            on_tick=lambda: None,
            warn=self._warn,
            probes=False,
        )
        sender.start()
        while (event := self._queue.get()) is not None:
            kind, *fields = event
            journal.append(encode(EventKind[kind], *fields), urgent=kind == "NOTICE")
            self._n_appended += len(fields[-1])
        journal.seal(encode(EventKind.STATE, now_us(), {"state": "finished"}), lambda: None)
        journal.mark_finished()
        if is_online:
            self._sealed.set()
        journal.close(remove=sender.stop(_DELIVER_WAIT_S if is_online else _STOP_S))
