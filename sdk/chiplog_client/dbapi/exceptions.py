"""The exceptions of PEP 249, and which of them a query without a result raises."""

from chiplog_client.client import QueryError


class Warning(Exception):  # noqa: N818 - the name is the one of PEP 249
    """Never raised; PEP 249 requires the name."""


class Error(Exception):
    """The base of all errors of this module.

    Attributes:
        kind: The `kind` of the QueryError that caused it, such as timeout; empty without one.
    """

    def __init__(self, message: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class InterfaceError(Error):
    """The module is used wrongly: a closed connection or cursor, or an address that is malformed."""


class DatabaseError(Error):
    """The base of errors of the database."""


class DataError(DatabaseError):
    """Never raised: an error of a value is a ProgrammingError. PEP 249 requires the name."""


class OperationalError(DatabaseError):
    """The database did not answer, or not in time, or the result is too large, or nothing has been recorded."""


class IntegrityError(DatabaseError):
    """Never raised: queries only read. PEP 249 requires the name."""


class InternalError(DatabaseError):
    """The database is damaged, or chiplog has a fault."""


class ProgrammingError(DatabaseError):
    """The query is wrong: its syntax, a name, a type, or the number of its parameters."""


class NotSupportedError(DatabaseError):
    """The query is refused: it writes, or is more than one SELECT."""


_BY_KIND: dict[str, type[DatabaseError]] = {
    "sql": ProgrammingError,
    "refused": NotSupportedError,
    "internal": InternalError,
}


def database_error(error: QueryError) -> DatabaseError:
    """Return the exception of PEP 249 for a query without a result."""
    return _BY_KIND.get(error.kind, OperationalError)(error.message, error.kind)
