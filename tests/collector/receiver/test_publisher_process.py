"""The publisher as a child of the collector: started, and ended with its standard input."""

import logging
import time
from pathlib import Path

import pytest

from chiplog_collector.receiver.publisher_process import publisher_process
from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.storage.segment_log import SegmentLog
from tests.support.collector_log import LOG_ID
from tests.support.waiting import WAIT_S


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
    child.stop()
    assert child.ended_with == 0
    assert not any(record.levelno >= logging.ERROR for record in caplog.records)
