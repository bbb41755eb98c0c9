"""Turn an export into blocks: the original events where they are rows, and IMPORTED events for the rest.

The blocks come in this order: one that names the producers, so that the index numbers them as they were; numbers,
texts and all other rows; last, for each producer, the event with its identity. Until that arrives, no view shows the
run. Everything follows from the export and the run ID, so a second import sends the same events.
"""

import hashlib
import heapq
import itertools
import operator
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from chiplog_client.transfer.export_format import EXPORTED_NAMES, OF_CONTENTS, TABLES
from chiplog_client.transfer.export_reader import ExportError, ExportReader
from chiplog_schemas.codec import pack
from chiplog_schemas.limits import BATCH_BYTES_MAX, MIB
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import CONSOLE_STREAMS, EventKind, encode
from chiplog_schemas.model.import_event import PRODUCER_FIELDS
from chiplog_schemas.model.intervals import Intervals

NAMED_PER_BLOCK = 20_000  # producers: half a megabyte
PART_BYTES = MIB // 4  # of rows in one IMPORTED event
RANGES_PER_PART = 10_000  # of seqs in one IMPORTED event
PAYLOAD_BYTES_MAX = 3 * MIB  # of an event whose producer has few seqs: it fits one record with its block
_SAMPLES_FIRST = 1 << 20  # seq of the first sample of a node; its IMPORTED events have the seqs from 0
_STREAMS = {name: number for number, name in CONSOLE_STREAMS.items()}
_RUN_COLUMNS = ("project", "name", "run_group", "job_type", "tags", "notes")
_DECIDED_COLUMNS = ("primary_label", "primary_launch", "primary_restart", "told")
# Tables whose rows are events of a kind; the others' rows come in IMPORTED events.
_OF_EVENTS = (
    *("metrics", "phases", "texts", "histograms", "media", "console", "summary", "definitions", "config_hashes"),
    *("artifact_files", "artifacts", "artifact_aliases", "artifact_uses", "run_tags"),
)
# Tables whose rows are one event each: the columns in the order of the fields, and the kind.
_ROW_EVENTS = (
    ("texts", "step, key, value", EventKind.TEXT),
    ("histograms", "step, key, edges, counts", EventKind.HISTOGRAM),
    ("media", "step, key, kind, unhex(sha256), bytes, metadata", EventKind.MEDIA),
    ("console", "stream, line_no, line", EventKind.CONSOLE),
    ("definitions", "name, summary, step_metric, hidden", EventKind.DEFINE),
    ("config_hashes", "is_whole, hashes", EventKind.CONFIG_HASHES),
    (
        "artifact_files",
        "unhex(digest), path, bytes, unhex(sha256), reference, coalesce(omitted, '')",
        EventKind.ARTIFACT_FILE,
    ),
    (
        "artifacts",
        "project, name, type, unhex(digest), n_files, bytes, metadata, description",
        EventKind.ARTIFACT,
    ),
    ("artifact_aliases", "project, name, unhex(digest), alias, is_set", EventKind.ARTIFACT_ALIAS),
    ("artifact_uses", "project, name, unhex(digest)", EventKind.ARTIFACT_USE),
    ("run_tags", "key, value", EventKind.TAG),
)
_PACKED_KEYS_MAX = 10_000  # tuples of keys that are packed once
_TIMES = ("started_at", "ended_at")
_ORDERED = "ORDER BY p.place, t.seq"

Event = tuple[bytes, int, bytes]  # producer, seq, payload


def derived_uuid(*parts: bytes | str) -> bytes:
    """Return 16 bytes that follow from the parts, as the producer of something that is imported under another name."""
    digest = hashlib.blake2b(digest_size=16, person=b"chiplog import")
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


class ImportBlocks:
    """The blocks of one export.

    Attributes:
        run_id: Under which the run is imported.
        n_done: Rows that were turned into events so far.
        n_rows: How many there are.
    """

    def __init__(self, reader: ExportReader, run_id: str | None = None) -> None:
        """Prepare the tables. run_id: a new run ID; producers are then new ones, too. None keeps both."""
        self.run_id = run_id if run_id is not None else str(reader.run["run_id"])
        self.n_done = 0
        self._reader = reader
        self._is_renamed = self.run_id != reader.run["run_id"]
        self._of_nodes: set[bytes] = set()  # the producers of samples that were used
        self._prepare()
        counted = [f"SELECT count(*) FROM {reader.source(name)}" for name in _OF_EVENTS if reader.has(name)]
        self.n_rows = sum(n for query in counted for (n,) in reader.rows(query))

    @property
    def producers(self) -> list[bytes]:
        """The 16 bytes of each process of the run."""
        return list(self._uuids)

    @property
    def senders(self) -> list[bytes]:
        """The producers of all events, those of the nodes' samples included. Known once the blocks were built."""
        return [*self._uuids, *sorted(self._of_nodes)]

    def run_of(self, _: bytes) -> str:
        """Return the ID of the run that a producer is of."""
        return self.run_id

    def rejected(self) -> set[tuple[bytes, int, str]]:
        """Return producer, seq and reason of each event that was rejected where the run was recorded."""
        if not self._reader.has("events"):
            return set()
        places = f"{self._reader.source('events')} e JOIN places p USING (producer)"
        rows = self._reader.rows(f"SELECT p.place, e.seq, e.message FROM {places} WHERE e.kind = 'quarantined'")
        return {(self._uuids[place], seq, message) for place, seq, message in rows}

    def stored(self) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
        """Yield each process of the run with the closed ranges of seqs that the export has."""
        query = f"SELECT p.place, r.stored FROM {self._reader.source('producers')} r JOIN places p USING (producer)"
        for place, ranges in self._reader.rows(query):
            yield self._uuids[place], [(range_["first_seq"], range_["last_seq"]) for range_ in ranges]

    def check(self) -> None:
        """Encode the rows that are checked no other way, and drop the result. Raises ExportError."""
        with self._reader.naming("producers"):
            for _ in self._head_events():
                pass

    def blocks(self) -> Iterator[bytes]:
        """Yield the payloads of the BLOCK records."""
        yield from self._naming_blocks()
        yield from _built(itertools.chain(self._events(), self._sample_events()))
        yield from _built(self._head_events())

    # -- preparation --

    def _prepare(self) -> None:
        """Number the producers, and sort the rows of each table by producer and seq."""
        reader = self._reader
        reader.execute(
            "CREATE TABLE places AS SELECT producer, (row_number() OVER ())::INTEGER - 1 AS place "
            f"FROM {reader.source('producers')}"
        )
        self._uuids = [
            self._uuid(producer) for (producer,) in reader.rows("SELECT producer FROM places ORDER BY place")
        ]
        seqs = []
        for name in _OF_EVENTS:
            if reader.has(name):
                columns = ", ".join(column for column in TABLES[name].columns if column not in ("run_id", "producer"))
                with reader.naming(name):
                    reader.execute(
                        f"CREATE TABLE {name} AS SELECT p.place, {columns} FROM {reader.source(name)} t "
                        f"JOIN places p USING (producer) {_ORDERED}"
                    )
                seqs.append(f"SELECT DISTINCT place, seq FROM {name}")
        union = " UNION ".join(seqs) or "SELECT 0 AS place, 0 AS seq WHERE false"
        # The closed ranges of the seqs that have rows: consecutive ones have the same difference to their number.
        reader.execute(
            "CREATE TABLE delivered AS SELECT place, min(seq) AS first_seq, max(seq) AS last_seq FROM ("
            f"SELECT place, seq, seq - row_number() OVER (PARTITION BY place ORDER BY seq) AS part FROM ({union})"
            ") GROUP BY place, part"
        )

    def _uuid(self, producer: str) -> bytes:
        uuid = bytes.fromhex(producer)
        return derived_uuid(uuid, self.run_id) if self._is_renamed else uuid

    def _naming_blocks(self) -> Iterator[bytes]:
        for begin in range(0, len(self._uuids), NAMED_PER_BLOCK):
            builder = BlockBuilder()
            for uuid in self._uuids[begin : begin + NAMED_PER_BLOCK]:
                builder.name(uuid)
            yield builder.build(0)

    # -- events --

    def _events(self) -> Iterator[Event]:
        """Yield the events whose rows are in tables of their kinds, by producer and seq.

        In this order the ranges of seqs in a block, and those that the index keeps, are few.
        """
        sources: list[Iterator[tuple[int, int, bytes]]] = []
        if self._reader.has("metrics"):
            sources.append(self._matrix_events("metrics", "key", "value", EventKind.METRICS))
        if self._reader.has("phases"):
            sources.append(self._matrix_events("phases", "phase", "seconds", EventKind.PHASES))
        if self._reader.has("summary"):
            sources.append(self._summary_events())
        sources += [
            self._row_events(name, columns, kind) for name, columns, kind in _ROW_EVENTS if self._reader.has(name)
        ]
        # safeguard: imported-events-by-seq
        for place, seq, payload in heapq.merge(*sources, key=operator.itemgetter(0, 1)):
            yield self._uuids[place], seq, payload

    def _row_events(self, table: str, columns: str, kind: EventKind) -> Iterator[tuple[int, int, bytes]]:
        """Yield the events of a table whose rows are one event each."""
        with self._reader.naming(table):
            for place, seq, ts, *fields in self._reader.table_rows(table, f"place, seq, epoch_us(ts), {columns}"):
                self.n_done += 1
                yield place, seq, encode(kind, ts, *_fields_of(kind, fields))

    def _summary_events(self) -> Iterator[tuple[int, int, bytes]]:
        rows = self._reader.table_rows("summary", "place, seq, epoch_us(ts), key, value")
        with self._reader.naming("summary"):
            for (place, seq, ts), grouped in itertools.groupby(rows, key=lambda row: row[:3]):
                values = {row[3]: row[4] for row in grouped}
                self.n_done += len(values)
                yield place, seq, encode(EventKind.SUMMARY, ts, values)

    def _matrix_events(self, table: str, key: str, value: str, kind: EventKind) -> Iterator[tuple[int, int, bytes]]:
        """Yield the events of a table of numbers: the rows of one seq are one event."""
        table_rows = self._reader.table_rows(table, f"place, seq, epoch_us(ts), step, {key}, {value}")
        packed: dict[tuple[str, ...], bytes] = {}
        with self._reader.naming(table):
            for (place, seq), grouped in itertools.groupby(table_rows, key=lambda row: row[:2]):
                rows = list(grouped)
                self.n_done += len(rows)
                ts, step = rows[0][2:4]
                keys = tuple(row[4] for row in rows)
                keys_bin = packed.get(keys)
                if keys_bin is None:
                    packed = packed if len(packed) < _PACKED_KEYS_MAX else {}
                    keys_bin = packed[keys] = pack(list(keys))
                values = struct.pack(f"<{len(rows)}d", *(row[5] for row in rows))
                yield place, seq, encode(kind, ts, step, keys_bin, values)

    def _sample_events(self) -> Iterator[Event]:
        """Yield the samples of the run's nodes. A sample that several labels share is one event."""
        if not self._reader.has("system"):
            return
        self._reader.execute(
            "CREATE TABLE samples AS SELECT DISTINCT node, ts, device, name, value "
            f"FROM {self._reader.source('system')} ORDER BY node, ts, device, name"
        )
        rows = self._reader.table_rows("samples", "node, epoch_us(ts), device, name, value")
        for node, of_node in itertools.groupby(rows, key=lambda row: row[0]):
            uuid = self._node_uuid(node)
            samples = itertools.groupby(of_node, key=lambda row: row[:3])
            for seq, ((_, ts, device), grouped) in enumerate(samples, _SAMPLES_FIRST):
                values = {row[3]: row[4] for row in grouped}
                packed = struct.pack(f"<{len(values)}d", *values.values())
                yield uuid, seq, encode(EventKind.SYSTEM, ts, device, pack(list(values)), packed)

    def _node_uuid(self, node: str) -> bytes:
        """Return the producer of a node's samples. It follows from the exported run: two copies of a run share it."""
        uuid = derived_uuid("samples", str(self._reader.run["run_id"]), node)
        self._of_nodes.add(uuid)
        return uuid

    # -- what is not an event --

    def _head_events(self) -> Iterator[Event]:
        """Yield the IMPORTED events: for each producer those with rows, then the one with its identity."""
        yield from self._node_heads()
        delivered = _by_place(self._reader.rows("SELECT * FROM delivered ORDER BY place, first_seq"))
        heads = []
        source = self._reader.source("producers")
        query = f"SELECT p.place, r.* FROM {source} r JOIN places p USING (producer) ORDER BY place"
        names = [name for name, *_ in self._described(query)]
        for row in self._reader.rows(query):
            described = dict(zip(names, row, strict=True))
            *parts, head = self._parts_of(described, delivered.get(described["place"], []))
            yield from parts
            heads.append(head)
        yield from heads

    def _described(self, query: str) -> list[tuple[Any, ...]]:
        return list(self._reader.rows(f"DESCRIBE {query}"))

    def _parts_of(self, described: dict[str, Any], delivered: list[tuple[int, int]]) -> list[Event]:
        """Return the IMPORTED events of one producer, that with its identity last.

        They have the first seqs that no other event of the import has.
        """
        have = Intervals(delivered)
        stored = [(range_["first_seq"], range_["last_seq"]) for range_ in described["stored"]]
        free = Intervals(part for first, last in stored for part in have.missing(first, last))
        if not free.total:
            raise self._error(described, "has no identity")
        parts = list(self._row_parts(described["producer"]))
        bodies = _merged([*parts, self._head_of(described)], free.total)
        own = list(itertools.islice((seq for first, last in free for seq in range(first, last + 1)), len(bodies)))
        for seq in own:
            free.remove(seq, seq)
        flat = [bound for range_ in free for bound in range_]
        size = 2 * max(RANGES_PER_PART, -(-len(free) // len(bodies)))
        seen_at, ts = _microseconds(described["last_seen_at"]), _microseconds(described["started_at"])
        events = []
        for number, (seq, body) in enumerate(zip(own, bodies, strict=True)):
            seqs = flat[number * size : (number + 1) * size]
            payload = encode(EventKind.IMPORTED, ts, {**body, "seqs": seqs, "seen_at": seen_at})
            if len(payload) > PAYLOAD_BYTES_MAX:
                raise self._error(described, f"has rows of {len(payload)} bytes for one event")
            events.append((self._uuids[described["place"]], seq, payload))
        return events

    def _error(self, described: dict[str, Any], reason: str) -> ExportError:
        what = f"producers.parquet: producer {described['producer']} {reason}"
        return ExportError(f"{self._reader.directory} cannot be imported: {what}; export the run again")

    def _head_of(self, described: dict[str, Any]) -> dict[str, Any]:
        producer = {
            name: _microseconds(described[name]) if name in _TIMES else described[name]
            for name in PRODUCER_FIELDS
            if described[name] is not None
        }
        head: dict[str, Any] = {"producer": producer}
        if described["label"] is not None and described["role"] != "console":
            head["run"] = self._run_map()
        if described["role"] == "console":  # its label is its owner's
            producer.pop("label", None)
        if described["owner"]:
            head["owner"] = self._uuid(described["owner"])
        if described["lost"]:
            head["lost"] = [[lost["first_seq"], lost["last_seq"], lost["reason"]] for lost in described["lost"]]
        return head

    def _run_map(self) -> dict[str, Any]:
        columns = (*_RUN_COLUMNS, *_DECIDED_COLUMNS)
        names = {exported: name for name, exported in EXPORTED_NAMES.items()}
        given = {names.get(name, name): self._reader.run.get(name) for name in columns}
        return {"run_id": self.run_id, **{name: value for name, value in given.items() if value is not None}}

    def _row_parts(self, producer: str) -> Iterator[dict[str, Any]]:
        """Yield maps with the rows of one producer that are no events, of bounded size."""
        queries = {
            "config": "SELECT seq, epoch_us(ts), key, value",
            "saves": "SELECT seq, epoch_us(ts), path, bytes, unhex(sha256)",
            "events": "SELECT seq, epoch_us(ts), kind, level, message, body, cause",
        }
        stored = "SELECT unhex(sha256), bytes, epoch_us(stored_at)"
        for name, query in queries.items():
            if self._reader.has(name):
                where = f"FROM {self._reader.source(name)} WHERE producer = ?"
                rows = self._reader.rows(f"{query} {where} ORDER BY ALL", [producer])
                with self._reader.naming(name):
                    yield from _parts("files" if name == "saves" else name, rows)
        for name in filter(self._reader.has, OF_CONTENTS):
            where = f"FROM {self._reader.source(name)} WHERE producer = ? AND stored_at IS NOT NULL"
            with self._reader.naming(name):
                yield from _parts("stored", self._reader.rows(f"{stored} {where} ORDER BY ALL", [producer]))

    def _node_heads(self) -> Iterator[Event]:
        """Yield the IMPORTED events of the producers of samples, and of what GPUs reported."""
        sources = [self._reader.source(name) for name in ("system", "gpu_events") if self._reader.has(name)]
        if not sources:
            return
        union = " UNION ".join(f"SELECT DISTINCT node FROM {source}" for source in sources)
        for (node,) in self._reader.rows(f"SELECT node FROM ({union}) WHERE node IS NOT NULL ORDER BY node"):
            bodies: list[dict[str, Any]] = []
            if self._reader.has("gpu_events"):
                source = self._reader.source("gpu_events")
                query = f"SELECT seq, epoch_us(ts), kind, level, message, body, NULL FROM {source}"
                bodies += _parts("events", self._reader.rows(f"{query} WHERE node = ? ORDER BY ALL", [node]))
            bodies.append({"producer": {"role": "agent", "node": node, "agent_node": node}})
            for seq, body in enumerate(bodies):
                yield self._node_uuid(node), seq, encode(EventKind.IMPORTED, 0, body)


def _built(events: Iterable[Event]) -> Iterator[bytes]:
    """Yield blocks of events, about as large as one message of the delivery may be."""
    builder = BlockBuilder()
    for producer, seq, payload in events:
        if builder.n_events and builder.n_bytes + len(payload) > BATCH_BYTES_MAX:
            yield builder.build(0)
        builder.add(producer, seq, payload)
    if builder.n_events:
        yield builder.build(0)


def _parts(name: str, rows: Iterable[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    part: list[list[Any]] = []
    n_bytes = 0
    for row in rows:
        size = len(pack(list(row)))
        if part and n_bytes + size > PART_BYTES:
            yield {name: part}
            part, n_bytes = [], 0
        part.append(list(row))
        n_bytes += size
    if part:
        yield {name: part}


def _merged(bodies: list[dict[str, Any]], n_max: int) -> list[dict[str, Any]]:
    """Return at most so many maps with the rows of all. The last one stays the last."""
    size = -(-len(bodies) // n_max)
    first = len(bodies) % size or size
    groups = [bodies[:first], *(bodies[at : at + size] for at in range(first, len(bodies), size))]
    merged = []
    for *others, last in groups:
        joined = dict(last)
        for body in reversed(others):
            for name, rows in body.items():
                joined[name] = rows + joined.get(name, [])
        merged.append(joined)
    return merged


def _fields_of(kind: EventKind, fields: list[Any]) -> list[Any]:
    """Return the fields of an event as they are on the wire, from the columns of its row."""
    import json

    match kind:
        case EventKind.HISTOGRAM:
            step, key, edges, counts = fields
            return [step, key, *(struct.pack(f"<{len(values)}d", *values) for values in (edges, counts))]
        case EventKind.CONSOLE:
            stream, line_no, line = fields
            return [_STREAMS[stream] if stream in _STREAMS else int(stream), line_no, line]
        case EventKind.DEFINE:
            name, summary, step_metric, hidden = fields
            described = {"summary": summary, "step_metric": step_metric, "hidden": hidden}
            given = {field: value for field, value in described.items() if value}
            return [name, given | ({"hidden": hidden == "true"} if hidden else {})]
        case EventKind.CONFIG_HASHES:
            return [int(fields[0]), json.loads(fields[1])]
    return fields


def _by_place(rows: Iterable[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for place, first, last in rows:
        found.setdefault(place, []).append((first, last))
    return found


def _microseconds(time: Any) -> int:
    """Return a time of DuckDB, which is UTC without a zone, in microseconds since the epoch."""
    from datetime import datetime, timedelta

    return 0 if time is None else (time - datetime(1970, 1, 1)) // timedelta(microseconds=1)
