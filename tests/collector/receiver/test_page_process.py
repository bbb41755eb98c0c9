"""The page as a child process of a collector."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from chiplog_cli.commands.look.ui import ui
from chiplog_collector.cli import collector
from chiplog_schemas.process.procfs import read_proc_stat
from tests.support.command_line import environment
from tests.support.node import end_process
from tests.support.waiting import WAIT_S, wait_until

Collector = subprocess.Popen[str]


@contextmanager
def with_page(root: Path) -> Iterator[Collector]:
    command = [sys.executable, "-P", "-m", "chiplog_collector", "--dir", str(root), "--ui", "0"]
    environ = {**environment(root), "PYTHONUNBUFFERED": "1", "CHIPLOG_UI_HOSTS": "hub.example"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environ, text=True, **pipes) as process:
        try:
            yield process
        finally:
            end_process(process.pid)


def opened_page(process: Collector, root: Path) -> str:
    """Open an address of the page; return it. Its output, which is no terminal, has no token."""
    assert process.stdout is not None
    line = process.stdout.readline()
    command = re.fullmatch(
        r"chiplog page: http://127\.0\.0\.1:\d+/; chiplog (ui --address --dir \S+) prints .*\n", line
    )
    assert command and command[1].endswith(f" {root}"), line
    printed = CliRunner().invoke(ui, command[1].split()[1:])
    assert printed.exit_code == 0, printed.output
    address = printed.output.strip()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(address, timeout=WAIT_S) as response:
        assert response.status == 200 and b"static/js/main.js" in response.read()
    return address


def pid_of_page(process: Collector) -> int:
    for entry in Path(f"/proc/{process.pid}/task").iterdir():
        for pid in (entry / "children").read_text().split():
            if b"\0ui\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise AssertionError("the collector has no page")


def has_ended(pid: int) -> bool:
    return read_proc_stat(pid)[:1] in ([], ["Z"])


@pytest.mark.full
def test_the_page_is_served_again_after_its_end_and_ends_with_the_collector(tmp_path: Path) -> None:
    with with_page(tmp_path) as process:
        first = opened_page(process, tmp_path)
        behind_a_proxy = urllib.request.Request(first, headers={"Host": "hub.example"})
        with pytest.raises(urllib.error.HTTPError, match="401"):  # the address has been used; a foreign host gets 400
            urllib.request.urlopen(behind_a_proxy, timeout=WAIT_S)
        os.kill(pid_of_page(process), signal.SIGKILL)
        assert opened_page(process, tmp_path) != first
        page = pid_of_page(process)
        process.terminate()
        assert process.wait(WAIT_S) == 0
        assert has_ended(page)


def test_the_page_ends_with_a_collector_that_is_killed(tmp_path: Path) -> None:
    with with_page(tmp_path) as process:
        opened_page(process, tmp_path)
        page = pid_of_page(process)
        process.kill()
        wait_until(lambda: has_ended(page), "the end of the page")


def test_an_address_without_a_port_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(collector, ["--dir", str(tmp_path), "--ui", "localhost"])
    assert done.exit_code == 2
    assert "--ui localhost has no port from 0 to 65535; give PORT or HOST:PORT, such as 8642" in done.output
