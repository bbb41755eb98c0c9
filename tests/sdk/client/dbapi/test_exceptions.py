"""The tree of exceptions of PEP 249."""

import pytest

from chiplog_client import dbapi
from chiplog_client.client import QueryError
from chiplog_client.dbapi.exceptions import database_error
from chiplog_schemas.query.query_messages import ERROR_KINDS


def test_the_tree_is_that_of_pep_249() -> None:
    assert issubclass(dbapi.Error, Exception) and issubclass(dbapi.Warning, Exception)
    assert issubclass(dbapi.InterfaceError, dbapi.Error) and not issubclass(dbapi.InterfaceError, dbapi.DatabaseError)
    names = (
        "DataError",
        "OperationalError",
        "IntegrityError",
        "InternalError",
        "ProgrammingError",
        "NotSupportedError",
    )
    for name in names:
        assert issubclass(getattr(dbapi, name), dbapi.DatabaseError)
        assert getattr(dbapi.Connection, name) is getattr(dbapi, name)


@pytest.mark.parametrize("kind", [*ERROR_KINDS, "unreachable"])
def test_each_kind_of_a_query_error_has_its_class(kind: str) -> None:
    error = database_error(QueryError(kind, "a reason"))
    expected = {"sql": "ProgrammingError", "refused": "NotSupportedError", "internal": "InternalError"}
    assert type(error).__name__ == expected.get(kind, "OperationalError")
    assert (str(error), error.kind) == ("a reason", kind)
