"""The blocks of several runs that an importer wrote, one run after the other, so that one delivery has them all."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from chiplog_client.transfer.export_reader import ExportReader
from chiplog_client.transfer.import_blocks import ImportBlocks
from chiplog_client.transfer.importers.export_writer import WrittenRun


class WrittenBlocks:
    """What `ImportBlocks` is for one export; each export is open only while its blocks are made.

    Attributes:
        run_id: Of the first run.
        n_done: Rows that were turned into events so far.
        n_rows: How many there are.
        contents: Where the files are, by digest.
    """

    def __init__(self, runs: Sequence[WrittenRun]) -> None:
        self._runs = runs
        self._senders: dict[bytes, str] = {producer: run.run_id for run in runs for producer in run.producers}
        self._n_before = 0  # rows of the runs that are done
        self._blocks: ImportBlocks | None = None
        self.run_id = runs[0].run_id
        self.n_rows = sum(run.n_rows for run in runs)
        self.contents = {digest: path for run in runs for digest, path in run.contents.items()}

    @property
    def n_done(self) -> int:
        """How many rows were turned into events so far."""
        return self._n_before + (self._blocks.n_done if self._blocks is not None else 0)

    @property
    def senders(self) -> list[bytes]:
        """The producers of all events, those of samples included. Known once the blocks were built."""
        return list(self._senders)

    def run_of(self, producer: bytes) -> str:
        """Return the ID of the run that a producer is of."""
        return self._senders.get(producer, self.run_id)

    def rejected(self) -> set[tuple[bytes, int, str]]:
        """Return the events that were rejected where the runs were recorded: none."""
        return set()

    def stored(self) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
        """Yield each process of the runs with the closed ranges of seqs that it has."""
        for run in self._runs:
            yield from run.stored()

    def blocks(self) -> Iterator[bytes]:
        """Yield the payloads of the BLOCK records of all runs."""
        for run in self._runs:
            with (
                tempfile.TemporaryDirectory(prefix="chiplog-import-") as scratch,
                ExportReader(run.path, Path(scratch)) as reader,
            ):
                self._blocks = ImportBlocks(reader)
                yield from self._blocks.blocks()
                self._senders |= dict.fromkeys(self._blocks.senders, run.run_id)
                self._n_before, self._blocks = self.n_done, None
