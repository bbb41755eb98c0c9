"""The thread that looks at a store: a store that is away changes nothing, and is one line."""

import logging
import shutil
import time
from pathlib import Path

import pytest

from tests.support.index import Index
from tests.support.published_index import publish_in_pieces
from tests.support.safeguard import proves
from tests.support.sample_log import everything
from tests.support.store_reader import Reader
from tests.support.waiting import WAIT_S


@proves(
    "unreadable-store-stops-nothing", "a store that is away costs one line, and the rows known of it stay", value="()"
)
def test_a_store_that_is_away_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(tmp_path)
    publish_in_pieces(index, tmp_path / "lake", everything()[:-1])
    reader = Reader(f"file://{tmp_path}/lake", tmp_path)
    expected = len(reader.sql("FROM runs"))
    caplog.set_level(logging.INFO, "chiplog.index")
    log = tmp_path / "lake" / "collectors" / "_delta_log"
    shutil.move(log, tmp_path / "away")
    log.write_text("no directory")
    for _ in range(3):
        reader.store._look_at = 0.0
        reader.store.turn()
    assert len(reader.sql("FROM runs")) == expected
    [line] = caplog.messages
    assert line.startswith(f"the store file://{tmp_path}/lake cannot be read: ")
    log.unlink()
    shutil.move(tmp_path / "away", log)
    reader.store._look_at = 0.0
    reader.store.turn()
    assert caplog.messages[1:] == [f"the store file://{tmp_path}/lake can be read again"]
    reader.close()
    index.close()


def test_the_thread_takes_what_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chiplog_collector.spanning.refresher.REFRESH_S", 0.05)
    reader = Reader(f"file://{tmp_path}/lake", tmp_path)
    reader.store.start()
    assert reader.sql("FROM runs") == []
    index = Index(tmp_path)
    publish_in_pieces(index, tmp_path / "lake", everything()[:-1])
    deadline = time.monotonic() + WAIT_S
    while not reader.sql("FROM runs") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(reader.sql("FROM runs")) == len(index.sql("FROM runs"))
    reader.close()
    index.close()


@proves("damaged-cache-made-again", "a damaged cache of a store is made again", value="()")
def test_a_damaged_cache_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = Index(tmp_path)
    store = publish_in_pieces(index, tmp_path / "lake", everything()[:-1])
    cache = tmp_path / "reader" / "cache.duckdb"
    cache.parent.mkdir()
    cache.write_bytes(b"no database" * 1000)
    reader = Reader(store.url, tmp_path)
    assert len(reader.sql("FROM runs")) == len(index.sql("FROM runs"))
    assert any("cache.duckdb is made again" in line for line in caplog.messages)
    reader.close()
    index.close()


@proves("damaged-file-hides-no-other", "a file of a store that cannot be read is named, and hides no other", value="()")
@pytest.mark.parametrize("is_cut", [True, False], ids=["cut", "missing"])
def test_a_file_that_cannot_be_read_is_named_and_the_rest_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_cut: bool
) -> None:
    index = Index(tmp_path)
    store = publish_in_pieces(index, tmp_path / "lake", everything()[:-1])
    path, *_ = sorted((tmp_path / "lake" / "events").rglob("*.parquet"))
    data = path.read_bytes()
    path.write_bytes(data[:50]) if is_cut else path.unlink()
    reader = Reader(store.url, tmp_path)
    assert len(reader.sql("FROM runs")) == len(index.sql("FROM runs"))
    assert len(reader.sql("FROM events")) < len(index.sql("FROM events"))
    [line] = [line for line in caplog.messages if "cannot be read, the rest can" in line]
    assert path.name in line
    reader.store._look_at = 0.0
    assert reader.store.refresh()  # it alone is looked for again
    path.write_bytes(data)
    reader.store._look_at = 0.0
    assert reader.store.refresh()
    assert len(reader.sql("FROM events")) == len(index.sql("FROM events"))
    reader.close()
    index.close()
