"""The DB-API 2.0 of Python (PEP 249), read-only: for pandas, SQLAlchemy and other tools that take such a connection.

from chiplog_client import dbapi
with dbapi.connect() as connection:
    rows = connection.cursor().execute("SELECT step, value FROM metrics WHERE key = ?", ["train/loss"]).fetchall()
"""

from chiplog_client.dbapi.connection import Connection, Cursor, connect
from chiplog_client.dbapi.exceptions import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)
from chiplog_client.dbapi.type_objects import (
    BINARY,
    DATETIME,
    NESTED,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
)

apilevel = "2.0"
threadsafety = 2  # threads may share the module and connections, not cursors
paramstyle = "qmark"

__all__ = [
    "BINARY",
    "DATETIME",
    "NESTED",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]
