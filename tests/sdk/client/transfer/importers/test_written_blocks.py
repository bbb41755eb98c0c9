"""The blocks of several runs are those of each run in turn, and what is known of them is known of all."""

from pathlib import Path

import numpy as np

from chiplog_client.transfer.importers.export_writer import write_exports
from chiplog_client.transfer.importers.imported_run import ImportedRun, Part, Points, SavedFile, SystemSample
from chiplog_client.transfer.importers.written_blocks import WrittenBlocks
from tests.support.imported_runs import open_index


def parts(path: Path) -> list[Part]:
    found: list[Part] = []
    for name in ("a", "b", "c"):
        found += [
            ImportedRun(source=path, run_id=name),
            Points.of_series("k", np.arange(3), np.arange(3), np.arange(3) / 2),
            SavedFile(path="f", content=b"same", ts=1),
        ]
    return [*found, SystemSample(ts=5, values={"cpu": 1.0})]


def test_one_delivery_has_all_runs(tmp_path: Path) -> None:
    runs = write_exports("test", parts(tmp_path), tmp_path)
    blocks = WrittenBlocks(runs)
    assert len(blocks.contents) == 1, "the same file is sent once"
    with open_index() as index:
        index.take(*blocks.blocks())
        assert index.sql("FROM base.quarantine") == []
        assert index.sql("SELECT run_id, count(*), sum(value) FROM metrics GROUP BY ALL ORDER BY ALL") == [
            (name, 3, 1.5) for name in ("a", "b", "c")
        ]
        stored = index.sql(
            "SELECT hex(uuid), first_seq, last_seq FROM base.intervals JOIN base.producers USING (producer)"
        )
        of_ranks = {(uuid.lower(), first, last) for uuid, first, last in stored}
    assert {(uuid.hex(), *ranges[0]) for uuid, ranges in blocks.stored()} <= of_ranks
    assert {bytes.fromhex(uuid) for uuid, _, _ in of_ranks} == set(blocks.senders), "that of the samples included"
    assert [blocks.run_of(uuid) for uuid, _ in blocks.stored()] == ["a", "b", "c"]
    assert 0 < blocks.n_done <= blocks.n_rows
