"""Requests of a store in a bucket, counted by a proxy: how many a commit costs and a look without news."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from chiplog_collector.store.delta_store import CHECKPOINT_COMMITS, Addition, DeltaStore
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import BUCKET
from tests.support.store_files import DAY, LOG, parquet
from tests.support.store_reader import Reader

URL = f"s3://{BUCKET}/counted"
PUT_AND_LIST_MAX, GET_MAX, REFRESH_MAX = 7, 25, 3


def counted(proxy: S3Proxy, call: Callable[[], object]) -> dict[str, int]:
    proxy.reset()
    call()
    return dict(proxy.counts)


def test_a_commit_costs_few_requests_however_many_there_were(proxy: S3Proxy, tmp_path: Path) -> None:
    """Each listing begins after the last checkpoint, so that the number of versions does not count."""
    file, store = parquet(tmp_path / "file.parquet"), DeltaStore(URL, LOG)
    store.publish(Addition("metrics", file, DAY, -1, 0))
    counts, before = Counter[str](), store.requests.copy()
    for until in range(1, 2 * CHECKPOINT_COMMITS + 1):
        added = Addition("metrics", file, DAY, until - 1, until)
        counts.update(counted(proxy, lambda added=added: store.publish(added)))
        listed = [parse_qs(urlsplit(path).query) for kind, path in proxy.paths if kind == "LIST"]
        assert all("start-after" in query for query in listed), (until, listed)
    n_commits = 2 * CHECKPOINT_COMMITS
    assert (counts["PUT"] + counts["LIST"]) / n_commits <= PUT_AND_LIST_MAX
    assert counts["GET"] / n_commits <= GET_MAX
    noted = {kind: store.requests[kind.lower()] - before[kind.lower()] for kind in ("PUT", "LIST", "GET")}
    assert noted == pytest.approx({kind: counts[kind] for kind in noted}, rel=0.25)


def test_a_look_without_news_is_one_listing_of_heartbeats(proxy: S3Proxy) -> None:
    writer, reader = DeltaStore(URL, LOG), DeltaStore(URL, "ef" * 16)
    assert counted(proxy, lambda: writer.put_heartbeat({"number": 1})) == {"PUT": 1}
    seen = reader.heartbeats()
    assert counted(proxy, lambda: reader.heartbeats(seen)) == {"LIST": 1}
    writer.put_heartbeat({"number": 2})
    counts = counted(proxy, lambda: reader.heartbeats(seen))
    assert counts == {"LIST": 1, "GET": 1}
    assert sum(counts.values()) <= REFRESH_MAX


def test_a_look_with_news_opens_the_tables_that_have_some(
    proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By table one listing, the new commit and, of a small table, the new file."""
    store, looked = DeltaStore(f"{URL}/news", LOG), 0
    row = f"SELECT '{LOG}' AS log, {{number}}::BIGINT AS number, 'host' AS host, now() AS cut_at"
    reader = None
    for until in range(4):
        for table, query in (("metrics", None), ("collectors", row.format(number=until))):
            file = parquet(tmp_path / "file.parquet", query) if query else parquet(tmp_path / "file.parquet")
            store.publish(Addition(table, file, DAY, until - 1, until))
        store.put_heartbeat({"number": until, "tables": store.versions})
        if reader is None:
            reader = Reader(store.url, tmp_path)
            continue
        counts = counted(proxy, reader.store.refresh)
        assert counts == {"LIST": 3, "GET": 6}
        assert counted(proxy, reader.store.refresh) == {"LIST": 1}
        looked += 1
    assert looked == 3
    assert reader is not None
    reader.close()
