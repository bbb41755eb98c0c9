"""Delta tables: each piece once, statistics that are true, refusals of what another process published."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import obstore
import pytest
from deltalake import DeltaTable

from chiplog_collector.store import delta_store
from chiplog_collector.store.delta_store import (
    CHECKPOINT_COMMITS,
    KEPT_HOURS,
    Addition,
    DeltaStore,
    ForeignPositionError,
    StoreError,
)
from tests.support.safeguard import proves
from tests.support.store_files import DAY, LOG, parquet


@pytest.fixture
def add(tmp_path: Path) -> Callable[..., bool]:
    file = parquet(tmp_path / "file.parquet")

    def add(store: DeltaStore, until: int, after: int = -1, table: str = "metrics") -> bool:
        return store.publish(Addition(table, file, DAY, after, until))

    return add


def store_of(directory: Path, log: str = LOG) -> DeltaStore:
    return DeltaStore(f"file://{directory}/a lake", log)


def n_rows(directory: Path, table: str = "metrics") -> int:
    files = list(map(unquote, DeltaTable(f"{directory}/a lake/{table}").file_uris()))
    with duckdb.connect() as connection:
        return connection.execute("SELECT count(*) FROM read_parquet(?)", [files]).fetchall()[0][0]


def test_each_piece_is_added_once_and_the_position_is_the_record_that_ends_it(
    tmp_path: Path, add: Callable[..., bool]
) -> None:
    store = store_of(tmp_path)
    assert store.positions(["metrics", "runs"]) == {}
    assert add(store, 5)
    assert not add(store, 5)
    assert not add(store_of(tmp_path), 5)  # of a process that was killed after the commit
    assert add(store, 9, 5)
    assert add(store, 9, 5, "runs")
    assert store_of(tmp_path).positions(["metrics", "runs", "texts"]) == {"metrics": 9, "runs": 9}
    assert (n_rows(tmp_path), n_rows(tmp_path, "runs")) == (6, 3)


def test_logs_share_a_table_without_knowing_of_each_other(tmp_path: Path, add: Callable[..., bool]) -> None:
    mine, other = store_of(tmp_path), store_of(tmp_path, "ef" * 16)
    assert add(mine, 5)
    assert add(other, 3)
    assert add(mine, 7, 5)
    assert n_rows(tmp_path) == 9
    assert other.positions(["metrics"]) == {"metrics": 3}


@proves("foreign-position-refused", "a copy of a directory adds nothing to what the other one has published since")
def test_a_copy_of_a_directory_is_refused(tmp_path: Path, add: Callable[..., bool]) -> None:
    stopped = store_of(tmp_path)
    assert add(stopped, 5)
    assert add(store_of(tmp_path), 8, 5)
    with pytest.raises(ForeignPositionError, match="up to 8, and this directory published up to 5"):
        add(stopped, 9, 5)
    assert n_rows(tmp_path) == 3 * 2


def test_of_two_handles_that_have_looked_one_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta itself refuses a commit of an application that has committed since the handle looked."""
    file = parquet(tmp_path / "file.parquet")
    first, second = store_of(tmp_path), store_of(tmp_path)
    assert first.publish(Addition("metrics", file, DAY, -1, 5))
    upload = DeltaStore._upload

    def while_another_commits(store: DeltaStore, *given: Any) -> object:
        action = upload(store, *given)
        monkeypatch.setattr(DeltaStore, "_upload", upload)
        assert first.publish(Addition("metrics", file, DAY, 5, 8))
        return action

    monkeypatch.setattr(DeltaStore, "_upload", while_another_commits)
    with pytest.raises(StoreError):
        second.publish(Addition("metrics", file, DAY, 5, 8))
    assert n_rows(tmp_path) == 6


def test_a_content_is_stored_once_under_its_digest(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    file = tmp_path / "content"
    file.write_bytes(b"model")
    for _ in range(2):
        store.put_content("0a" * 32, file)
    assert (tmp_path / "a lake" / "contents" / ("0a" * 32)).read_bytes() == b"model"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (
            '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code><Message>Access Denied.</Message>'
            "<Resource>/bucket/x</Resource><RequestId>17</RequestId></Error>",
            "AccessDenied, Access Denied.",
        ),
        ("<Error><Code>SlowDown</Code></Error>", "SlowDown"),
        ("<Error><Code>SlowDown</Code> and no end", "SlowDown"),
        ("<Error>no code</Error>", "<Error>no code</Error>"),
    ],
)
def test_an_answer_of_s3_is_shown_as_its_code_and_message(answer: str, shown: str) -> None:
    def fail() -> None:
        before = "PUT http://bucket/x in 1.5ms - Server returned non-2xx status code"
        raise OSError(f"{before}: 403 Forbidden: {answer}\n\nDebug source: …")

    with pytest.raises(StoreError) as error:
        delta_store._try(fail)
    assert str(error.value) == f"PUT http://bucket/x: 403 Forbidden: {shown}"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, add: Callable[..., bool]) -> None:
    (tmp_path / "a lake").write_bytes(b"a file")
    with pytest.raises(StoreError) as error:
        add(store_of(tmp_path), 5)
    assert "\n" not in str(error.value) and "\x1b" not in str(error.value)


@proves(
    "published-file-synced", "the file and the commit of a piece are durable before the outbox forgets it", value="[]"
)
def test_what_is_published_is_synced(tmp_path: Path, add: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = set(), os.fsync

    def noted(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    add(store_of(tmp_path), 5)
    table = tmp_path / "a lake" / "metrics"
    [file] = table.glob("*/*.parquet")
    commits = sorted((table / "_delta_log").glob("*.json"))
    assert {file, file.parent, commits[-1], commits[-1].parent} <= synced


def test_what_a_killed_process_has_committed_is_synced(
    tmp_path: Path, add: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store_of(tmp_path), 5)
    calls: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: calls.append("sync"))
    assert not add(store_of(tmp_path), 5)
    assert calls == ["sync"]


@proves(
    "replacing-store-refused", "a store that replaces what was to be created is refused before anything is published"
)
def test_a_store_that_ignores_if_none_match_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_of(tmp_path).check()
    assert list((tmp_path / "a lake" / "probes").iterdir()) == []
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda *given, mode: put(*given))
    with pytest.raises(StoreError, match="replaces objects in place of refusing"):
        store_of(tmp_path).check()


def test_another_engine_reads_the_tables(tmp_path: Path, add: Callable[..., bool]) -> None:
    add(store_of(tmp_path), 5)
    table = DeltaTable(f"{tmp_path}/a lake/metrics")
    assert table.to_pyarrow_table().num_rows == 3
    assert table.metadata().description == "chiplog, version 1"
    assert table.metadata().partition_columns == ["day"]


@proves("old-commits-removed", "commits of Delta's log that are older than 7 days and a checkpoint go")
def test_a_checkpoint_comes_every_20_commits_and_old_commits_go(tmp_path: Path, add: Callable[..., bool]) -> None:
    store, log = store_of(tmp_path), tmp_path / "a lake" / "metrics" / "_delta_log"
    old = time.time() - (KEPT_HOURS + 1) * 3600
    for until in range(2 * CHECKPOINT_COMMITS):
        add(store, until, until - 1)
        if until == CHECKPOINT_COMMITS + 2:
            for path in log.iterdir():
                os.utime(path, (old, old))
    assert store_of(tmp_path).vacuum("metrics") == 0  # a commit does not remove them
    names = {path.name for path in log.iterdir()}
    assert f"{2 * CHECKPOINT_COMMITS - 1:020d}.checkpoint.parquet" in names
    assert f"{0:020d}.json" not in names
    assert f"{2 * CHECKPOINT_COMMITS:020d}.json" in names
    assert store_of(tmp_path).positions(["metrics"]) == {"metrics": 2 * CHECKPOINT_COMMITS - 1}
    assert n_rows(tmp_path) == 3 * 2 * CHECKPOINT_COMMITS


def test_vacuum_removes_what_was_never_committed_and_keeps_what_old_snapshots_name(
    tmp_path: Path, add: Callable[..., bool]
) -> None:
    store = store_of(tmp_path)
    for until in range(3):
        add(store, until, until - 1)
    folder = tmp_path / "a lake" / "metrics" / f"day={DAY}"
    old = time.time() - 100 * 24 * 3600
    for name in ("uploading.parquet", "abandoned.parquet"):
        (folder / name).write_bytes(b"of a process that was killed")
    for path in folder.iterdir():
        if path.name != "uploading.parquet":
            os.utime(path, (old, old))
    store.replace("metrics", store.snapshot("metrics"), [tmp_path / "file.parquet"])
    assert store.vacuum("metrics") == 1
    names = {path.name for path in folder.iterdir()}
    assert len(names) == 3 + 1 + 1
    assert "abandoned.parquet" not in names


@proves(
    "wrong-clock-removes-nothing-early",
    "a host whose clock is a year ahead of the store's removes no file that readers of this week may read",
    value="KEPT_HOURS",
)
def test_a_host_whose_clock_is_a_year_ahead_removes_nothing_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta asks the clock of this host, so it is the store that is a year behind."""
    year = timedelta(days=365)
    monkeypatch.setattr(DeltaStore, "now", lambda store: datetime.now(UTC) - year)
    store, file = store_of(tmp_path), parquet(tmp_path / "file.parquet")
    for after, until in ((-1, 5), (5, 8)):
        store.publish(Addition("metrics", file, DAY, after, until, f"{until:016x}"))
    store.replace("metrics", store.snapshot("metrics"), [file])
    folder = tmp_path / "a lake" / "metrics"
    then = (datetime.now(UTC) - year).timestamp()
    for path in folder.rglob("*"):
        os.utime(path, (then, then))
    before = sorted(folder.rglob("*"))
    assert store.vacuum("metrics") == 0
    assert sorted(path for path in folder.rglob("*") if path in before) == before
    monkeypatch.undo()
    assert store_of(tmp_path).vacuum("metrics") == 2, "they are a year old by the clock of a disk"


def test_the_clock_of_a_store_on_a_disk_follows_its_corrections(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    before = store.now()
    assert store._ahead is not None
    store._ahead += timedelta(days=365)
    assert abs(store.now() - before) < timedelta(hours=1), "the clock of the disk was set back"
