"""A data directory for exports: a run with every kind of row, written by the index from a log, and its saved files."""

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb

from chiplog_client.client import Client, connect
from chiplog_client.transfer.exporter import export_run
from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import Paths, ensure_private_dir
from chiplog_schemas.storage.content_files import content_path
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US, Rank, whole
from tests.support.index import Index
from tests.support.sample_log import everything, place_of
from tests.support.served_database import served_database

# By path: what was saved, the earlier version first.
SAVES = [("ckpt/last.pt", b"earlier"), ("ckpt/last.pt", b"newest" * 1000), ("ckpt", b"a file"), ("empty", b"")]
IMAGE = b"an image of each label"
ABSENT = b"\1" * 32  # the digest of a file that has not arrived


def sha256_of(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def stored_contents() -> list[bytes]:
    """Return what the collector has stored."""
    return [data for _, data in SAVES] + [IMAGE]


def payloads(run: str = "whole") -> list[object]:
    """Return blocks of a run: two attempts, a console, losses, a saved file that is absent, odd values, its agent."""
    rank0 = Rank(20, "rank0", run_id=run, rank=0, primary=True, project="p", name="n", tags=["t"], gpus=["GPU-20"])
    rank1 = Rank(21, "rank1", run_id=run, rank=1, primary=False, notes="second")
    again = Rank(22, "rank1", run_id=run, rank=1, primary=False, restart=1, start_us=START_US + 9_000_000)
    console = Rank(23, role="console", of=rank0.uuid.hex(), run_id=None, label=None, primary=False)
    agent = Rank(24, "agent", role="agent", pid=9, run_id=None)
    for rank in (rank0, rank1, again):
        for step in range(30):
            rank.log(step, loss=step / 64, lr=0.125)  # every sum of these is exact
            rank.say(EventKind.PHASES, step, pack(["forward", "step"]), struct.pack("<2d", 0.25, 0.5))
        rank.log(-(1 << 63), odd=float("nan"), odder=float("-inf"), huge=float("inf"))
        rank.say(EventKind.TEXT, 3, "note", f"text of {rank.label} 'quoted' ü")
        rank.say(EventKind.HISTOGRAM, 3, "weights", struct.pack("<3d", 0, 1, 2), struct.pack("<2d", 3, float("nan")))
        rank.say(EventKind.CONFIG, {"lr": "0.1", "deep": '{"a": [1, null]}'})
        rank.say(EventKind.SUMMARY, {"best": "0.5", "nan": '"NaN"'})
        rank.say(EventKind.DEFINE, "l*", {"summary": "min", "step_metric": "epoch"})
        rank.say(EventKind.DEFINE, "lr", {"hidden": True})
        rank.say(EventKind.MEDIA, 3, "images", "image", sha256_of(IMAGE), len(IMAGE), '{"caption": "ü", "item": 0}')
        rank.say(EventKind.MEDIA, 4, "images", "image", ABSENT, 10, "{}")
        for number, content in enumerate((sha256_of(IMAGE), ABSENT)):
            digest = bytes([number]) * 32
            omitted = "too large" if content == ABSENT else ""
            rank.say(EventKind.ARTIFACT_FILE, digest, "model.pt", len(IMAGE), content, "", omitted)
            rank.say(EventKind.ARTIFACT_FILE, digest, "data", 0, None, "s3://bucket/data")
            rank.say(EventKind.ARTIFACT, "p", "model", "model", digest, 2, len(IMAGE), '{"of": "ü"}', "")
            rank.say(EventKind.ARTIFACT_ALIAS, "p", "model", digest, "best", 1)
            rank.say(EventKind.ARTIFACT_USE, "p", "model", digest)
        rank.say(EventKind.CONFIG_HASHES, 1, {"lr": rank.label})
        rank.say(EventKind.TAG, "stage", f"set by {rank.label} ü")
        rank.say(EventKind.TAG, f"of {rank.label}", "")
        rank.say(EventKind.TAG, "gone", "soon")
        rank.say(EventKind.TAG, "gone", None)
        rank.say(EventKind.NOTICE, "alert", "warning", "high", {"text": "x"})
    rank0.say(EventKind.CONFIG, {"lr": "0.2"})
    for path, data in SAVES:
        rank0.say(EventKind.FILE, path, len(data), sha256_of(data))
    rank0.say(EventKind.FILE, "absent", 10, ABSENT)
    for line in range(20):
        console.say(EventKind.CONSOLE, 1 + line % 2, line, f"line {line} \x1b[1m")
    rank1.say(EventKind.NOTICE, "traceback", "error", "ValueError: boom", {"cause": "exception"})
    rank1.say(EventKind.STATE, {"state": "failed", "exit_code": 1, "reason": "boom", "cause": "exception"})
    again.say(EventKind.LOST, b"", 500, 520, "disk full")
    again.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    rank0.say(EventKind.STATE, {"state": "finished", "exit_code": 0})
    for rank in (rank0, rank1, again, console):
        agent.say(EventKind.PEER, rank.uuid, {"node": "node-a", "pid": 7, "start": 8})
    for step in range(20):
        for device in ("", "GPU-20", "pid:7", "GPU-other"):
            agent.say(
                EventKind.SYSTEM, device, pack(["power", "util"]), struct.pack("<2d", step, 2), ts=START_US + step
            )
    agent.say(EventKind.NOTICE, "gpu.xid", "error", "XID 79", {"device": "GPU-20", "code": 79}, ts=START_US + 9)
    stored = [(Kind.STORED, pack([b"S" * 16, sha256_of(data), len(data)])) for data in stored_contents()]
    return [whole(agent), whole(rank0), whole(rank1), whole(console), whole(again), *stored]


def make_place(directory: Path, *more: object) -> Paths:
    """Create a data directory: the run `whole`, and `r` of sample_log.py, with quarantined events and gaps."""
    index = Index(directory)
    index.take(*payloads(), *more)
    place = place_of(index)
    ensure_private_dir(place.files)
    for data in stored_contents():
        path = content_path(place.files, sha256_of(data))
        ensure_private_dir(path.parent)
        path.write_bytes(data)
    return place


def both_runs() -> list[object]:
    """Return what `make_place` needs for the second run."""
    return everything()


@contextlib.contextmanager
def served(place: Paths) -> Iterator[Client]:
    """Answer queries as the collector of a data directory does, and yield a client of it."""
    with served_database(place), connect(dir=place.root, start=False) as client:
        yield client


def export_of_whole(directory: Path) -> Path:
    """Export the run `whole` of a new collector, and return the export's directory."""
    target = directory / "exports" / "whole"
    for parent in (target.parent, directory / "place"):
        parent.mkdir()
    with served(make_place(directory / "place")) as client:
        export_run(client, "whole", target)
    return target


def edit(export: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the `run.json` of an export."""
    content = json.loads((export / "run.json").read_text())
    change(content)
    (export / "run.json").write_text(json.dumps(content))


def rewrite(export: Path, table: str, query: str) -> None:
    """Replace a table by a query of it, and its digest."""
    path = export / f"{table}.parquet"
    duckdb.execute(f"COPY ({query.replace('{table}', str(path))}) TO '{path}.new' (FORMAT parquet)")
    (export / f"{table}.parquet.new").rename(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(export, lambda content: content["tables"][path.name].update(sha256=digest))
