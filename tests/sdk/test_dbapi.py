"""`chiplog.dbapi`: the path that users import."""

import chiplog_client.dbapi
from chiplog import dbapi


def test_every_name_is_that_of_the_client() -> None:
    assert dbapi.__all__ == chiplog_client.dbapi.__all__
    assert all(getattr(dbapi, name) is getattr(chiplog_client.dbapi, name) for name in dbapi.__all__)
