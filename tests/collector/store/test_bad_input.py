"""Bad input of a publisher: one line each, and nothing lost.

Other modules have: a bucket that is missing, a wrong key, a server that is away (test_s3.py); a store that ignores
If-None-Match (test_delta_store.py; here a server does so); a data file that is missing or cut (test_verification.py,
spanning); an outbox that cannot be written (test_piece_cutter.py); a log with two publishers (test_publisher.py); a
store that is away (tests/fault/test_store.py).
"""

import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from chiplog_collector.store import delta_store, piece_cutter
from chiplog_collector.store.delta_store import DeltaStore, StoreError
from chiplog_collector.store.outbox import Outbox
from chiplog_collector.store.piece_cutter import PieceCutter
from chiplog_collector.store.publisher import Publisher
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root
from tests.support.collector_log import LOG_ID, START_US, Rank, whole
from tests.support.days import DAY_US, take_on
from tests.support.index import Index
from tests.support.lake import stored_rows
from tests.support.patched import patch_daemons
from tests.support.rounds import SOAK_MINUTES
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import BUCKET
from tests.support.sample_log import everything
from tests.support.waiting import WAIT_S, wait_until

LOG = LOG_ID.hex()
STORM_S = 60 * min(SOAK_MINUTES, 10.0) or 3.0
AWAY, BACK = " cannot be used: ", " is back; "
OFTEN = """
import sys
if "chiplog_collector.store" in sys.orig_argv:
    from chiplog_collector.store import publisher
    publisher._POLL_S, publisher._BACKOFF_MIN_S, publisher._BACKOFF_MAX_S = 0.1, 0.2, 0.5
"""
NAMES = ["it's", 'a "b"', "a/b\\c", "two\nlines", "😀", "%20 +?#&", "..", "key=value", " "]
VALUES = [
    math.nan,
    math.inf,
    -math.inf,
    -0.0,
    0.0,
    2.0**53,
    2.0**53 + 2,
    -(2.0**63),
    1.7976931348623157e308,
    5e-324,
    0.1,
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    place = paths_for_root(tmp_path / "root")
    ensure_private_dir(place.root)
    ensure_private_dir(place.collector)
    patch_daemons(monkeypatch, tmp_path / "patch", OFTEN)
    return place


def cut(index: Index, url: str) -> None:
    cutter = PieceCutter(index.database.connection, index.log_id, Outbox(index.directory / "store"), url)
    cutter.start()
    cutter.close()


def publish(index: Index, lake: Path) -> None:
    """Publish what an index has to a store on this disk."""
    url, outbox = f"file://{lake}", Outbox(index.directory / "store")
    publisher = Publisher(DeltaStore(url, LOG), outbox, LOG, None)
    publisher.begin()
    cut(index, url)
    while outbox.ends():
        while publisher.publish_next():
            pass
        cut(index, url)


@contextmanager
def running_publisher(place: Paths, url: str, output: Path) -> Iterator[Callable[[], str]]:
    """Run a publisher; yield what returns its output. It ends in order."""
    command = [sys.executable, "-P", "-m", "chiplog_collector.store", str(place.root), url]
    environment = {"RUST_LOG": "error", **os.environ}
    with (
        output.open("wb") as target,
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=target, env=environment) as process,
    ):
        try:
            yield output.read_text
        finally:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(WAIT_S) == 0


def rows_in_bucket(url: str, directory: Path) -> list[Any]:
    store = DeltaStore(url, LOG)
    directory.mkdir(exist_ok=True)
    sources = store.fetch_all("metrics", store.snapshot("metrics"), directory)
    with duckdb.connect() as connection:
        query = "SELECT producer, seq, key FROM read_parquet(?) ORDER BY ALL"
        return connection.execute(query, [sources]).fetchall() if sources else []


def refusing(status: int, code: str) -> Callable[[str, str], tuple[int, str]]:
    return lambda kind, path: (status, code)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("status", "code"), [(403, "ExpiredToken"), (404, "NoSuchBucket"), (503, "SlowDown")], ids=["key", "bucket", "503"]
)
def test_a_bucket_that_fails_in_the_middle_is_one_line_and_nothing_is_lost(
    proxy: S3Proxy, place: Paths, tmp_path: Path, status: int, code: str
) -> None:
    url = f"s3://{BUCKET}/of {status}"
    index, payloads = Index(place.collector), everything(10)[:-1]
    index.take(*payloads[:2])
    outbox = Outbox(place.store)
    with running_publisher(place, url, tmp_path / "output") as output:
        wait_until(outbox.published, "an answer of the store")
        cut(index, url)
        wait_until(lambda: not outbox.ends(), "a published piece")
        proxy.refuse = refusing(status, code)
        index.take(*payloads[2:])
        cut(index, url)
        if status == 503:
            time.sleep(STORM_S)  # a short storm is waited out within a request
        else:
            wait_until(lambda: AWAY in output(), "a line")
            time.sleep(1.0)
        assert outbox.ends()
        proxy.refuse = lambda kind, path: None
        wait_until(lambda: not outbox.ends(), "all pieces in the store")
        if AWAY in output():
            wait_until(lambda: BACK in output(), "a line")
    said = output()
    assert said.count(AWAY) == said.count(BACK) <= 1, said
    assert said.count(AWAY) == 1 or (status == 503 and STORM_S < 600), said
    assert "Traceback" not in said and "secret" not in said
    keys = rows_in_bucket(url, tmp_path / "copies")
    [(n_rows,)] = index.sql("SELECT (SELECT count(*) FROM base.metrics) + (SELECT count(*) FROM base.metrics_recent)")
    assert len(keys) == len(set(keys)) == n_rows
    index.close()


def test_nothing_is_requested_while_nothing_arrives(proxy: S3Proxy, place: Paths, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/idle"
    index = Index(place.collector)
    index.take(*everything(5)[:1])
    with running_publisher(place, url, tmp_path / "output"):
        outbox = Outbox(place.store)
        wait_until(outbox.published, "an answer of the store")
        cut(index, url)
        wait_until(lambda: not outbox.ends(), "a published piece")
        wait_until(lambda: DeltaStore(url, LOG).heartbeats()[0].content["number"] >= 0, "a heartbeat")
        proxy.reset()
        time.sleep(3.0)
        assert dict(proxy.counts) == {}
    index.close()


def test_a_server_that_ignores_if_none_match_is_refused_at_the_start(
    proxy: S3Proxy, place: Paths, tmp_path: Path
) -> None:
    proxy.accepts_all = True
    url = f"s3://{BUCKET}/ignores"
    index = Index(place.collector)
    index.take(*everything(5)[:1])
    with running_publisher(place, url, tmp_path / "output") as output:
        wait_until(lambda: AWAY in output(), "a line")
    assert output().count("replaces objects in place of refusing to create them (If-None-Match)") == 1
    assert not [path for kind, path in proxy.paths if kind == "PUT" and "/probes/" not in path]
    index.close()


def test_a_foreign_table_and_one_of_a_newer_chiplog_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(tmp_path)
    index.take(*everything(5)[:1])
    write_deltalake(f"{tmp_path}/foreign/metrics", pyarrow.table({"a": [1]}))
    with pytest.raises(StoreError, match=r"/metrics is a table of another program; give chiplog a folder of its own$"):
        publish(index, tmp_path / "foreign")
    assert DeltaTable(f"{tmp_path}/foreign/metrics").to_pyarrow_table().num_rows == 1
    with monkeypatch.context() as newer:
        newer.setattr(delta_store, "TABLE_VERSION", 2)
        publish(index, tmp_path / "newer")
    before = sorted(path for path in (tmp_path / "newer").rglob("*"))
    with pytest.raises(StoreError, match=r"is of a newer chiplog \(version 2\); upgrade this one$"):
        publish(index, tmp_path / "newer")
    assert sorted(path for path in (tmp_path / "newer").rglob("*")) == before
    index.close()


def test_names_and_values_of_any_kind_are_stored_as_they_are(tmp_path: Path) -> None:
    index = Index(tmp_path)
    ranks = [Rank(n, name, run_id=name) for n, name in enumerate(NAMES)]
    for rank, name in zip(ranks, NAMES, strict=True):
        for step, value in enumerate(VALUES, start=-5):
            rank.log(step, **{name: value})
    index.take(whole(*ranks))
    publish(index, tmp_path / "lake")
    found = stored_rows(tmp_path / "lake", "metrics", "run_id, label, key, step, value")
    shown = index.sql("SELECT run_id, label, key, step, value FROM metrics")
    as_bits = lambda rows: sorted((*map(repr, row[:-1]), struct.pack("<d", row[-1])) for row in rows)  # noqa: E731
    assert as_bits(found) == as_bits(shown)
    assert len(found) == len(NAMES) * len(VALUES)
    assert {row[2] for row in found} == set(NAMES)
    assert {struct.pack("<d", row[-1]) for row in found} >= {struct.pack("<d", value) for value in VALUES[1:]}
    index.close()


def test_a_run_of_30_days_with_10_000_keys_and_clocks_wrong_by_a_year(tmp_path: Path) -> None:
    index = Index(tmp_path)
    wide = Rank(1, "wide", run_id="wide")
    wide.log(0, **{f"layer/{n}": float(n) for n in range(10_000)})
    take_on(index, 0, whole(wide))
    for n, day in enumerate([*range(1, 31), 365, 31, -365, 32]):  # those of a collector whose clock was wrong
        rank = Rank(100 + n, f"part {n}", run_id="long", start_us=START_US + (day - 400) * DAY_US)
        rank.log(n, loss=float(n))
        take_on(index, day, whole(rank))
    publish(index, tmp_path / "lake")
    found = stored_rows(tmp_path / "lake", "metrics", "run_id, key, step, value")
    assert len(found) == len(set(found)) == 10_034
    assert sorted(row[2] for row in found if row[0] == "long") == list(range(34))
    days = {path.name for path in (tmp_path / "lake" / "metrics").glob("day=*")}
    assert len(days) >= 31
    index.close()


def test_a_store_that_is_away_for_a_day_fills_the_outbox_to_its_bound_and_the_rest_waits_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, url, outbox = Index(tmp_path), f"file://{tmp_path}/lake", Outbox(tmp_path / "store")
    publisher = Publisher(DeltaStore(url, LOG), outbox, LOG, None)
    publisher.begin()
    payloads = everything(10)[:-1]
    sizes = []
    monkeypatch.setattr(piece_cutter, "OUTBOX_BYTES_MAX", 60_000)
    cutter = PieceCutter(index.database.connection, LOG_ID, outbox, url)
    for payload in payloads:
        index.take(payload)
        cutter._turn()
        sizes.append(outbox.size_bytes())
    assert len(set(sizes[-3:])) == 1, "no piece was cut once it was full"
    assert len(outbox.ends()) < len(payloads)
    largest = max(after - before for before, after in zip([0, *sizes], sizes, strict=False))
    assert max(sizes) <= 60_000 + largest
    while publisher.publish_next():
        pass
    publish(index, tmp_path / "lake")
    found = stored_rows(tmp_path / "lake", "metrics", "producer, seq, key")
    [(n_rows,)] = index.sql("SELECT (SELECT count(*) FROM base.metrics) + (SELECT count(*) FROM base.metrics_recent)")
    assert len(found) == len(set(found)) == n_rows
    index.close()
