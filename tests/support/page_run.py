"""A run with everything that the page shows of one: slow ranks, printed lines, failures, alerts, losses, files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from chiplog_schemas.paths import paths_for_root
from tests.support.hand_written import hand_written
from tests.support.run_builder import RunBuilder, Sql
from tests.support.served_database import served_database
from tests.support.slow_ranks import fill_slow_ranks
from tests.support.stored_media import store_content

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
SLOW = "run_id = 'slow' AND rank ="


def fill_page_run(database: duckdb.DuckDBPyConnection) -> None:
    """Write the runs of `fill_slow_ranks`, and more about `slow`.

    Each rank prints a line a second. In line 700 of rank3 an error is red, and it has markup. rank2 fails at second 990
    with a traceback, and rank6 is ended by SIGTERM 2 s later. rank0 saves FILES.
    """
    fill_slow_ranks(database)
    build = RunBuilder(database)
    error = "chr(27) || '[1;31mERROR' || chr(27) || '[0m ' || "
    line = f"CASE WHEN step = 700 AND rank = 3 THEN {error}'{MARKUP}' ELSE 'line ' || step || ' of rank' || rank END"
    build.console(Sql(line), steps=LINES, at="step + rank / 1e6", where="run_id = 'slow'")
    build.update(f"{SLOW} 2", state="failed", exit_code=1, ended_s=991, reason="ValueError: boom")
    build.update(f"{SLOW} 6", state="crashed", exit_code=None, exit_signal=15, ended_s=992)
    traceback = f"Traceback (most recent call last):\nValueError: {MARKUP}"
    body = {"traceback": traceback}
    build.event("traceback", "ValueError: boom", level="error", body=body, seq=5000, at=990, where=f"{SLOW} 2")
    body = Sql("json_object('text', 'at step ' || rank)")
    build.event(
        "alert", "loss spike", level="warning", body=body, seq=5001, at="rank", where="run_id = 'slow' AND rank < 3"
    )
    build.lost(20, 24, "the queue was full", where=f"{SLOW} 1")
    for number, (path, content) in enumerate(FILES.items()):  # one has not arrived
        build.file(path, content, seq=6000 + number, is_stored=path != "model.bin", where=f"{SLOW} 0")


def store_files(root: Path) -> None:
    """Store the contents of FILES, as the collector does."""
    for content in FILES.values():
        store_content(paths_for_root(root).files, content)


@contextmanager
def running_page_run(root: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Write these runs to a data directory, serve them, and yield the database. rank7 of `slow` still runs."""
    with hand_written(root) as database:
        fill_page_run(database)
        build = RunBuilder(database)
        build.update(f"{SLOW} 7", state=None, ended_s=None)
        build.position()
    with served_database(paths_for_root(root)) as database:
        yield database
