"""A saved file arrives whole, once, whichever process is killed while the file is created, sent or received.

Real processes, real signals. A rank kills itself right after `save()`. Then agent and collector are killed in turn,
each in the middle of the file.
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chiplog_schemas.storage.record import Kind, Record
from chiplog_schemas.storage.segment_format import list_segments, read_segment
from tests.support.node import Node
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S, wait_until

SIZE = 64 << 20
STEP = 8 << 20  # so much arrives between two kills


RANK = """
import os, signal, chiplog
run = chiplog.init(run_id="killed", project="p", capture_console=False)
assert run.save("big.bin") == ["big.bin"]
os.kill(os.getpid(), signal.SIGKILL)
"""


def part_size(files: Path) -> int:
    """Return how much of a file has arrived; all of it once it has its name."""
    for path in [*files.glob("*.part"), *files.glob("??/*")]:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return SIZE  # it got its name in this moment
    return 0


def more_than(files: Path, wanted: int) -> int:
    """Wait until so much has arrived; return how much."""
    found: list[int] = []

    def arrived() -> bool:
        found.append(part_size(files))
        return found[-1] >= wanted

    wait_until(arrived, f"{wanted} bytes that arrive")
    return found[-1]


@proves(
    "file-copy-kept-until-stored",
    "an agent keeps the copy of a saved file until the collector has it",
    new="os.unlink(self._outbox / name)\n...",
)
@proves("partial-file-continued", "a partially received file is continued", new="if there:")
@proves("digest-covers-earlier-part", "the digest of a file covers what was there before a restart")
@pytest.mark.timeout(900)
def test_a_saved_file_arrives_whole_and_once_whoever_is_killed(bare_node: Node, tmp_path: Path) -> None:
    place = bare_node.place
    data = random.Random(7).randbytes(SIZE)
    (tmp_path / "big.bin").write_bytes(data)
    environment = os.environ | {"CHIPLOG_DIR": str(bare_node.root), "CHIPLOG_AGENT": place.agent_address}
    rank = subprocess.run([sys.executable, "-c", RANK], cwd=tmp_path, env=environment, timeout=WAIT_S)
    assert rank.returncode == -signal.SIGKILL
    assert len(list(place.outbox.iterdir())) == 1
    (tmp_path / "big.bin").write_bytes(b"the training continues")

    bare_node.start_collector()
    bare_node.start_agent()
    n_killed = 0
    seen = more_than(place.files, 1)
    part = os.open(next(place.files.glob("*.part")), os.O_RDONLY)
    while seen < SIZE - 2 * STEP:
        seen = more_than(place.files, seen + STEP)
        if seen == SIZE:
            break
        n_killed += 1
        if n_killed % 2:
            assert bare_node.collector is not None
            bare_node.collector.kill()
            bare_node.collector.wait()
            seen = part_size(place.files)
            bare_node.start_collector()
        else:
            bare_node.kill_agent()
            bare_node.start_agent()
    assert n_killed >= 2

    digest = hashlib.sha256(data).hexdigest()
    bare_node.until("SELECT 1 FROM events WHERE kind = 'file_stored'")
    rows = bare_node.until("SELECT run_id, path, bytes, sha256 FROM files")
    assert rows == [{"run_id": "killed", "path": "big.bin", "bytes": SIZE, "sha256": digest}]
    assert len(bare_node.sql("SELECT 1 FROM events WHERE kind = 'file_stored'")) == 1
    assert [path for path in place.files.rglob("*") if path.is_file()] == [place.files / digest[:2] / digest]
    assert (place.files / digest[:2] / digest).read_bytes() == data
    assert os.fstat(part).st_nlink == 1, "what had arrived was thrown away, and sent again"
    os.close(part)
    wait_until(lambda: not list(place.outbox.iterdir()), "an agent that removes its copy")
    bare_node.stop()
    records = [item for _, path in list_segments(place.collector / "log") for item in read_segment(path)]
    assert sum(isinstance(item, Record) and item.kind == Kind.STORED for item in records) >= 1
