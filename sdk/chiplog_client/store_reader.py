"""Read a store without a collector: a process of this user on this host answers, and ends when no client asks.

It is an embedded collector that receives nothing. What it keeps of the store is in the user's cache directory.
"""

import hashlib
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from chiplog_client import daemons
from chiplog_client.results.result import QueryError
from chiplog_schemas.addresses import check_store, check_store_exists
from chiplog_schemas.limit_settings import read_limits
from chiplog_schemas.paths import Paths, ensure_private_dir, paths_for_root

_NEEDED = ("chiplog_collector", "deltalake", "obstore")
_CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_")  # begin the names of the variables that stores read


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
    """Start the process that reads a store, unless it runs. Raises QueryError.

    One that runs with other variables makes way: with a lower limit than is set here, or with other credentials after
    it could not read the store.
    """
    where = reader_places(url)
    try:
        ensure_private_dir(where.root)
        # safeguard: reader-has-these-credentials
        if _makes_way(where):
            daemons.stop(where, daemons.COLLECTOR)
        daemons.start(where, daemons.COLLECTOR, ["--embedded", "--read-store", url])
    except OSError as error:
        raise QueryError("unreachable", f"the store {url} cannot be read: {error}") from error


def _makes_way(where: Paths) -> bool:
    """Return True if a reader that runs has variables that must be replaced by those of this process."""
    try:
        lines = Path(f"/proc/{daemons.daemon_pid(where, daemons.COLLECTOR)}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # there is none
    theirs = dict(os.fsdecode(line).partition("=")[::2] for line in lines if line)
    if _limit(os.environ) > _limit(theirs):  # never for a lower one: two commands would end each other's reader
        return True
    return _is_refused(where) and _credentials(theirs) != _credentials(os.environ)


def _is_refused(where: Paths) -> bool:
    try:
        return where.store_refused.read_text() == str(daemons.daemon_pid(where, daemons.INDEX))
    except OSError:
        return False


def _limit(environ: Mapping[str, str]) -> int:
    return read_limits(environ, on_bad=lambda _: None).cold_gb


def _credentials(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_CREDENTIALS)}
