"""Changes as records of a log, and ranks to apply them to."""

from typing import Any

from chiplog_schemas.model.changes import Action, Change, encode_change
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import Rank


def change(action: Action, number: int = 1, **body: Any) -> tuple[int, bytes]:
    return Kind.MANAGE, encode_change(Change(number.to_bytes(8, "big"), action, body))


def deletion(*ranks: Rank, run: str = "r", number: int = 1) -> tuple[int, bytes]:
    return change(Action.DELETE, number, producers=[rank.uuid for rank in ranks], runs=[run])


def logged(number: int, n_steps: int = 3, **identity: Any) -> Rank:
    rank = Rank(number, **identity)
    for step in range(n_steps):
        rank.log(step, x=float(step))
    return rank
