"""The rows of a logged table, sorted and filtered: Parquet, read by a dedicated DuckDB in memory."""

import tempfile
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from chiplog_client.reads.parameters import quoted_name
from chiplog_client.results.json_texts import json_number
from chiplog_client.results.result import QueryError
from chiplog_schemas.query.query_messages import one_line

if TYPE_CHECKING:
    import duckdb

TABLE_BYTES_MAX = 32 << 20  # of Parquet; sorting a larger one takes seconds, and memory of the page's server
ROWS_MAX = 1_000
COLUMNS_MAX = 200
CELL_CHARS_MAX = 500
_MEMORY = "512MiB"
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": _MEMORY,
    "threads": 2,
    "temp_directory": "",  # nothing on disk
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_WAIT_S = 20.0
_REFERENCE = "^sha256:[0-9a-f]{64}$"  # to media in a cell, which are shown in place of it
_NUMBERS = ("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
            "HUGEINT", "FLOAT", "DOUBLE")  # fmt: skip


def read_table(
    parts: Iterable[bytes], sort: int | None = None, *, is_down: bool = False, search: str = "", limit: int = ROWS_MAX
) -> dict[str, Any]:
    """Return rows of a table.

    Args:
        parts: Its bytes, as Parquet.
        sort: Number of the column that orders the rows; as they were logged if None.
        is_down: The largest value first.
        search: Only rows that have this text in a cell, in any case.
        limit: Rows at most.

    Returns:
        `columns`: name and whether it has numbers; at most COLUMNS_MAX of `n_columns`. `rows`: long texts are cut, NaN
        and infinities are texts. `n_rows`: of the table. `n_found`: with the searched text.

    Raises:
        QueryError: The bytes are no table, or the table needs too much memory or time.
    """
    import duckdb  # a page without tables does not need it

    with tempfile.NamedTemporaryFile(prefix="chiplog-table-") as file:
        file.writelines(parts)
        file.flush()
        with duckdb.connect(config=_SETTINGS) as connection:
            timer = threading.Timer(_WAIT_S, connection.interrupt)
            timer.start()
            try:
                return _read(connection, file.name, sort, is_down, search, limit)
            except duckdb.OutOfMemoryException:
                raise QueryError("too_large", f"the table needs more than {_MEMORY}; download it") from None
            except duckdb.InterruptException:
                raise QueryError("timeout", f"the table took longer than {_WAIT_S:g} s; download it") from None
            except duckdb.Error as error:
                raise QueryError("refused", f"the table cannot be read: {one_line(str(error)):.200}") from None
            finally:
                timer.cancel()


def _read(
    connection: "duckdb.DuckDBPyConnection", path: str, sort: int | None, is_down: bool, search: str, limit: int
) -> dict[str, Any]:
    connection.execute("SET TimeZone = 'UTC'")
    described = connection.execute("DESCRIBE FROM read_parquet($path)", {"path": path}).fetchall()
    columns = [(name, quoted_name(name), kind) for name, kind, *_ in described[:COLUMNS_MAX]]
    cells = ", ".join(_cell(quoted, kind) for _, quoted, kind in columns)
    shown = (f"regexp_replace({quoted}::VARCHAR, '{_REFERENCE}', '')" for _, quoted, kind in columns if kind != "BLOB")
    texts = ", ".join(["''", *shown])
    where = f"contains(lower(concat_ws(chr(10), {texts})), lower($search))" if search else "$search = ''"
    source = f"FROM read_parquet($path) WHERE {where}"
    order = ""
    if sort is not None and sort < len(columns):
        order = f"ORDER BY {columns[sort][1]} {'DESC' if is_down else 'ASC'} NULLS LAST"
    named = {"path": path, "search": search}
    [n_rows] = connection.execute("SELECT count(*) FROM read_parquet($path)", {"path": path}).fetchone() or [0]
    [n_found] = connection.execute(f"SELECT count(*) {source}", named).fetchone() or [0]
    found = connection.execute(f"SELECT {cells} {source} {order} LIMIT {limit}", named).fetchall()
    return {
        "columns": [{"name": name, "is_number": _is_number(kind) and kind != "BOOLEAN"} for name, _, kind in columns],
        "rows": [[_plain(value) for value in row] for row in found],
        "n_columns": len(described),
        "n_rows": n_rows,
        "n_found": n_found,
    }


def _is_number(kind: str) -> bool:
    return kind in _NUMBERS or kind.startswith("DECIMAL")


def _cell(quoted: str, kind: str) -> str:
    if _is_number(kind):
        return quoted
    text = f"hex({quoted})" if kind == "BLOB" else f"{quoted}::VARCHAR"
    return f"left({text}, {CELL_CHARS_MAX + 1})"


def _plain(value: Any) -> Any:
    if isinstance(value, str) and len(value) > CELL_CHARS_MAX:
        return f"{value[:CELL_CHARS_MAX]}…"
    return json_number(value)
