"""Histograms and texts of a run, over HTTP."""

from collections.abc import Iterator

import pytest

from tests.support.hand_written import hand_written
from tests.support.media_run import FILES, fill_media_run, store_media_files
from tests.support.page_client import PageClient, serving


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    root = tmp_path_factory.mktemp("media")
    with hand_written(root) as database:
        fill_media_run(database)
    store_media_files(root)
    with serving(root) as client:
        yield client.sign_in()


def test_what_a_run_holds_is_told_by_key(media: PageClient) -> None:
    found = media.get("runs/media/media")
    assert [row["key"] for row in found["histograms"]] == ["grads", "weights"]
    assert found["texts"] == [{"key": "sample", "n": 10, "n_labels": 2, "first_step": 0, "last_step": 400}]
    assert media.get("runs/plain/media") == {"histograms": [], "texts": []}


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


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("texts", "key is missing; give the name of what was logged"),
        ("histograms?key=a&rows=0", "rows=0 is not within 1 and 256"),
        ("histograms?key=a&low=nan", "low='nan' is not a finite number"),
        ("histograms?key=a&low=2&high=2", "high=2.0 is not above low=2.0"),
    ],
)
def test_bad_input_is_refused(media: PageClient, path: str, message: str) -> None:
    answer = media.ask(f"/api/runs/media/{path}")
    assert (answer.status, answer.json["error"]["message"]) == (400, message)
