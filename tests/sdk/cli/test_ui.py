"""`chiplog ui`: the address that it prints, and bad input."""

import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

from click.testing import CliRunner

from chiplog.cli.ui import ui
from tests.support.command_line import CLI, environment
from tests.support.waiting import WAIT_S


def test_the_printed_address_opens_the_page_and_the_next_one_is_printed(tmp_path: Path) -> None:
    command = [*CLI, "ui", "--port", "0"]
    with subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"chiplog page: (http://127\.0\.0\.1:\d+/\?token=\S+)\n", line)
            assert found, line
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opener.open(found[1], timeout=WAIT_S) as response:
                assert response.status == 200 and b"static/js/main.js" in response.read()
            assert process.stdout.readline().startswith("opened; the next address: http://127.0.0.1:")
        finally:
            os.kill(process.pid, signal.SIGINT)
        assert process.wait(WAIT_S) in (0, 130, -signal.SIGINT)


def test_the_page_opens_also_if_its_next_address_has_no_reader(tmp_path: Path) -> None:
    command = [*CLI, "ui", "--port", "0", "--until-stdin-ends"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=environment(tmp_path), text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().split()[-1]
        process.stdout.close()  # as `chiplog ui | head -1`
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=WAIT_S) as response:
            assert response.status == 200
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
        assert process.stderr.read() == ""


def test_in_a_hub_the_address_is_a_path_of_its_proxy(tmp_path: Path) -> None:
    command = [*CLI, "ui", "--port", "0"]
    environ = {**environment(tmp_path), "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            line = process.stdout.readline()
            assert re.fullmatch(r"chiplog page: /user/ada/proxy/\d+/\?token=\S+\n", line), line
            assert "after the host name of JupyterHub" in process.stderr.readline()
        finally:
            os.kill(process.pid, signal.SIGINT)


def test_a_port_in_use_and_two_sources_are_one_line(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(ui, ["--port", str(port), "--dir", str(tmp_path)])
    assert done.exit_code == 1
    assert f"the page cannot listen on 127.0.0.1:{port}: " in done.output
    assert "; choose another by --port or --host" in done.output
    both = CliRunner().invoke(ui, ["--dir", "d", "--url", "tcp://h:1"])
    assert both.exit_code == 2 and "exclude each other" in both.output
    wrong = CliRunner().invoke(ui, ["--url", "udp://h"])
    assert wrong.exit_code == 2 and "udp://h" in wrong.output
