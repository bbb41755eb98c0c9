"""A read-only dialect of SQLAlchemy: `create_engine("chiplog://")`. SQLAlchemy finds it by its entry point.

    chiplog://HOST:PORT     a collector, by the address that agents have
    chiplog:///PATH         the data in a directory, by its absolute path
    chiplog://              as `chiplog.connect()`: by CHIPLOG_COLLECTOR, else CHIPLOG_DIR, else ~/.chiplog

The only module that imports SQLAlchemy.
"""

import os
import re
from types import ModuleType
from typing import Any

from sqlalchemy import Connection, exc, text, types
from sqlalchemy.engine import URL, default
from sqlalchemy.sql import compiler
from sqlalchemy.types import TypeEngine

SCHEMA = "main"  # of the views
# Words that DuckDB 2.0 reserves (`duckdb_keywords()`), in addition to those that SQLAlchemy quotes by itself.
_RESERVED = frozenset(
    {
        *("anti", "asof", "at", "by", "collation", "columns", "concurrently", "describe", "fetch", "generated", "glob"),
        *("lambda", "lateral", "map", "pivot", "pivot_longer", "pivot_wider", "positional", "qualify", "returning"),
        *("semi", "show", "struct", "summarize", "tablesample", "try_cast", "tuple", "unpack", "unpivot", "variadic"),
        *("window", "with"),
    }
)
_TYPES: dict[str, type[TypeEngine[Any]]] = {
    "BOOLEAN": types.BOOLEAN,
    "TINYINT": types.SMALLINT,
    "UTINYINT": types.SMALLINT,
    "SMALLINT": types.SMALLINT,
    "USMALLINT": types.INTEGER,
    "INTEGER": types.INTEGER,
    "UINTEGER": types.BIGINT,
    "BIGINT": types.BIGINT,
    "UBIGINT": types.BIGINT,
    "HUGEINT": types.BIGINT,
    "FLOAT": types.REAL,
    "DOUBLE": types.DOUBLE,
    "VARCHAR": types.VARCHAR,
    "JSON": types.VARCHAR,  # as everywhere in chiplog: text
    "BLOB": types.BLOB,
    "DATE": types.DATE,
    "TIME": types.TIME,
    "TIMESTAMP": types.TIMESTAMP,  # in UTC, without a zone
}


class _Compiler(compiler.SQLCompiler):
    def limit_clause(self, select: Any, **kw: Any) -> str:
        """Return LIMIT and OFFSET; DuckDB rejects the LIMIT -1 that SQLAlchemy writes before a bare OFFSET."""
        clause = ""
        if select._limit_clause is not None:
            clause += "\n LIMIT " + self.process(select._limit_clause, **kw)
        if select._offset_clause is not None:
            clause += "\n OFFSET " + self.process(select._offset_clause, **kw)
        return clause


class _Preparer(compiler.IdentifierPreparer):
    reserved_words = compiler.RESERVED_WORDS | _RESERVED


class ChiplogDialect(default.DefaultDialect):
    """Text and Core SELECTs with parameters, and reflection of the public views. A write is refused when it runs."""

    name = "chiplog"
    driver = "chiplog"
    supports_statement_cache = True
    statement_compiler = _Compiler
    preparer = _Preparer
    default_paramstyle = "qmark"
    supports_native_boolean = True
    supports_native_decimal = True
    supports_multivalues_insert = True  # so that such an INSERT reaches the message that refuses it
    div_is_floordiv = False  # `/` is exact in DuckDB
    max_identifier_length = 255

    @classmethod
    def import_dbapi(cls) -> Any:
        """Return the module of PEP 249."""
        from chiplog_client import dbapi

        module: ModuleType = dbapi
        return module

    def create_connect_args(self, url: URL) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of `chiplog_client.dbapi.connect` for a URL. Raises ArgumentError."""
        if url.username or url.password or url.query:
            raise exc.ArgumentError(
                f"{url!r}: a user, a password and options are not known; a collector on another host admits keys, "
                "which chiplog keys makes"
            )
        if url.host is None:
            if url.port is not None:
                raise exc.ArgumentError(f"{url!r} has a port and no host; write chiplog://HOST:PORT")
            return [], {"dir": _directory(url.database)} if url.database else {}
        if url.port is None or url.database:
            raise exc.ArgumentError(f"{url!r} is unknown; write chiplog://HOST:PORT or chiplog:///PATH")
        host = f"[{url.host}]" if ":" in url.host else url.host
        return [f"tcp://{host}:{url.port}"], {}

    def _get_default_schema_name(self, connection: Connection) -> str:
        return SCHEMA

    # -- reflection ---------------------------------------------------------------------------------------------------
    def get_schema_names(self, connection: Connection, **kw: Any) -> list[str]:
        """Return the one schema that has views."""
        return [SCHEMA]

    def get_view_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        """Return the names of the public views."""
        if schema not in (None, SCHEMA):
            return []
        return [str(name) for (name,) in connection.execute(text(_VIEWS))]

    def get_table_names(self, connection: Connection, schema: str | None = None, **kw: Any) -> list[str]:
        """Return the names of the public views: `MetaData.reflect()` and many tools look for tables alone."""
        return self.get_view_names(connection, schema)

    def has_table(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> bool:
        """Return True if there is a public view of this name."""
        return table_name in self.get_view_names(connection, schema)

    def get_columns(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        """Return the columns of a view, in order. Raises NoSuchTableError."""
        is_ours = schema in (None, SCHEMA)
        found = connection.execute(text(_COLUMNS), {"view": table_name}).all() if is_ours else ()
        if not found:
            raise exc.NoSuchTableError(table_name)
        return [
            {"name": name, "type": column_type(kind), "nullable": True, "default": None, "comment": None}
            for name, kind in found
        ]

    def get_view_definition(self, connection: Connection, view_name: str, schema: str | None = None, **kw: Any) -> str:
        """Return the statement that made a view. Raises NoSuchTableError."""
        definition = connection.execute(text(_DEFINITION), {"view": view_name}).scalar()
        if definition is None or schema not in (None, SCHEMA):
            raise exc.NoSuchTableError(view_name)
        return str(definition)

    def get_pk_constraint(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """Return no primary key: a view has none."""
        return {"constrained_columns": [], "name": None}

    def get_foreign_keys(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Return no foreign keys."""
        return []

    def get_indexes(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        """Return no indexes."""
        return []

    def get_unique_constraints(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Return no constraints."""
        return []

    def get_check_constraints(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Return no constraints."""
        return []

    def get_table_comment(self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """Return no comment."""
        return {"text": None}


_OURS = "database_name = current_database() AND schema_name = 'main' AND NOT internal"
_VIEWS = f"SELECT view_name FROM duckdb_views() WHERE {_OURS} ORDER BY view_name"
_DEFINITION = f"SELECT sql FROM duckdb_views() WHERE {_OURS} AND view_name = :view"
_COLUMNS = f"""
SELECT column_name, data_type FROM duckdb_columns() WHERE {_OURS} AND table_name = :view ORDER BY column_index
"""


def column_type(name: str) -> TypeEngine[Any]:
    """Return the type of SQLAlchemy for a type of DuckDB; NullType, which converts nothing, if there is none."""
    if name.endswith("[]"):
        return types.ARRAY(column_type(name.removesuffix("[]")))
    if decimal := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", name):
        return types.NUMERIC(int(decimal[1]), int(decimal[2]))
    return _TYPES.get(name.partition("(")[0] if name.startswith("VARCHAR") else name, types.NullType)()


def _directory(path: str) -> str:
    """Return an absolute path: of chiplog:///PATH SQLAlchemy leaves out the slash before PATH."""
    return os.path.expanduser(path) if path.startswith("~") else f"/{path.lstrip('/')}"
