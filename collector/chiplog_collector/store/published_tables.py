"""The tables of a store, pure: which rows of the index each holds, in which order, under which names.

A row of a store stands alone. Integers of the index become what they number: `producer` its 32 hex digits, `run` the
run ID as it is known then, `key` and `device` their names. Each row has the ID of its log and the number of the log
record that ends its piece. Times are UTC.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ENGINES = ("duckdb", "spark", "databricks", "trino")  # that a store has views for
PIECE_ROWS_MAX = 1 << 22  # more than any piece has; the last flush may go beyond what is aimed at
COMPLETE = "collectors"  # the table that is committed last: a piece is published once this table has it
_BY_SERIES = ("run_id", "key", "producer", "step", "seq")
_IN_ORDER = ("run_id", "producer", "seq")
_AS_STORED = ("number", "place")
_OF_EVENT = ("producer", "seq")


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table of a store.

    Attributes:
        name: Its folder in the store.
        sources: The tables of the schema `base` whose rows it holds; together they have each row once.
        order: The columns by which a piece is sorted.
        number: The column of the sources with the number of a log record.
        identity: The columns that a row alone has; empty if rows may repeat.
        is_dimension: True if a row replaces an earlier one. A piece has the newest, whatever flush wrote it, so no fact
            comes before what it refers to.
        is_series: True if it holds one row for each series of the piece, in place of the points.
        is_placed: True if the order in which rows were stored counts: `place` is that within the piece.
    """

    name: str
    sources: tuple[str, ...]
    order: tuple[str, ...] = _IN_ORDER
    number: str = "flush"
    identity: tuple[str, ...] = ()
    is_dimension: bool = False
    is_series: bool = False
    is_placed: bool = False


def _facts(name: str, order: tuple[str, ...]) -> PublishedTable:
    return PublishedTable(name, (name, f"{name}_recent"), order, identity=(*_OF_EVENT, "key"))


# Dimensions before the facts that need them.
PUBLISHED: tuple[PublishedTable, ...] = (
    PublishedTable("names", ("names",), ("name",)),
    PublishedTable("deletions", ("deletions",), ("producer", "run_id")),
    PublishedTable("runs", ("runs",), ("run_id",), is_dimension=True),
    PublishedTable("producers", ("producers",), ("run_id", "producer"), is_dimension=True),
    PublishedTable("stored", ("stored",), ("sha256",)),
    PublishedTable("files", ("files",), identity=_OF_EVENT),
    PublishedTable("media", ("media",), _BY_SERIES, identity=_OF_EVENT),
    PublishedTable("artifact_files", ("artifact_files",), identity=_OF_EVENT),
    PublishedTable("artifacts", ("artifacts",), _AS_STORED, identity=_OF_EVENT, is_placed=True),
    PublishedTable("artifact_versions", ("artifact_versions",), ("project", "name", "version")),
    PublishedTable("artifact_aliases", ("artifact_aliases",), _AS_STORED, identity=_OF_EVENT, is_placed=True),
    PublishedTable("artifact_uses", ("artifact_uses",), identity=_OF_EVENT),
    PublishedTable("definitions", ("definitions",)),
    PublishedTable("config", ("config",), identity=(*_OF_EVENT, "key")),
    PublishedTable("config_hashes", ("config_hashes",), identity=_OF_EVENT),
    PublishedTable("summary", ("summary",), identity=(*_OF_EVENT, "key")),
    PublishedTable("run_tags", ("run_tags",), identity=_OF_EVENT),
    PublishedTable("events", ("events",)),
    PublishedTable("console", ("console",), identity=_OF_EVENT, is_placed=True),
    PublishedTable("texts", ("texts",), _BY_SERIES, identity=_OF_EVENT),
    PublishedTable("histograms", ("histograms",), _BY_SERIES, identity=_OF_EVENT),
    PublishedTable(
        "system",
        ("system", "system_recent"),
        ("producer", "key", "device", "ts"),
        identity=(*_OF_EVENT, "device", "key"),
    ),
    _facts("phases", _BY_SERIES),
    _facts("metrics", _BY_SERIES),
    PublishedTable("phase_series", ("phases", "phases_recent"), ("run_id", "key", "producer"), is_series=True),
    PublishedTable("metric_series", ("metrics", "metrics_recent"), ("run_id", "key", "producer"), is_series=True),
    PublishedTable("losses", ("losses",), ("run_id", "producer"), is_dimension=True),
    PublishedTable("intervals", ("intervals",), ("run_id", "producer", "first_seq")),
    PublishedTable("changes", ("changes",), ("record",), number="number"),
)

DELETIONS = "deletions"  # the table that hides rows: see `live_rows`
# Tables without rows of producers or runs: a deletion leaves them as they are.
UNOWNED = frozenset({"names", DELETIONS, "stored", "artifact_versions", "changes", COMPLETE})

# All tables of a store, in the order in which a piece is committed, with the columns by which their files are sorted.
ORDERS: dict[str, tuple[str, ...]] = {table.name: table.order for table in PUBLISHED} | {COMPLETE: ("log", "number")}

# What a column of the index becomes: names of the store, each with an expression over the row `f`.
_RUN_ID = "(SELECT run_id FROM base.runs WHERE run = f.{})"
_OWNER = "(SELECT lower(hex(uuid)) FROM base.producers WHERE producer = f.owner)"
_REPLACED: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("names", "id"): (),
    ("runs", "run"): (),
    ("runs", "alias_of"): (("alias_of", _RUN_ID.format("alias_of")),),
    ("producers", "producer"): (("producer", "lower(hex(f.uuid))"),),
    ("producers", "uuid"): (),
    ("producers", "run"): (("run_id", _RUN_ID.format("run")),),
    ("producers", "owner"): (("owner", _OWNER),),
    ("changes", "number"): (("record", "f.number"),),
    ("deletions", "uuid"): (("producer", "nullif(lower(hex(f.uuid)), '')"),),
    ("deletions", "run_id"): (("run_id", "nullif(f.run_id, '')"),),
    ("deletions", "samples_until"): (
        ("samples_until", "nullif(f.samples_until, make_timestamp(0)) AT TIME ZONE 'UTC'"),
    ),
}
SERIES_COLUMNS = {
    "producer": "INTEGER",
    "key": "INTEGER",
    **dict.fromkeys(("n", "n_numbers"), "BIGINT"),
    **dict.fromkeys(("sum", "min", "max"), "DOUBLE"),
    "first_seq": "BIGINT",
    "first": "DOUBLE",
    "last_seq": "BIGINT",
    "last": "DOUBLE",
    **dict.fromkeys(("first_step", "last_step"), "BIGINT"),
    **dict.fromkeys(("last_step_ts", "first_ts", "last_ts"), "TIMESTAMP"),
}
# By column: what is joined for it. Rows of a producer also have its run and its names as they are known now.
_JOINED = {
    "producer": """ LEFT JOIN (SELECT p.producer AS id, lower(hex(p.uuid)) AS uuid, i.run_id, i.label, i.attempt, i.rank
        FROM base.producers p LEFT JOIN base.identified i ON i.producer = p.producer) p ON p.id = f.producer""",
    "key": " LEFT JOIN base.names k ON k.id = f.key",
    "device": " LEFT JOIN base.names d ON d.id = f.device",
}
_OF_PRODUCER = (
    ("run_id", "p.run_id"),
    ("producer", "p.uuid"),
    ("label", "p.label"),
    ("attempt", "p.attempt"),
    ("rank", "p.rank"),
)


def rows_of(table: PublishedTable) -> str:
    """Return the query of the new rows of a table, with the parameters $after and $until: see `PublishedTable`."""
    between = (
        f"{table.number} > $after" if table.is_dimension else f"{table.number} > $after AND {table.number} <= $until"
    )
    columns = "producer, key, step, seq, ts, value" if table.is_series else "*"
    if table.is_placed:
        columns = "*, row_number() OVER (ORDER BY rowid) AS place"
    return " UNION ALL ".join(f"SELECT {columns} FROM base.{source} WHERE {between}" for source in table.sources)


def published_query(table: PublishedTable, types: Mapping[str, str], rows: str) -> str:
    """Return the query of what a piece has of a table, with the parameters $log and $until.

    Args:
        table: The table.
        types: The types of the columns of `rows`, in their order.
        rows: The query of the rows of the index, or of series that sum them up.
    """
    columns = SERIES_COLUMNS if table.is_series else types
    selected = [("log", "$log::VARCHAR"), ("number", "$until::BIGINT")]
    for column, column_type in columns.items():
        selected += _published(table.name, column, column_type)
    expressions = ", ".join(f'{expression} AS "{name}"' for name, expression in selected)
    joined = "".join(
        join
        for column, join in _JOINED.items()
        if column in columns and (table.name, column) not in _REPLACED and not _is_text(columns[column])
    )
    return f"SELECT {expressions} FROM ({rows}) f{joined} ORDER BY {', '.join(table.order)}"


def live_rows(table: str, row: str = "f", deletions: str = DELETIONS) -> str:
    """Return the condition that a row of a table is not deleted.

    A deletion concerns the rows of earlier pieces of its log: those of its own piece and of later ones came after the
    producer was restored.

    Args:
        table: The table.
        row: The name of the row.
        deletions: The table `deletions`.
    """
    if table in UNOWNED:
        return "true"
    what = f"d.producer = {row}.producer"
    if table == "runs":
        what = f"d.producer IS NULL AND d.run_id = {row}.run_id"
    earlier = f"d.log = {row}.log AND d.number > {row}.number"  # safeguard: restored-rows-stay
    live = f"NOT EXISTS (SELECT 1 FROM {deletions} d WHERE {earlier} AND {what})"
    if table == "system":
        live += f" AND NOT EXISTS (SELECT 1 FROM {deletions} d WHERE {earlier} AND d.samples_until > {row}.ts)"
    return live


def _is_text(column_type: str) -> bool:
    """Return True if a column has names itself, such as the keys of a config."""
    return column_type == "VARCHAR"


def _published(table: str, column: str, column_type: str) -> Iterable[tuple[str, str]]:
    """Yield the columns of the store that a column of the index becomes."""
    if (table, column) in _REPLACED:
        yield from _REPLACED[(table, column)]
    elif column == "flush":
        return
    elif column == "producer":
        yield from _OF_PRODUCER
    elif column in ("key", "device") and not _is_text(column_type):
        yield column, "k.name" if column == "key" else "d.name"
    elif column_type == "BLOB":
        yield column, f"lower(hex(f.{column}))"
    elif column_type == "TIMESTAMP":
        yield column, f"f.{column} AT TIME ZONE 'UTC'"
    else:
        yield column, f'f."{column}"'
