"""Makes the views and macros of a database, unless it has them: that takes a third of a second of CPU time."""

import hashlib
from collections.abc import Sequence

import duckdb

from chiplog_schemas._version import __version__
from chiplog_schemas.sql import MIGRATION, ROLLUPS


def define_views(connection: duckdb.DuckDBPyConnection, statements: Sequence[str], tables: str = "") -> None:
    """Execute the statements that make views and macros, `reads.state` among them, unless the database has these views.

    Call it within a transaction. tables: what the views read besides the tables of an index, and its version.
    """
    made_of = "\n".join([__version__, duckdb.__version__, f"{MIGRATION} {ROLLUPS}", tables, *statements])
    digest = hashlib.sha256(made_of.encode()).hexdigest()  # safeguard: changed-views-made-again
    query = """SELECT comment FROM duckdb_views()
        WHERE database_name = current_database() AND schema_name = 'reads' AND view_name = 'state'"""
    if connection.execute(query).fetchall() == [(digest,)]:
        return
    for statement in statements:
        connection.execute(statement)
    connection.execute(f"COMMENT ON VIEW reads.state IS '{digest}'")  # gone with the view that another version makes
