"""Outages of a store as records of the log, which only the receiver writes. The publisher notes them in a file."""

import hashlib

from chiplog_collector.store.outbox import Outage, Outbox
from chiplog_schemas.model.change_record import REQUEST_ID_BYTES, Action, Change, encode_change


class StoreWatch:
    """Looks at the outages of one outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._noted: Outage | None = None

    def turn(self) -> list[bytes]:
        """Return the payloads of MANAGE records about what has happened since the last turn.

        After a start they may repeat the last ones. Their IDs are those of the outage, so the index ignores them.
        """
        outage = self._outbox.outage()
        if outage is None or outage == self._noted:
            return []
        notes = [_payload("store_away", outage)] if self._noted is None or self._noted.id != outage.id else []
        if outage.is_over:
            notes.append(_payload("store_back", outage))
        self._noted = outage
        return notes


def _payload(kind: str, outage: Outage) -> bytes:
    id = hashlib.sha256(f"{outage.id} {kind}".encode()).digest()[:REQUEST_ID_BYTES]
    text = outage.text if kind == "store_away" else "the store can be used again; pieces that wait are published now"
    return encode_change(Change(id, Action.NOTE, {"kind": kind, "text": text}))
