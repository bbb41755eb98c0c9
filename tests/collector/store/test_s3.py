"""A store in a bucket: the same promises as on a disk, on a real server of S3."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from chiplog_collector.store.delta_store import Addition, DeltaStore, ForeignPositionError, StoreError
from tests.support.s3_server import BUCKET
from tests.support.store_files import DAY, LOG, parquet

URL = f"s3://{BUCKET}/chip log"


@pytest.fixture(autouse=True)
def credentials(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.items():
        monkeypatch.setenv(name, value)


def test_pieces_are_in_the_bucket_once_and_a_copy_is_refused(tmp_path: Path) -> None:
    file = parquet(tmp_path / "file.parquet")
    store = DeltaStore(URL, LOG)
    store.check()
    assert store.publish(Addition("metrics", file, DAY, -1, 5))
    assert not DeltaStore(URL, LOG).publish(Addition("metrics", file, DAY, -1, 5))
    assert DeltaStore(URL, LOG).publish(Addition("metrics", file, DAY, 5, 8))
    with pytest.raises(ForeignPositionError):
        store.publish(Addition("metrics", file, DAY, 5, 9))
    assert store.positions(["metrics"]) == {"metrics": 8}
    store.put_content("0a" * 32, file)
    store.put_content("0a" * 32, file)
    assert DeltaTable(f"{URL}/metrics").to_pyarrow_table().num_rows == 6


@pytest.mark.parametrize(
    ("variable", "value", "url"),
    [
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", URL),
        ("AWS_SECRET_ACCESS_KEY", "expired", URL),
        ("AWS_REGION", "us-east-1", "s3://no-such-bucket/x"),
    ],
    ids=["away", "wrong key", "no bucket"],
)
def test_a_bucket_that_cannot_be_used_is_one_line_without_a_secret(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, url: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(StoreError) as error:
        DeltaStore(url, LOG).check()
    text = str(error.value)
    assert "\n" not in text
    assert "\x1b" not in text
    assert "secret" not in text
