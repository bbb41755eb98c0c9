"""The publisher as a child of the collector: started, of a lower priority, and ended with its standard input."""

import contextlib
import logging
import os
import time
from pathlib import Path

import pytest

from chiplog_collector.priority import BACKGROUND
from chiplog_collector.receiver.publisher_process import publisher_process
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.support.collector_log import LOG_ID
from tests.support.waiting import WAIT_S


def niceness_of_threads(module: str, root: Path) -> list[int]:
    """Return the niceness of each thread of the process that runs a module for a directory."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/task/*/stat"):
        with contextlib.suppress(OSError):  # it ended since
            command = (stat.parents[2] / "cmdline").read_bytes().split(b"\0")
            if module.encode() in command and str(root).encode() in command:
                found.append(int(stat.read_text().rpartition(")")[2].split()[16]))  # proc(5): field 19
    return found


def test_it_asks_the_store_of_the_collector_and_ends_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    place = paths_for_root(tmp_path)
    place.collector.mkdir(parents=True)
    log = SegmentLog(place.collector / "log", LOG_ID)
    log.append(1, b"")
    log.commit()
    log.close()
    child = publisher_process(tmp_path, f"file://{tmp_path}/lake")
    child.start(time.monotonic())
    deadline = time.monotonic() + WAIT_S
    while not (place.store / "published.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (place.store / "published.json").exists()
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    assert set(niceness_of_threads("chiplog_collector.store", tmp_path)) == {min(19, niceness + BACKGROUND)}
    child.stop()
    assert child.ended_with == 0
    assert not any(record.levelno >= logging.ERROR for record in caplog.records)
