"""The DB-API 2.0 of Python, under the name that users import; the code is in `chiplog_client.dbapi`."""

from chiplog import _ONLY_SDK

try:
    from chiplog_client.dbapi import *  # noqa: F403  its __all__ is the DB-API's list of names
    from chiplog_client.dbapi import __all__ as __all__
except ModuleNotFoundError as error:
    if error.name != "chiplog_client":
        raise
    raise ImportError(f"chiplog.dbapi {_ONLY_SDK}") from None
