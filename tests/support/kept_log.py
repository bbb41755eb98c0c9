"""A CHIPLOG_DIR with a log and its database, as an embedded collector of this host leaves it when it exits."""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chiplog_client import daemons
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import Paths
from tests.support.collector_log import START_US, Rank
from tests.support.index import Index
from tests.support.sample_log import place_of
from tests.support.waiting import wait_until


def finished(number: int, run_id: str, *, n_steps: int = 3, age_days: float = 0, **identity: Any) -> Rank:
    """Return the primary of a run that is over. age_days: how long before START_US it began."""
    start_us = START_US - int(age_days * 86_400e6)
    rank = Rank(number, rank=0, label="rank0", primary=True, run_id=run_id, start_us=start_us, **identity)
    for step in range(n_steps):
        rank.log(step, loss=float(step))
    rank.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    return rank


@contextlib.contextmanager
def kept_log(directory: Path, payloads: Sequence[Any]) -> Iterator[Paths]:
    """Yield a directory with a log of these payloads. A collector that a command starts there is stopped at the end."""
    place = place_of(Index(directory).take(*payloads))
    (place.collector / "host").write_text(socket.gethostname())
    os.chmod(place.root, 0o700)
    os.chmod(place.collector, 0o700)
    try:
        yield place
    finally:
        daemons.stop(place, daemons.COLLECTOR)
        wait_until(lambda: not daemons.daemon_pid(place, daemons.INDEX), "an index that ends")
