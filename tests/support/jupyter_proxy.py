"""Jupyter's server with jupyter-server-proxy, which serves ports of this machine below a path, as JupyterHub does."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_ports
from tests.support.waiting import WAIT_S, wait_until

PREFIX = "/user/anna/"  # as JUPYTERHUB_SERVICE_PREFIX


@contextmanager
def jupyter_server(root: Path) -> Iterator[str]:
    """Yield the address of a server, without the prefix."""
    port = free_ports(1)
    command = [
        *(sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser", "--log-level=ERROR"),
        *(f"--port={port}", "--ServerApp.port_retries=0", "--ServerApp.allow_remote_access=True"),
        *(f"--ServerApp.base_url={PREFIX}", "--IdentityProvider.token=", f"--ServerApp.root_dir={root}"),
    ]
    with subprocess.Popen(command, cwd=root, env={**os.environ, "HOME": str(root)}) as server:
        try:
            base = f"http://127.0.0.1:{port}"
            wait_until(lambda: _answers(f"{base}{PREFIX}api"), "Jupyter's server")
            yield base
        finally:
            server.terminate()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=WAIT_S):
            return True
    except OSError:
        return False
