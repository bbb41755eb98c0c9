"""Admit blocks of a newer version after an upgrade: their rows count to a record that the index asks for.

Each index that reads the log parks them until that record, so a rebuild puts their rows where the first index did.
"""

import logging
from collections.abc import Callable

from chiplog_collector.index.apply.state import State
from chiplog_collector.query.change_request import ChangeRequest, own_request
from chiplog_schemas.model.block_format import BLOCK_VERSION
from chiplog_schemas.model.change_record import Action
from chiplog_schemas.query import query_messages
from chiplog_schemas.query.query_messages import QueryMessageKind

AGAIN_S = 60.0  # after a refusal: the disk refuses
_log = logging.getLogger("chiplog.index")


class BlockAdmission:
    """Requests the admission of blocks that can be read. submit: passes a request on. One thread: the writer's."""

    def __init__(self, submit: Callable[[ChangeRequest], None]) -> None:
        self._submit = submit
        self._is_open = False
        self._not_before = 0.0

    def turn(self, state: State, now: float) -> None:
        """Request what is due. Call it while the index keeps up. now: CLOCK_MONOTONIC."""
        if self._is_open or now < self._not_before:
            return
        n_parked = sum(version <= BLOCK_VERSION for version in state.parked.values())
        # An older version says so, too: what it cannot read counts to the next admission.
        if not n_parked and state.block_version == BLOCK_VERSION:
            return

        def answered(_: ChangeRequest, frames: list[bytes]) -> None:
            self._is_open = False
            answer = query_messages.parse(frames)
            if answer.kind == QueryMessageKind.DONE:
                _log.info("blocks up to version %d are admitted; parked ones before: %d", BLOCK_VERSION, n_parked)
                return
            if n_parked and not self._not_before:
                _log.warning("%d parked blocks cannot be applied yet: %s", n_parked, answer.message)
            self._not_before = now + AGAIN_S  # safeguard: refused-admission-waits

        self._is_open = True
        self._submit(own_request(Action.ADMIT_BLOCKS, {"version": BLOCK_VERSION}, now, answered))
