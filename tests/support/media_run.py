"""A run with histograms, texts, images and tables, written without a collector."""

import hashlib
import json
import struct
import zlib
from pathlib import Path

import duckdb

from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.storage.content_files import content_path

BEGUN = "TIMESTAMP '2026-01-02 03:00:00'"
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
    database.execute(
        "INSERT INTO base.runs (run, run_id, tags, primary_label) VALUES (1, 'media', [], 'rank0'), "
        "(2, 'plain', [], 'rank0')"
    )
    database.execute(
        "INSERT INTO base.producers (producer, role, run, label, attempt, is_primary, rank, node, started_at, "
        "produced, state, ended_at, exit_code) SELECT run * 100 + r, 'rank', run, 'rank' || r, 0, r = 0, r, 'node0', "
        f"{BEGUN}, 10, 'finished', {BEGUN} + to_seconds(500), 0 FROM range(1, 3) t(run), range(2) u(r)"
    )
    database.execute(f"INSERT INTO base.intervals SELECT producer, 0, 9, {BEGUN} FROM base.producers")
    database.execute("INSERT INTO base.names VALUES (1, 'weights'), (2, 'grads'), (3, 'sample'), (4, 'step')")
    database.execute(
        f"INSERT INTO base.histograms SELECT 100 + r, 1, s, s, {BEGUN} + to_seconds(s), "
        f"CASE WHEN r = 1 AND s = {SPIKE} THEN [8, 10] "
        "ELSE [(b - 8) / 8 * (1 + s / 100) FOR b IN range(17)] END, "
        f"CASE WHEN r = 1 AND s = {SPIKE} THEN [5] ELSE [1 FOR b IN range(16)] END "
        "FROM range(500) t(s), range(2) u(r)"
    )
    database.execute(
        f"INSERT INTO base.histograms SELECT 100, 2, s * 10, 1000 + s, {BEGUN} + to_seconds(s * 10), [0, 0.1, 1, 10], "
        "[1000 - s, s, CASE WHEN s = 7 THEN 2 ELSE 0 END] FROM range(50) t(s)"
    )
    database.execute(
        f"INSERT INTO base.texts SELECT 100 + r, 3, s * 100, 2000 + s, {BEGUN} + to_seconds(s * 100), "
        "CASE WHEN r = 1 THEN $markup || ' at ' || s * 100 ELSE 'To be, or not to be: ' || s * 100 || chr(10) "
        "|| repeat('word ', 40) END FROM range(5) t(s), range(2) u(r)",
        {"markup": MARKUP},
    )
    for number, (path, content) in enumerate(FILES.items()):
        digest = hashlib.sha256(content).hexdigest()
        values = [6000 + number, path, len(content), digest]
        database.execute(f"INSERT INTO base.files VALUES (100, $1, {BEGUN}, $2, $3, $4)", values)
        database.execute(f"INSERT INTO base.stored VALUES ($1, $2, {BEGUN})", [digest, len(content)])


def store_media_files(root: Path) -> None:
    """Store the contents of FILES, as the collector does."""
    for content in FILES.values():
        path = content_path(paths_for_root(root).files, hashlib.sha256(content).digest())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
