"""The collector of a spool: read as it was written, and absent when the file is."""

from pathlib import Path

import pytest

from chiplog_schemas.transport.collector_memory import (
    RememberedCollector,
    forget_collector,
    remember_collector,
    remembered_collector,
)


def test_a_collector_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    assert remembered_collector(tmp_path) is None
    for address in ("tcp://a:7447", "tcp://b:7447"):
        collector = RememberedCollector(address, "/keys", "node-a", address.endswith("a:7447"))
        remember_collector(tmp_path, collector)
        assert remembered_collector(tmp_path) == collector
    forget_collector(tmp_path)
    forget_collector(tmp_path)
    assert remembered_collector(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"address": 1, "keys": "", "node": "", "is_configured": 1}', b"\xff"]
)
def test_a_damaged_file_names_no_collector(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "collector").write_bytes(content)
    assert remembered_collector(tmp_path) is None
