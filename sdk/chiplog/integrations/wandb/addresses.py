"""Addresses of runs and projects, as `run.url` has them."""

import socket
from pathlib import Path
from urllib.parse import quote, urlsplit

from chiplog_schemas.paths import paths_for_root

_CONNECT_S = 0.2  # to the page of a collector on this machine


def run_url(root: Path, project: str, run_id: str) -> str:
    """Return the address of a run on the page that a collector serves from a CHIPLOG_DIR, else one of chiplog's own."""
    page = _served_page(root)
    of_run = quote(run_id, safe="")
    return f"{project_url(project)}/runs/{of_run}" if page is None else f"{page}#/run/{of_run}/curves"


def project_url(project: str) -> str:
    """Return the address of a project, whose name may hold slashes."""
    return f"chiplog:///{quote(project, safe='')}"


def _served_page(root: Path) -> str | None:
    """Return the address of the page, without its token; None if none answers."""
    try:
        where = urlsplit((paths_for_root(root).run / "page").read_text(encoding="utf-8"))
        socket.create_connection((where.hostname or "", where.port or 0), timeout=_CONNECT_S).close()
    except (OSError, ValueError):
        return None
    return f"{where.scheme}://{where.netloc}{where.path}"
