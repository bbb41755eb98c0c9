"""Whether a collector, or a database file, has the read model of this version: the views of the schema `reads`."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chiplog_schemas._version import __version__

if TYPE_CHECKING:
    import duckdb

_NAMED = re.compile(r"\breads\.[a-z_]")


def is_asked(query: str) -> bool:
    """Return True if a query names a view of the schema `reads`. Any other can be asked anywhere."""
    return _NAMED.search(query) is not None


def mismatch_reason(place: str, info: Mapping[str, Any], remedy: str) -> str | None:
    """Return one line if the read model is that of another version.

    Args:
        place: What answers, such as "the collector at tcp://…".
        info: What it reports: `reads`, the number of its read model; `version`, of chiplog. An older one lacks both.
        remedy: What to do if it is older than this client.
    """
    from chiplog_schemas.sql import READS

    number, version = info.get("reads"), info.get("version")
    if number == READS:
        return None
    model = f"read model {number}" if isinstance(number, int) else "no read model"
    of = f" (chiplog {version:.40})" if isinstance(version, str) else ""
    is_newer = isinstance(number, int) and number > READS
    return (
        f"{place} has {model}{of}; this client (chiplog {__version__}) asks read model {READS}; "
        f"{'upgrade this client' if is_newer else remedy}"
    )


def info_of_file(connection: "duckdb.DuckDBPyConnection") -> dict[str, Any]:
    """Return what a database file reports about its read model; nothing if an older version made its views."""
    import duckdb

    try:
        row = connection.execute("SELECT version FROM reads.state").fetchone()
    except duckdb.CatalogException:
        return {}
    return {} if row is None else {"reads": row[0]}


def is_outdated(connection: "duckdb.DuckDBPyConnection") -> bool:
    """Return True if the views of a database file are those of an older version."""
    from chiplog_schemas.sql import READS

    number = info_of_file(connection).get("reads")
    return number is None or number < READS
