"""The application: its documents, and its answers where something is missing."""

import hashlib
import runpy
from pathlib import Path

import pytest

from chiplog import __version__
from chiplog_page.app import STATIC
from chiplog_page.routes import media as routes_media
from chiplog_page.server.access import Access
from chiplog_page.server.source import Source
from chiplog_page.web_server import PageServer
from tests.support.collector_log import whole
from tests.support.hand_written import hand_written
from tests.support.hosts import Centre, Host
from tests.support.kept_log import finished, kept_log
from tests.support.live_runs import fill_live_runs
from tests.support.page_client import PageClient, serving


def test_the_document_names_only_files_of_this_server(reader: PageClient) -> None:
    page = reader.ask("/")
    assert page.status == 200
    text = page.body.decode()
    assert "http" not in text and "onload" not in text and "<style" not in text
    for path in ("static/js/main.js", "static/vendor/uPlot.min.css"):
        assert path in text
        assert reader.ask(f"/{path}").status == 200


def test_the_version_and_the_number_of_runs(reader: PageClient) -> None:
    assert reader.get("info") == {"version": __version__, "n_runs": 3}


def test_an_unknown_path_is_an_error_in_the_usual_form(reader: PageClient) -> None:
    answer = reader.ask("/api/nothing")
    assert (answer.status, answer.json["error"]["kind"]) == (404, "not_found")


def test_without_any_run_the_page_is_there_and_says_what_to_do(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        client.sign_in()
        assert client.ask("/").status == 200
        answer = client.ask("/api/runs")
    assert (answer.status, answer.json["error"]["kind"]) == (404, "no_data")
    assert "run a training with chiplog.init() first" in answer.json["error"]["message"]


def test_a_database_of_another_version_says_how_its_views_are_renewed(tmp_path: Path) -> None:
    with hand_written(tmp_path) as database:
        fill_live_runs(database)
        database.execute("DROP VIEW base.phase_names")
    with serving(tmp_path) as client:
        client.sign_in()
        answer = client.ask("/api/runs/even/verdict")
        own = client.ask("/api/sql", "POST", {"query": "FROM base.phase_names"})
    assert answer.status == 503
    assert answer.json["error"]["message"].startswith(
        "a query of the page failed; if the views of the database are of another version of chiplog, start a "
        "collector of this version to renew them: Catalog Error"
    )
    assert own.json["error"]["message"].startswith("Catalog Error")


def test_an_error_of_the_server_is_one_line_and_its_log_has_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("within\nlines")

    with hand_written(tmp_path) as database:
        fill_live_runs(database)
    monkeypatch.setattr(routes_media, "read_texts", fail)
    with serving(tmp_path) as client:
        answer = client.sign_in().ask("/api/runs/even/texts?key=a")
    message = "internal error: ValueError: within; the log of chiplog ui has the traceback"
    assert (answer.status, answer.json) == (500, {"error": {"kind": "internal", "message": message}})
    assert "in fail" in caplog.text and "Traceback" in caplog.text


def test_a_collector_without_usable_keys_is_unreachable(tmp_path: Path) -> None:
    access = Access()
    server = PageServer(Source("tcp://127.0.0.1:bad"), access, port=0)
    server.start()
    answer = PageClient(server, access).sign_in().ask("/api/runs")
    server.close()
    assert (answer.status, answer.json["error"]["kind"]) == (503, "unreachable")
    assert "127.0.0.1:bad" in answer.json["error"]["message"]


def test_a_readers_key_opens_the_page_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept_log(tmp_path / "centre", [whole(finished(1, "run-1"))]) as place:
        centre, host = Centre(place.root), Host(tmp_path / "laptop")
        host.key_directory.mkdir(mode=0o700, parents=True)
        centre.keys("new", "collector")
        centre.admit(host, "reader")
        access = Access()
        server = PageServer(Source(centre.address), access)
        server.start()
        try:
            centre.start_collector()
            monkeypatch.setenv("CHIPLOG_KEYS", str(host.key_directory))
            client = PageClient(server, access).sign_in()
            before = client.get("runs")["rows"]
            assert len(before) == 1
            for path, method, body in (
                ("runs/run-1", "PATCH", {"name": "other"}),
                ("runs/run-1", "DELETE", None),
                ("views/mine", "PUT", {"keys": ["loss"]}),
                ("views/mine", "DELETE", None),
            ):
                answer = client.ask(f"/api/{path}", method, body)
                error = answer.json["error"]
                assert (answer.status, error["kind"]) == (403, "forbidden"), (path, method, answer)
                assert error["message"] == (
                    "changes need the collector's Unix socket, or a key with the role admin: on its host run "
                    "chiplog keys allow KEY --role reader --role admin"
                )
            assert client.get("runs")["rows"] == before
        finally:
            server.close()
            centre.stop()


def test_large_answers_are_compressed(reader: PageClient) -> None:
    answer = reader.ask("/static/vendor/uPlot.iife.min.js", Accept_Encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.body) < 50_000


def test_the_vendored_libraries_are_the_reviewed_files() -> None:
    script = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "fetch_vendored.py"))
    listed = {name: digest for files in script["LIBRARIES"].values() for _, name, digest in files}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(STATIC, "vendor").iterdir()}
    assert found == listed
