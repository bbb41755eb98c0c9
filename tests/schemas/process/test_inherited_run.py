"""The run of an ancestor in the variables of a process. Whole processes: tests/sdk/identity/test_inherited_env.py."""

import os
import subprocess

from chiplog_schemas.process.inherited_run import (
    PARENT_RUN,
    decode_inherited,
    is_stale_parent,
    process_fingerprint,
    stale_variables,
    with_inherited_places,
)
from chiplog_schemas.process.procfs import start_ticks


def test_an_orphan_whose_new_parent_is_as_old_as_its_own_was_is_still_that_ones_child() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    world, tick = process_fingerprint().split("/")[0], start_ticks(os.getppid())
    as_old, older = (f"{ended.pid}:r/x//settled/{world}/{start}" for start in (tick, tick - 1))
    assert not is_stale_parent(as_old), "init, or tini, starts the training in the very tick of its own start"
    assert is_stale_parent(older)


def test_places_that_are_not_chiplogs_are_left_alone() -> None:
    for places in ("%5B", "5", "%5B1%2C2%5D", "%5B%5B%5D%2C%5B%5D%5D", "\udcff", ""):
        record = f"99:r/x/////////{places}"
        assert decode_inherited(record).places == places
        environ = {PARENT_RUN: record, "CHIPLOG_DIR": "data"}
        assert with_inherited_places(environ, os.getpid(), stale_variables(environ)) == environ
