"""Read a store without a collector: a process of this user on this host answers, and ends when no client asks.

It is an embedded collector that receives nothing. What it keeps of the store is in the user's cache directory.
"""

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from chiplog_client import daemons
from chiplog_client.results.result import QueryError
from chiplog_schemas.addresses import check_store, check_store_exists
from chiplog_schemas.limit_settings import read_limits
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root

_NEEDED = ("chiplog_collector", "deltalake", "obstore")


def check_readable(url: str) -> str:
    """Return the address of a store without a final slash.

    Raises ValueError, also if a package is missing or a variable has a bad value, which the reader's process inherits.
    """
    address = check_store(url)
    read_limits(os.environ)  # safeguard: reader-names-bad-limit
    if lacking := [name for name in _NEEDED if find_spec(name) is None]:
        raise ValueError(f"to read {url} this host needs {' and '.join(lacking)}; pip install 'chiplog[lake]'")
    check_store_exists(address)
    return address


def reader_places(url: str) -> Paths:
    """Return the places of the process that reads a store: below XDG_CACHE_HOME, else ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return paths_for_root(Path(cache) / "chiplog" / "stores" / hashlib.sha256(url.encode()).hexdigest()[:16])


def start_reader(url: str) -> None:
    """Start the process that reads a store, unless it runs. Raises QueryError."""
    where = reader_places(url)
    try:
        ensure_private_dir(where.root)
        daemons.start(where, daemons.COLLECTOR, ["--embedded", "--read-store", url])
    except OSError as error:
        raise QueryError("unreachable", f"the store {url} cannot be read: {error}") from error
