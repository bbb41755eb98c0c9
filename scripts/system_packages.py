"""Install the system packages that tests need: what `make system-packages` runs, and `make test` first.

As root on a system with apt-get, the script installs what is missing. It prints one line for each tool that is still
missing. Tests that need the tool are then skipped, and say why (tests/support/tools.py). The script never fails.

The system's Python runs the script before its version is checked: every Python 3 must be able to parse it, with only
the standard library.
"""

import os
import shutil
import subprocess
import sys
import sysconfig

PATH = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin" + os.pathsep + "/sbin"  # where Debian keeps ip and ethtool
APT_TIMEOUT_S = 20  # of one connection: without a network each `make test` would wait for minutes
INCLUDE_STDIO = b"#include <stdio.h>\n"


def has_command(name):
    """Return True if a command is installed."""
    return shutil.which(name, path=PATH) is not None


def can_compile():
    """Return True if gcc is installed together with the headers of the C library."""
    if not has_command("gcc"):
        return False
    command = ["gcc", "-E", "-x", "c", "-"]
    done = subprocess.run(command, input=INCLUDE_STDIO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def has_python_headers():
    """Return True if the header files of this Python are installed."""
    return os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))


def has_venv():
    """Return True if this Python can make a virtual environment."""
    try:
        import ensurepip  # noqa: F401  # Debian packages it separately
        import venv  # noqa: F401
    except ImportError:
        return False
    return True


def has_headless_shell():
    """Return True if the Chromium without windows is installed, or apt-get does not offer it: chromium then does."""
    if has_command("chromium-headless-shell") or not has_command("apt-cache"):
        return True
    command = ["apt-cache", "show", "chromium-headless-shell"]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0


# tool -> its Debian packages. A tool is a command, unless PROBES has its name.
PACKAGES = {
    "gcc": ("gcc", "libc6-dev"),  # small C libraries: the C part of the SDK, a stand-in for NVIDIA's, failing disks
    "Python.h": ("python3-dev",),
    "venv": ("python3-venv",),
    "git": ("git",),
    "ip": ("iproute2",),  # simulated hosts, with the next two
    "iptables": ("iptables",),
    "ethtool": ("ethtool",),
    "unshare": ("util-linux",),
    "nsenter": ("util-linux",),
    "bindfs": ("bindfs",),  # a directory that two simulated nodes share
    "mount": ("mount",),
    "script": ("bsdutils",),
    "systemd-analyze": ("systemd",),  # checks the units
    "systemd-tmpfiles": ("systemd",),  # the cleaner that must leave journals
    "java": ("default-jre-headless",),  # Spark
    "promtool": ("prometheus",),  # alert rules and the dashboard's queries, with the server of the same package
    "less": ("less",),  # programs that take the terminal, with the next one
    "vi": ("vim-tiny",),
    "tmux": ("tmux",),  # draws the screens of the documentation
    "chromium": ("chromium", "chromium-headless-shell"),  # the page
    "chromium-headless-shell": ("chromium-headless-shell",),  # the page, for half of the CPU time
}
PROBES = {
    "gcc": can_compile,
    "Python.h": has_python_headers,
    "venv": has_venv,
    "chromium-headless-shell": has_headless_shell,
}
WITHOUT = {"chromium-headless-shell": "the page is tested in chromium, for twice the CPU time"}


def is_installed(tool):
    """Return True if a tool is installed."""
    return PROBES[tool]() if tool in PROBES else has_command(tool)


def missing_tools():
    """Return the tools that are not installed."""
    return [tool for tool in PACKAGES if not is_installed(tool)]


def missing_line(tool):
    """Return the line that names a missing tool and its remedy."""
    return f"{tool} is missing; apt-get install {' '.join(PACKAGES[tool])}"


def apt_get(*arguments):
    """Run apt-get without questions; return True if it succeeded. Its messages go to stderr."""
    options = ["-qq", "-o", f"Acquire::http::Timeout={APT_TIMEOUT_S}", "-o", f"Acquire::https::Timeout={APT_TIMEOUT_S}"]
    environ = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    done = subprocess.run(
        ["apt-get", *options, *arguments], env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    return done.returncode == 0


def install(tools):
    """Install the packages of tools: all at once, or each alone if one of them cannot be installed."""
    packages = sorted({package for tool in tools for package in PACKAGES[tool]})
    print("installing the system packages " + " ".join(packages), flush=True)
    if not apt_get("update"):
        print("apt-get update had errors; continuing with the existing lists", flush=True)
    command = ("install", "-y", "--no-install-recommends")
    if not apt_get(*command, *packages):
        for package in packages:
            apt_get(*command, package)


def main():
    """Install what is missing if this process may, and print one line for each tool that is still missing."""
    missing = missing_tools()
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        install(missing)
        missing = missing_tools()
    for tool in missing:
        print(f"{missing_line(tool)}; {WITHOUT.get(tool, 'tests that need it are left out')}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
