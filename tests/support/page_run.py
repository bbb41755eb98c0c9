"""A run with everything that the page shows of one: slow ranks, printed lines, failures, alerts, losses, files."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from chiplog_schemas.paths import paths_for_root
from chiplog_schemas.storage.content_files import content_path
from tests.support.hand_written import hand_written
from tests.support.served_database import served_database
from tests.support.slow_ranks import BEGUN, fill_slow_ranks

MARKUP = "<img src=x onerror=alert(1)>"
LINES = 1_000  # of each of eight labels
PNG = bytes.fromhex(  # one red pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c4944415408d763f8cfc000000301010018dd8db00000000049454e44ae426082"
)
FILES = {
    "plots/red.png": PNG,
    "page.svg": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
    f"{MARKUP}.txt": b"0123456789abcde\n" * 20_000,
    "model.bin": b"\x00\x01" * 100,
}


def fill_page_run(database: duckdb.DuckDBPyConnection) -> None:
    """Write the runs of `fill_slow_ranks`, and more about `slow`.

    Each rank prints a line a second. In line 700 of rank3 an error is red, and it has markup. rank2 fails at second 990
    with a traceback, and rank6 is ended by SIGTERM 2 s later. rank0 saves FILES.
    """
    fill_slow_ranks(database)
    database.execute(
        f"INSERT INTO base.console SELECT producer, 'stdout', s, s, {BEGUN} + to_seconds(s) + to_microseconds(rank), "
        "CASE WHEN s = 700 AND rank = 3 THEN chr(27) || '[1;31mERROR' || chr(27) || '[0m ' || $markup "
        f"ELSE 'line ' || s || ' of rank' || rank END FROM base.producers, range({LINES}) t(s) WHERE run = 1",
        {"markup": MARKUP},
    )
    database.execute(
        f"UPDATE base.producers SET state = 'failed', exit_code = 1, exit_signal = NULL, ended_at = {BEGUN} + "
        "to_seconds(991), reason = 'ValueError: boom' WHERE producer = 10002"
    )
    database.execute(
        f"UPDATE base.producers SET state = 'crashed', exit_code = NULL, exit_signal = 15, ended_at = {BEGUN} + "
        "to_seconds(992) WHERE producer = 10006"
    )
    database.execute(
        f"INSERT INTO base.events (producer, seq, ts, kind, level, message, body) SELECT 10002, 5000, {BEGUN} + "
        "to_seconds(990), 'traceback', 'error', 'ValueError: boom', "
        "json_object('traceback', 'Traceback (most recent call last):' || chr(10) || 'ValueError: ' || $markup) "
        f"UNION ALL SELECT 10000 + n, 5001, {BEGUN} + to_seconds(n), 'alert', 'warning', 'loss spike', "
        "json_object('text', 'at step ' || n) FROM range(3) t(n)",
        {"markup": MARKUP},
    )
    database.execute("INSERT INTO base.losses VALUES (10001, 20, 24, 'the queue was full')")
    for number, (path, content) in enumerate(FILES.items()):
        digest = hashlib.sha256(content).hexdigest()
        values = [6000 + number, path, len(content), digest]
        database.execute(f"INSERT INTO base.files VALUES (10000, $1, {BEGUN}, $2, $3, $4)", values)
        if path != "model.bin":  # has not arrived
            database.execute(f"INSERT INTO base.stored VALUES ($1, $2, {BEGUN})", [digest, len(content)])


def store_files(root: Path) -> None:
    """Store the contents of FILES, as the collector does."""
    for content in FILES.values():
        path = content_path(paths_for_root(root).files, hashlib.sha256(content).digest())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@contextmanager
def running_page_run(root: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Write these runs to a data directory, serve them, and yield the database. rank7 of `slow` still runs."""
    with hand_written(root) as database:
        fill_page_run(database)
        database.execute("UPDATE base.producers SET state = NULL, ended_at = NULL WHERE producer = 10007")
        database.execute("INSERT INTO base.position (next_number) VALUES (1)")
    with served_database(paths_for_root(root)) as database:
        yield database
