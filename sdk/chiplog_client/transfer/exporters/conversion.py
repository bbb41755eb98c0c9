"""Convert a run to files of another library: its tables are copied, then written in that format."""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chiplog_client.client import Client, QueryError
from chiplog_client.transfer.exporter import Progress, export_tables, new_directory
from chiplog_client.transfer.exporters import csv_file, event_files
from chiplog_client.transfer.exporters.run_rows import RunRows

FORMATS = ("tensorboard", "csv")


@dataclass
class ConvertedRun:
    """A run as files of another library.

    Attributes:
        run_id: Its ID.
        path: The directory.
        written: Numbers of what was written, by noun: points, texts ….
        left_out: The same of what the format, or the collector, does not have.
        is_running: The run has not ended, so there is more to come.
    """

    run_id: str
    path: Path
    written: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    is_running: bool = False


def require(format_name: str) -> None:
    """Raise MissingLibraryError if the library of a format is not installed."""
    if format_name == "tensorboard":
        event_files.require_tensorboard()


def convert_run(
    client: Client, run: str, target: Path, format_name: str, on_progress: Progress = lambda *_: None
) -> ConvertedRun:
    """Write a run to a new directory as files of a format, complete or not at all.

    Args:
        client: Connected to the collector or the directory that has the run.
        run: Its ID, which must exist.
        target: The directory to create. It must not exist.
        format_name: One of FORMATS.
        on_progress: Called after each part with its name, the rows done, and their number.

    Raises:
        OSError: The directory cannot be written, or exists.
        QueryError: The collector does not answer.
    """
    done = ConvertedRun(run, target)
    tables = csv_file.TABLES if format_name == "csv" else event_files.TABLES
    with (
        new_directory(target) as staging,
        tempfile.TemporaryDirectory(prefix=".chiplog-export-", dir=target.parent) as scratch,
    ):
        done.is_running = export_tables(client, run, Path(scratch), tables, on_progress)
        with RunRows(Path(scratch), lambda n, total: on_progress(format_name, n, total)) as rows:
            if format_name == "csv":
                done.written = csv_file.write_csv(rows, run, staging)
            else:
                done.written, done.left_out = event_files.write_event_files(rows, staging, _content_reader(client))
    return done


def _content_reader(client: Client) -> Callable[[str], bytes | None]:
    """Return what reads a content by its SHA-256: None if the collector has lost or damaged it."""

    def read(digest: str) -> bytes | None:
        try:
            data = b"".join(client.read_file(digest))
        except QueryError as error:
            if error.kind != "refused":
                raise
            return None
        return data if hashlib.sha256(data).hexdigest() == digest else None

    return read
