"""Addresses of runs: of the page while a collector serves it, else chiplog's own."""

import socket
from pathlib import Path

from chiplog.integrations.wandb.addresses import project_url, run_url
from chiplog_schemas.paths import paths_for_root


def test_projects_with_slashes_are_escaped() -> None:
    assert project_url("/Users/me/gpt 1") == "chiplog:///%2FUsers%2Fme%2Fgpt%201"


def test_a_run_has_the_address_of_the_page_while_it_is_served(tmp_path: Path) -> None:
    own = "chiplog:///team%2Fgpt/runs/a%20b"
    assert run_url(tmp_path, "team/gpt", "a b") == own
    file = paths_for_root(tmp_path).run / "page"
    file.parent.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        file.write_text(f"http://127.0.0.1:{port}/?token=secret")
        assert run_url(tmp_path, "team/gpt", "a b") == f"http://127.0.0.1:{port}/#/run/a%20b/curves"
    assert run_url(tmp_path, "team/gpt", "a b") == own
    file.write_text("http://[damaged")
    assert run_url(tmp_path, "team/gpt", "a b") == own
