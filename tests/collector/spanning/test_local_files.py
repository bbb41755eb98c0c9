"""Copies of a bucket's files: made once, kept within a bound, and never removed while they are read."""

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from chiplog_collector.spanning.local_files import LocalFiles
from chiplog_collector.store.delta_store import Addition, DeltaStore, StoredFile, StoreError
from tests.support.s3_server import BUCKET
from tests.support.safeguard import proves
from tests.support.store_files import DAY, LOG, parquet
from tests.support.waiting import WAIT_S

URL = f"s3://{BUCKET}/copies"
SOON = {"CHIPLOG_TEST_WAIT_TIMES": "0.05"}  # without the safeguard, the test waits in vain


@pytest.fixture
def store(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> DeltaStore:
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return DeltaStore(URL, LOG)


@proves("copies-in-use-stay", "a copy of a file stays on the disk while a query reads it")
def test_copies_are_kept_within_their_bound_unless_they_are_read(store: DeltaStore, tmp_path: Path) -> None:
    for after, until in ((-1, 5), (5, 8), (8, 9)):
        store.publish(Addition("metrics", parquet(tmp_path / "file.parquet"), DAY, after, until, str(until)))
    files = store.snapshot("metrics")
    local = LocalFiles(store, tmp_path / "copies", kept_bytes=files[0].size_bytes)
    with local.opened("metrics", files) as paths:
        assert [Path(path).stat().st_size for path in paths] == [file.size_bytes for file in files]
    with local.opened("metrics", files[:1]) as paths:
        assert [path.name for path in (tmp_path / "copies").iterdir()] == [Path(paths[0]).name]
    again = LocalFiles(store, tmp_path / "copies", kept_bytes=1)
    gone = StoredFile("day=1/none.parquet", 1, 1, "1")
    with pytest.raises(StoreError, match=r"none\.parquet"), again.opened("metrics", [gone]):
        pass
    assert not list((tmp_path / "copies").glob("*.part"))


def test_files_of_a_directory_are_read_in_place(tmp_path: Path) -> None:
    store = DeltaStore(f"file://{tmp_path}/a lake", LOG)
    store.publish(Addition("metrics", parquet(tmp_path / "file.parquet"), DAY, -1, 5))
    with LocalFiles(store, tmp_path / "copies").opened("metrics", store.snapshot("metrics")) as paths:
        assert all(path.startswith(str(tmp_path / "a lake" / "metrics")) and Path(path).exists() for path in paths)


@proves(
    "slow-store-ends-no-process",
    "a query whose files do not arrive in time is refused",
    condition=False,
    environment=SOON,
)
def test_files_that_do_not_arrive_in_time_are_an_error_and_arrive_later(
    store: DeltaStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, is_refused = DeltaStore.fetch, threading.Event()

    def late(*given: Any) -> None:
        assert is_refused.wait(WAIT_S)
        fetch(*given)

    monkeypatch.setattr(DeltaStore, "fetch", late)
    store.publish(Addition("phases", parquet(tmp_path / "file.parquet"), DAY, -1, 5, "5"))
    files = store.snapshot("phases")
    local = LocalFiles(store, tmp_path / "copies")
    with pytest.raises(StoreError, match="not arrived in time: 1 of 1"), local.opened("phases", files, -1.0):
        pass
    is_refused.set()
    with local.opened("phases", files) as paths:
        assert Path(paths[0]).stat().st_size == files[0].size_bytes


class Contents:
    """Contents in a store on this disk, and a directory for their copies."""

    def __init__(self, directory: Path, contents_bytes: int = 10) -> None:
        self.lake, self.files = directory / "lake", directory / "files"
        self.store = DeltaStore(f"file://{self.lake}", LOG)
        self.local = LocalFiles(self.store, directory / "copies", contents_bytes=contents_bytes)

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        (self.lake.parent / "file").write_bytes(data)
        self.store.put_content(digest, self.lake.parent / "file")
        return digest

    def path(self, digest: str) -> Path:
        return self.files / digest[:2] / digest

    def fetch(self, digest: str) -> None:
        """Copy a content; its copy was last read long ago."""
        self.local.fetch_content(digest, self.files)
        os.utime(self.path(digest), ns=(time.time_ns() - 10**12, self.path(digest).stat().st_mtime_ns))


@proves("copied-content-compared", "a content of a store whose bytes have another SHA-256 is not used", condition=False)
def test_a_content_that_is_damaged_in_the_store_is_refused_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    contents = Contents(tmp_path)
    digest = contents.put(b"a content")
    (contents.lake / "contents" / digest).write_bytes(b"A content")
    with pytest.raises(OSError, match=f"content {digest} of file://.* has another SHA-256; remove it there"):
        contents.fetch(digest)
    assert digest in caplog.text
    assert not contents.path(digest).exists()
    assert not list((tmp_path / "copies").glob("*.part"))


@proves("received-content-stays", "a content that the collector itself has received is not removed", condition=False)
def test_copied_contents_are_kept_within_their_bound_and_received_ones_for_good(tmp_path: Path) -> None:
    contents = Contents(tmp_path)
    first, second, third, fourth = (contents.put(data) for data in (b"1" * 4, b"2" * 4, b"3" * 4, b"4" * 4))
    contents.fetch(first)
    contents.fetch(second)
    os.utime(contents.path(first))  # as the receiver does with a content that an agent brings
    contents.fetch(third)
    assert [contents.path(digest).exists() for digest in (first, second, third)] == [True, True, True]
    contents.fetch(fourth)
    assert [contents.path(digest).exists() for digest in (first, second, third, fourth)] == [True, False, True, True]
    contents.fetch(second)
    assert contents.path(second).read_bytes() == b"2" * 4
    assert contents.path(first).exists()
