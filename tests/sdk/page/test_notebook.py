"""`chiplog.ui()`: a frame for notebooks, by a server in this process."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import chiplog
from chiplog_page import notebook
from tests.support.hand_written import hand_written
from tests.support.live_runs import fill_live_runs
from tests.support.waiting import WAIT_S


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("notebook")
    with hand_written(root) as database:
        fill_live_runs(database)
    yield root
    for server in notebook._servers.values():
        server.close()
    notebook._servers.clear()


def test_a_frame_and_a_link_open_the_page_once_each(root: Path) -> None:
    shown = chiplog.ui("a/b<", dir=root, height=300)._repr_html_()
    addresses = re.findall(r'(?:src|href)="([^"]+)"', shown)
    assert len(set(addresses)) == 2
    assert all(address.endswith("#/run/a%2Fb%3C/curves") for address in addresses)
    assert 'height="300"' in shown and "<script" not in shown
    for address in addresses:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address.partition("#")[0], timeout=WAIT_S) as response:
            assert b"static/js/main.js" in response.read()


ENDS = """
import atexit, sys
import chiplog, pytest
from tests.support.endless_queries import EndlessQueries
from tests.support.page_client import PageClient

endless = EndlessQueries(pytest.MonkeyPatch(), "count(*) AS n FROM runs")
atexit.register(lambda: print(endless.endings.get_nowait()))  # after the page
server = chiplog.ui(dir=sys.argv[1])._server
request = PageClient(server, server._access).sign_in().asked("/api/info")
request.__enter__()
assert endless.began.acquire(timeout=25)
"""


@pytest.mark.full
def test_the_end_of_the_process_cancels_the_queries_that_run(root: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS, root], capture_output=True, text=True, timeout=WAIT_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "cancelled\n", "")


def test_two_calls_share_a_server(root: Path) -> None:
    assert chiplog.ui(dir=root)._server is chiplog.ui(dir=str(root))._server
    assert "http://127.0.0.1:" in repr(chiplog.ui(dir=root))


def test_bad_arguments_are_named(root: Path) -> None:
    with pytest.raises(ValueError, match="height=5 is not within 200 and 10000"):
        chiplog.ui(dir=root, height=5)
    with pytest.raises(ValueError, match="give one of them"):
        chiplog.ui(url="tcp://h:1", dir=root)


def test_names_of_hosts_count_in_a_notebook_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIPLOG_UI_HOSTS", "hub.example")
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    page = chiplog.ui(dir=root)
    assert page.address.startswith(f"/user/ada/proxy/{page._server.port}/?token=")
    hosts = ("hub.example", "other.example")
    assert [page._server._access.is_host(host) for host in hosts] == [True, False], "the names that were given"
    assert chiplog.ui(dir=root, proxy="").address.startswith("http://127.0.0.1:"), "none, although in a hub"
