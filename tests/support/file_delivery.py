"""Senders and contents for tests of saved files."""

import hashlib
import itertools
from collections.abc import Callable

SENDER, OTHER = b"spool-of-agent-a", b"spool-of-agent-b"
ONE, TWO = hashlib.sha256(b"one").digest(), hashlib.sha256(b"two").digest()


def sessions() -> Callable[[], bytes]:
    count = itertools.count(1)
    return lambda: next(count).to_bytes(8, "big")
