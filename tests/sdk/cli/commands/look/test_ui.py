"""`chiplog ui`: the address that it prints, and bad input."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from chiplog_cli.commands.look.ui import ui
from tests.support.command_line import CLI, environment
from tests.support.waiting import WAIT_S, wait_until


class Address(NamedTuple):
    text: str
    port: int


@contextmanager
def running(environ: dict[str, str], *options: str) -> Iterator[tuple[Address, subprocess.Popen[str]]]:
    """Run `chiplog ui` on a free port; yield its address and its process."""
    command = [*CLI, "ui", "--port", "0", "--until-stdin-ends", *options]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=environ, text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            found = re.fullmatch(r"chiplog page: (\S+?(\d+)/\?token=\S+)\n", process.stdout.readline())
            assert found
            yield Address(found[1], int(found[2])), process
        finally:
            process.stdin.close()
            process.wait(WAIT_S)


def status_of(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> int:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as connection:
        connection.request(method, path, body, headers)
        return connection.getresponse().status


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
    with running({**environment(tmp_path), "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}) as (address, process):
        assert process.stderr is not None
        assert re.fullmatch(r"/user/ada/proxy/\d+/\?token=\S+", address.text), address.text
        assert "after the host name of JupyterHub" in process.stderr.readline()


def test_a_page_for_other_machines_says_how_it_opens_and_takes_password_and_proxy(tmp_path: Path) -> None:
    environ = environment(tmp_path, CHIPLOG_UI_PASSWORD="sesame", CHIPLOG_UI_HOSTS="not.used")
    options = ("--host", "0.0.0.0", "--allow-host", "hub.example", "--allow-host", "other.example")
    with running(environ, *options) as (address, process):
        assert process.stderr is not None
        assert process.stderr.readline() == (
            "0.0.0.0 is reachable from other machines: the page opens only by this address, or by the password\n"
        )
        for host in ("hub.example", "other.example:443"):
            assert status_of(address.port, "POST", "/", b"password=sesame", Host=host, Origin=f"https://{host}") == 303
        assert status_of(address.port, "POST", "/", b"password=sesame", Origin="https://hub.example") == 303
        assert status_of(address.port, "POST", "/", b"password=other") == 401
        assert status_of(address.port, "GET", "/", Host="not.used") == 400, "the option wins"


def test_the_variable_allows_hosts_and_without_a_password_its_variable_is_named(tmp_path: Path) -> None:
    environ = environment(tmp_path, CHIPLOG_UI_HOSTS="hub.example, other.example")
    with running(environ, "--host", "0.0.0.0") as (address, process):
        assert process.stderr is not None
        assert process.stderr.readline() == (
            "0.0.0.0 is reachable from other machines: the page opens only by this address; "
            "set CHIPLOG_UI_PASSWORD for a password\n"
        )
        hosts = ("hub.example", "other.example", "evil.example")
        assert [status_of(address.port, "GET", "/", Host=host) for host in hosts] == [401, 401, 400]


@pytest.mark.parametrize("hub", ["", "/user/ada/"])
def test_the_page_opens_in_a_browser_of_this_machine_but_not_of_a_hub(tmp_path: Path, hub: str) -> None:
    programs, opened = tmp_path / "programs", tmp_path / "opened"
    programs.mkdir()
    browser = programs / "xdg-open"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    environ = environment(tmp_path, PATH=f"{programs}:{os.environ['PATH']}")
    environ |= {"JUPYTERHUB_SERVICE_PREFIX": hub} if hub else {}
    with running(environ, "--open") as (address, _):
        status_of(address.port, "GET", "/static/style.css", Host="localhost")  # it serves after it has opened a browser
        if hub:
            assert not opened.exists(), "the address is only a path"
        else:
            wait_until(opened.exists, "a browser")
            assert opened.read_text() == f"{address.text}\n"


@pytest.mark.parametrize("name", ["https://hub.example", "hub.example/chiplog"])
def test_an_allowed_host_is_no_address(tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(ui, ["--port", "0", "--dir", str(tmp_path), "--allow-host", name])
    assert done.exit_code == 2
    assert f"{name!r} is not the name of a host; leave out the scheme and the path" in done.output


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
