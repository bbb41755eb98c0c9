"""The files that a run saved."""

from typing import Any

from chiplog_client.client import Client

_FILE = "SELECT path, bytes, sha256 FROM files WHERE run_id = $run AND path = $path"


def read_saved_file(client: Client, run: str, path: str) -> dict[str, Any] | None:
    """Return `path`, `bytes` and `sha256` of a saved file; None if the run saved no such file. Raises QueryError."""
    return next(iter(client.sql(_FILE, {"run": run, "path": path}).rows()), None)
