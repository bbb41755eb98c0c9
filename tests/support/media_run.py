"""A run with histograms, texts, images and tables, written without a collector."""

import json
import struct
import zlib
from pathlib import Path

import duckdb

from chiplog_schemas.paths import paths_for_root
from tests.support.run_builder import RunBuilder, Sql
from tests.support.stored_media import store_content

MARKUP = "<img src=x onerror=alert(1)>"
SPIKE = 377  # the step in which `weights` of rank1 has values around 9


def png(red: int, green: int, blue: int, size: int = 32) -> bytes:
    """Return a PNG image of one colour."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    row = b"\x00" + bytes((red, green, blue)) * size
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * size)) + chunk(b"IEND", b"")


FILES = {
    **{f"samples/step_{step:04}.png": png(step // 2, 90, 200 - step // 4) for step in range(0, 500, 100)},
    "plots/confusion.png": png(20, 120, 60),
    "pages/evil.png": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    "predictions.csv": b"step,text,score\n" + "".join(f'{n},"a, ""b"" {n}",{n / 7:.3f}\n' for n in range(300)).encode(),
    "scores.tsv": f"name\tvalue\n{MARKUP}\t1\nplain\t2.5\n".encode(),
    "worst.table.json": json.dumps({"columns": ["id", "loss"], "data": [[7, 3.5], [9, 3.25]]}).encode(),
    "settings.json": json.dumps({"lr": 0.1, "layers": [1, 2]}).encode(),
}


def fill_media_run(database: duckdb.DuckDBPyConnection) -> None:
    """Write two runs of two ranks.

    - `media`: histograms `weights` in steps 0 to 499, 16 bins from −(1 + step / 100) to 1 + step / 100 with one value
      in each; in step SPIKE rank1 has 5 values from 8 to 10. `grads` of rank0 has the edges 0, 0.1, 1 and 10 in each
      tenth step. Texts `sample` of both ranks in each hundredth step; that of rank1 has markup. rank0 saves FILES.
    - `plain`: nothing of this.
    """
    build = RunBuilder(database)
    for run_id in ("media", "plain"):
        build.run(run_id)
        build.ranks(run_id, 2, node="node0", produced=10, ended_s=500, state="finished", exit_code=0)
    build.received(0, 9)
    spike = f"CASE WHEN rank = 1 AND step = {SPIKE} THEN"
    edges = f"{spike} [8, 10] ELSE [(b - 8) / 8 * (1 + step / 100) FOR b IN range(17)] END"
    counts = f"{spike} [5] ELSE [1 FOR b IN range(16)] END"
    build.histogram("weights", edges, counts, steps=500, where="run_id = 'media'")
    first = "run_id = 'media' AND rank = 0"
    counts = "[1000 - step // 10, step // 10, CASE WHEN step = 70 THEN 2 ELSE 0 END]"
    build.histogram("grads", "[0, 0.1, 1, 10]", counts, steps=range(0, 500, 10), seq="1000 + step // 10", where=first)
    text = f"CASE rank WHEN 1 THEN '{MARKUP}' || ' at ' || step ELSE 'To be, or not to be: ' || step || chr(10) "
    text += "|| repeat('word ', 40) END"
    build.texts({"sample": Sql(text)}, steps=range(0, 500, 100), seq="2000 + step // 100", where="run_id = 'media'")
    for number, (path, content) in enumerate(FILES.items()):
        build.file(path, content, seq=6000 + number, where=first)


def store_media_files(root: Path) -> None:
    """Store the contents of FILES, as the collector does."""
    for content in FILES.values():
        store_content(paths_for_root(root).files, content)
