"""Histograms, texts and media of a run, over HTTP."""

from collections.abc import Iterator

import pytest

from chiplog_page.routes import media as routes_media
from tests.support.hand_written import hand_written, kept_open
from tests.support.logged_media import N_ROWS, digest_of, fill_logged_media, store_logged_media
from tests.support.media_run import FILES, fill_media_run, store_media_files
from tests.support.page_client import PageClient, serving


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    root = tmp_path_factory.mktemp("media")
    with hand_written(root) as database:
        fill_media_run(database)
    store_media_files(root)
    with kept_open(root), serving(root) as client:
        yield client.sign_in()


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    root = tmp_path_factory.mktemp("logged")
    with hand_written(root) as database:
        fill_logged_media(database)
    store_logged_media(root)
    with kept_open(root), serving(root) as client:
        yield client.sign_in()


def test_what_a_run_holds_is_told_by_key(media: PageClient) -> None:
    found = media.get("runs/media/media")
    assert [row["key"] for row in found["histograms"]] == ["grads", "weights"]
    assert found["texts"] == [{"key": "sample", "n": 10, "n_labels": 2, "first_step": 0, "last_step": 400}]
    assert media.get("runs/plain/media") == {"histograms": [], "texts": [], "media": []}


def test_histograms_and_texts_are_asked_for_by_key(media: PageClient) -> None:
    found = media.get("runs/media/histograms?key=weights&label=rank1&rows=20&columns=50&low=8")
    assert (found["n_labels"], len(found["edges"]), found["edges"][0]) == (1, 21, 8)
    assert media.get("runs/media/texts?key=sample")["step"] == 400
    assert media.get("runs/media/texts?key=sample&search=img")["rows"][0]["label"] == "rank1"


def test_the_start_of_a_saved_file_is_sent_alone(media: PageClient) -> None:
    path = "/api/runs/media/files/predictions.csv"
    answer = media.ask(f"{path}?bytes=20")
    assert (answer.status, answer.body) == (200, FILES["predictions.csv"][:20])
    assert answer.headers["content-disposition"] == 'attachment; filename="predictions.csv"'
    assert media.ask(path).body == FILES["predictions.csv"]
    assert media.ask(f"{path}?bytes=0").body == b""
    assert media.ask(f"{path}?bytes=-1").json["error"]["message"].startswith("bytes=-1 is not within 0 and ")


def test_media_are_asked_for_by_key_kind_and_step(logged: PageClient) -> None:
    assert [row["key"] for row in logged.get("runs/logged/media")["media"] if row["kind"] == "table"] == ["predictions"]
    found = logged.get("runs/logged/logged?key=digits&kind=image&step=120&label=rank0")
    assert (found["step"], [row["item"] for row in found["rows"]]) == (100, [0, 1, 2, 3, 4])
    assert logged.get("runs/other/logged?key=digits&kind=image")["rows"] == []


def test_rows_of_a_table_come_with_what_their_cells_refer_to(logged: PageClient) -> None:
    path = f"runs/logged/tables/{digest_of('predictions')}"
    found = logged.get(f"{path}?sort=1&order=down&limit=2")
    assert [row[1] for row in found["rows"]] == [100 / 7, 100 / 7]
    assert (found["n_rows"], found["media"]) == (N_ROWS, {})
    found = logged.get(f"{path}?search=row%202%20%3C")
    [[*_, picture]] = found["rows"]
    assert found["n_found"] == 1
    assert found["media"][picture.removeprefix("sha256:")]["type"] == "image/png"


def test_only_tables_of_the_run_are_read_up_to_a_size(logged: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    table = digest_of("predictions")
    for path in (f"other/tables/{table}", f"logged/tables/{digest_of('scene')}"):
        assert "logged no table" in logged.ask(f"/api/runs/{path}").json["error"]["message"]
    assert logged.ask(f"/api/runs/logged/tables/{table}?order=left").status == 400
    monkeypatch.setattr(routes_media, "TABLE_BYTES_MAX", 10)
    answer = logged.ask(f"/api/runs/logged/tables/{table}")
    assert answer.status == 400 and "the limit is 10; download it" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("texts", "key is missing; give the name of what was logged"),
        ("logged?kind=image", "key is missing; give the name of what was logged"),
        ("histograms?key=a&rows=0", "rows=0 is not within 1 and 256"),
        ("histograms?key=a&low=nan", "low='nan' is not a finite number"),
        ("histograms?key=a&low=2&high=2", "high=2.0 is not above low=2.0"),
    ],
)
def test_bad_input_is_refused(media: PageClient, path: str, message: str) -> None:
    answer = media.ask(f"/api/runs/media/{path}")
    assert (answer.status, answer.json["error"]["message"]) == (400, message)
