"""Read a table of a run in chunks of bounded size, in the order of the export: by key, label, attempt and step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from chiplog_client.client import Client, QueryError
from chiplog_client.results.result import Result
from chiplog_client.transfer.export_format import Table

CHUNK_ROWS = 1_000_000  # of numbers: 48 MB at the collector and here
WIDE_CHUNK_ROWS = 50_000  # of texts; a chunk that is larger than an answer may be is read in parts
TOO_MUCH = ("too_large", "timeout")  # kinds of QueryError after which a smaller part is read


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows to read at once. keys: integers of names; empty for a table without. producers: in the order of labels.

    steps, seqs: closed ranges; None for all.
    """

    keys: tuple[int, ...]
    producers: tuple[int, ...]
    steps: tuple[int, int] | None = None
    seqs: tuple[int, int] | None = None


class ChunkReader:
    """Reads one table of one run. producers: the run's, in the order of the rows."""

    def __init__(self, client: Client, table: Table, run_id: str, producers: Sequence[int]) -> None:
        self._client = client
        self._run_id = run_id
        self._table = table
        self._producers = tuple(producers)
        self._places = {producer: place for place, producer in enumerate(producers)}
        self._rows_max = WIDE_CHUNK_ROWS if table.is_wide else CHUNK_ROWS
        self.names: dict[int, str] = {}  # of the keys
        self.n_rows = 0
        self._by_key: list[tuple[int, int]] = []  # (key, rows), by name
        self._count_keys()

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks in order."""
        if not self._table.is_keyed:
            yield from self._of_producers(())
            return
        group: list[int] = []
        n_group = 0
        for key, n_rows in self._by_key:
            if group and n_group + n_rows > self._rows_max:
                yield Chunk(tuple(group), self._producers)
                group, n_group = [], 0
            if n_rows > self._rows_max:
                yield from self._of_producers((key,))
            else:
                group.append(key)
                n_group += n_rows
        if group:
            yield Chunk(tuple(group), self._producers)

    def read(self, chunk: Chunk) -> Iterator[Result]:
        """Yield the rows of a chunk, in parts if they are too much for one answer; each part comes after the last."""
        query = f"SELECT {', '.join(self._table.source_columns)} FROM {self._table.source} f {_where(chunk)}"
        try:
            result = self._client.sql(query, self._values(chunk))
        except QueryError as error:
            parts = self._halves(chunk) if error.kind in TOO_MUCH else []  # safeguard: export-in-smaller-parts
            if not parts:
                raise
        else:
            yield result
            return
        for part in parts:
            yield from self.read(part)

    def _count_keys(self) -> None:
        source, count = self._table.counts or (self._table.source, "count(*)")
        whole = Chunk((), self._producers)
        if self._table.is_keyed:
            query = (
                f"SELECT n.name, f.key, {count} AS n FROM {source} f JOIN reads.names n ON n.id = f.key "
                f"{_where(whole)} GROUP BY n.name, f.key ORDER BY n.name"
            )
            for row in self._client.sql(query, self._values(whole)).rows():
                self.names[row["key"]] = row["name"]
                self._by_key.append((row["key"], row["n"]))
            self.n_rows = sum(n_rows for _, n_rows in self._by_key)
        else:
            rows = self._client.sql(f"SELECT count(*) AS n FROM {source} f {_where(whole)}", self._values(whole)).rows()
            self.n_rows = rows[0]["n"]

    def _of_producers(self, keys: tuple[int, ...]) -> Iterator[Chunk]:
        """Yield chunks of whole producers, of one key or of a table without keys, and parts of those with many rows."""
        source, count = self._table.counts or (self._table.source, "count(*)")
        whole = Chunk(keys, self._producers)
        query = f"SELECT f.producer, {count} AS n FROM {source} f {_where(whole)} GROUP BY f.producer"
        counted = [(row["producer"], row["n"]) for row in self._client.sql(query, self._values(whole)).rows()]
        group: list[int] = []
        n_group = 0
        for producer, n_rows in sorted(counted, key=lambda pair: self._places[pair[0]]):
            if group and n_group + n_rows > self._rows_max:
                yield Chunk(keys, tuple(group))
                group, n_group = [], 0
            if n_rows > self._rows_max:
                yield from self._of_ranges(Chunk(keys, (producer,)))
            else:
                group.append(producer)
                n_group += n_rows
        if group:
            yield Chunk(keys, tuple(group))

    def _of_ranges(self, chunk: Chunk) -> Iterator[Chunk]:
        """Yield the parts of a chunk of one series, by halves of its steps or seqs."""
        if self._count(chunk) <= self._rows_max or not (parts := self._halves(chunk)):
            yield chunk
            return
        for part in parts:
            yield from self._of_ranges(part)

    def _count(self, chunk: Chunk) -> int:
        query = f"SELECT count(*) AS n FROM {self._table.source} f {_where(chunk)}"
        return int(self._client.sql(query, self._values(chunk)).rows()[0]["n"])

    def _halves(self, chunk: Chunk) -> list[Chunk]:
        """Return a chunk as two, in order; none if it is one event."""
        for field in ("keys", "producers"):
            numbers = getattr(chunk, field)
            if len(numbers) > 1:
                middle = len(numbers) // 2
                return [replace(chunk, **{field: part}) for part in (numbers[:middle], numbers[middle:])]
        for field, column in (("steps", "step"), ("seqs", "seq")):
            if column in self._table.source_columns:
                query = (
                    f"SELECT min({column}) AS low, max({column}) AS high FROM {self._table.source} f {_where(chunk)}"
                )
                bounds = self._client.sql(query, self._values(chunk)).rows()[0]
                low, high = bounds["low"], bounds["high"]
                if low is not None and low < high:
                    middle = (low + high) // 2
                    return [replace(chunk, **{field: part}) for part in ((low, middle), (middle + 1, high))]
        return []

    def _values(self, chunk: Chunk) -> dict[str, object]:
        values: dict[str, object] = {"run": self._run_id, "producers": list(chunk.producers)}
        if chunk.keys:
            values["keys"] = list(chunk.keys)
        if chunk.steps is not None:
            values["first_step"], values["last_step"] = chunk.steps
        if chunk.seqs is not None:
            values["first_seq"], values["last_seq"] = chunk.seqs
        return values


def _where(chunk: Chunk) -> str:
    # A semi-join: DuckDB skips the parts of the file without these integers.
    conditions = ["reads.of_runs([$run])", "f.producer IN (SELECT unnest($producers::INTEGER[]))"]
    if chunk.keys:
        conditions.append("f.key IN (SELECT unnest($keys::INTEGER[]))")
    if chunk.steps is not None:
        conditions.append("f.step BETWEEN $first_step AND $last_step")
    if chunk.seqs is not None:
        conditions.append("f.seq BETWEEN $first_seq AND $last_seq")
    return f"WHERE {' AND '.join(conditions)}"
