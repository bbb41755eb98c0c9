"""What a test needs in addition to Python: a tool of `scripts/system_packages.py`, or a right such as NAMESPACES.

`pytestmark = needs("gcc", "ethtool")` marks a module or a test; a fixture calls `require("chromium")`. Without the
tool the test is skipped, with a line that names the remedy. If the variable CI is set, the test fails instead: there,
a test may be skipped only because there is no GPU. All skips are raised here: pytest prints one line for each tool.
"""

import os
import subprocess
from functools import cache
from typing import Any

import pytest

from tests.support.loaded_script import REPOSITORY, load_script

SCRIPT = REPOSITORY / "scripts/system_packages.py"
ROOT = "root"  # the right to change owners, and to become other users
NAMESPACES = "namespaces"  # of networks, mounts and host names: simulated hosts
PID_NAMESPACE = "PID namespace"  # root makes it, or a user namespace does where the kernel lets users have them
NETWORK_NAMESPACE = "network namespace"  # in the same way: a process whose only network is the loopback interface
FUSE = "FUSE"  # the right to mount file systems of programs
MARK = "needs"
_NAMESPACE_OPTIONS = {PID_NAMESPACE: "--pid", NETWORK_NAMESPACE: "--net"}  # of unshare


@cache
def _packages() -> Any:
    """Return the module that knows the tools: it belongs to no package, because the system's Python runs it."""
    return load_script(SCRIPT)


def needs(*tools: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs these tools; `tests/conftest.py` calls `require` before its fixtures."""
    return getattr(pytest.mark, MARK)(*tools)


def require(*tools: str) -> None:
    """Skip the running test if one of these tools is missing; fail it in CI."""
    for tool in tools:
        if reason := lack(tool):
            if os.environ.get("CI", "").lower() not in ("", "0", "false"):
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


@cache
def lack(tool: str) -> str:
    """Return the line that says what is missing, or an empty string."""
    if tool == ROOT:
        return "" if os.geteuid() == 0 else "only root may do what this test does; run it as root"
    if tool == NAMESPACES:
        return _lack_of_namespaces(tool, "--net", "--uts", "--mount", "--pid")
    if tool == FUSE:
        return (
            "" if os.access("/dev/fuse", os.R_OK | os.W_OK) else "/dev/fuse is missing; load the module fuse, as root"
        )
    if tool in _NAMESPACE_OPTIONS:
        return _lack_of_namespaces(tool, *([] if os.geteuid() == 0 else ["--user"]), _NAMESPACE_OPTIONS[tool])
    return "" if _packages().is_installed(tool) else _packages().missing_line(tool)


def _lack_of_namespaces(name: str, *options: str) -> str:
    try:
        done = subprocess.run(["unshare", *options, "--fork", "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no {name} can be made: {error}"
    return f"no {name} can be made: {done.stderr.strip()}; run this test as root" if done.returncode else ""
