"""The application: its documents, and its answers where something is missing."""

import hashlib
import runpy
from pathlib import Path

from chiplog import __version__
from chiplog.page.app import STATIC
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


def test_large_answers_are_compressed(reader: PageClient) -> None:
    answer = reader.ask("/static/vendor/uPlot.iife.min.js", Accept_Encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.body) < 50_000


def test_the_vendored_libraries_are_the_reviewed_files() -> None:
    script = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "fetch_vendored.py"))
    listed = {name: digest for files in script["LIBRARIES"].values() for _, name, digest in files}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(STATIC, "vendor").iterdir()}
    assert found == listed
