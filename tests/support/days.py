"""A log whose records arrive on several days."""

from typing import Any

from chiplog_schemas.codec import pack
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US
from tests.support.index import Index
from tests.support.sample_log import everything

DAY_US = 86_400_000_000
DAYS = "SELECT day - (SELECT min(day) FROM base.receipt_days), after FROM base.receipt_days ORDER BY ALL"


def take_on(index: Index, day: int, *payloads: Any, applies: bool = True) -> None:
    """Log payloads with receipts of a day, counted from that of START_US, and apply them."""
    for payload in payloads:
        kind, content, *version = payload if isinstance(payload, tuple) else (Kind.BLOCK, payload)
        index.log.append(kind, content, *version)
        number = index.log.next_number
        index.log.append(Kind.RECEIPT, pack([START_US + day * DAY_US + number, [[b"S" * 16, 0, number, 1, None]]]))
    index.log.commit()
    if applies:
        index.follow()


def history(index: Index, n_days: int = 4, *, applies: bool = True) -> None:
    """Log a history of everything, over several days."""
    payloads = everything()[:-1]
    for day in range(n_days):
        take_on(
            index, day, *payloads[day * len(payloads) // n_days : (day + 1) * len(payloads) // n_days], applies=applies
        )
