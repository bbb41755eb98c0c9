"""Contents over HTTP: what a browser may show, ranges of bytes, and downloads."""

from collections.abc import Iterator

import pytest

from chiplog_page.routes import contents
from tests.support.hand_written import hand_written, kept_open
from tests.support.logged_media import LOST, digest_of, fill_logged_media, logged, store_logged_media
from tests.support.page_client import Answer, PageClient, serving


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    root = tmp_path_factory.mktemp("contents")
    with hand_written(root) as database:
        fill_logged_media(database)
    store_logged_media(root)
    with kept_open(root), serving(root) as client:
        yield client.sign_in()


def content(media: PageClient, key: str, **headers: str) -> Answer:
    return media.ask(f"/api/runs/logged/contents/{digest_of(key)}", **headers)


def data_of(key: str) -> bytes:
    return next(one.data for step, rank, name, one in logged() if (step, rank, name) == (200, 0, key))


@pytest.mark.parametrize(
    ("key", "content_type"),
    [("scene", "image/png"), ("scene/truth", "image/png"), ("tone", "audio/wav"), ("film", "image/webp")],
)
def test_a_content_is_sent_whole_with_its_type(media: PageClient, key: str, content_type: str) -> None:
    answer = content(media, key)
    assert (answer.status, answer.body) == (200, data_of(key))
    assert answer.headers["content-type"] == content_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].endswith("; sandbox")
    assert "content-disposition" not in answer.headers


def test_html_has_neither_scripts_nor_network(media: PageClient) -> None:
    answer = content(media, "report")
    policy = answer.headers["content-security-policy"]
    assert (answer.status, answer.body) == (200, data_of("report"))
    assert "default-src 'none'" in policy and "http" not in policy.partition("frame-ancestors")[0]
    sandbox = policy.rpartition("sandbox")[2].split()
    assert "allow-scripts" not in sandbox and "allow-same-origin" not in sandbox


@pytest.mark.parametrize("key", ["predictions", "cloud"])
def test_what_a_browser_does_not_show_is_a_download(media: PageClient, key: str) -> None:
    answer = content(media, key)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.body == data_of(key)


@pytest.mark.parametrize(
    ("wanted", "first", "last"),
    [("bytes=10-19", 10, 19), ("bytes=16000-", 16_000, None), ("bytes=-7", -7, None), ("bytes=0-99999999", 0, None)],
)
def test_a_range_of_bytes_is_sent_alone(media: PageClient, wanted: str, first: int, last: int | None) -> None:
    data = data_of("tone")
    answer = content(media, "tone", Range=wanted, Accept_Encoding="gzip")
    expected = data[first:] if last is None else data[first : last + 1]
    begin = first % len(data)
    assert (answer.status, answer.body) == (206, expected)
    assert answer.headers["content-range"] == f"bytes {begin}-{begin + len(expected) - 1}/{len(data)}"


def test_a_long_range_is_answered_in_part(media: PageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "RANGE_BYTES_MAX", 1_000)
    answer = content(media, "tone", Range="bytes=500-")
    assert answer.body == data_of("tone")[500:1_500]
    assert answer.headers["content-range"] == f"bytes 500-1499/{len(data_of('tone'))}"


@pytest.mark.parametrize("wanted", ["bytes=0-1,4-5", "bytes=-", "lines=0-1", "bytes=a-b"])
def test_another_range_is_ignored(media: PageClient, wanted: str) -> None:
    assert content(media, "tone", Range=wanted).status == 200


def test_a_range_after_the_end_is_refused(media: PageClient) -> None:
    answer = content(media, "tone", Range="bytes=999999-")
    assert (answer.status, answer.headers["content-range"]) == (416, f"bytes */{len(data_of('tone'))}")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"other/contents/{digest_of('scene')}", "run 'other' logged no content"),
        ("logged/contents/" + "0" * 64, "run 'logged' logged no content"),
        ("logged/contents/" + "Z" * 64, "run 'logged' logged no content"),
        (f"logged/contents/{digest_of(LOST)}", "has not arrived at the collector"),
    ],
)
def test_only_contents_of_the_run_are_sent(media: PageClient, path: str, message: str) -> None:
    answer = media.ask(f"/api/runs/{path}")
    assert answer.status == 404 and message in answer.json["error"]["message"]
