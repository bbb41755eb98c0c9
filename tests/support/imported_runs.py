"""Runs of other libraries, imported into an index that answers SQL, as `chiplog import` does it."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from chiplog_client.transfer.export_reader import ExportReader
from chiplog_client.transfer.import_blocks import ImportBlocks
from chiplog_client.transfer.importers.export_writer import WrittenRun, write_exports
from chiplog_client.transfer.importers.formats import Options, importer_of
from chiplog_client.transfer.importers.imported_run import Part
from tests.support.index import Index


@contextlib.contextmanager
def open_index() -> Iterator[Index]:
    """Yield an index without rows."""
    with TemporaryDirectory() as directory, contextlib.closing(Index(Path(directory))) as index:
        yield index


def import_parts(index: Index, parts: Iterable[Part], format_name: str = "test") -> list[WrittenRun]:
    """Import what an importer yields. Return what was written; the exports are gone then."""
    with TemporaryDirectory() as directory:
        target = Path(directory) / "exports"
        target.mkdir()
        written = write_exports(format_name, parts, target)
        for number, run in enumerate(written):
            scratch = Path(directory) / f"scratch-{number}"
            scratch.mkdir()
            with ExportReader(run.path, scratch) as reader:
                blocks = ImportBlocks(reader)
                index.take(*blocks.blocks())
    assert index.sql("FROM base.quarantine") == []
    assert index.sql("FROM completeness WHERE lost > 0 OR pending > 0 OR produced <> stored") == []
    return written


def import_path(
    index: Index, format_name: str, path: Path, column_map: Mapping[str, str] | None = None
) -> list[WrittenRun]:
    """Import a path."""
    options = Options(column_map or {})
    return import_parts(index, importer_of(format_name).read(path, options), format_name)
