"""Pages of HTML from text and files."""

import io
import os
from pathlib import Path
from typing import Any

import pytest

from chiplog.media.html import Html
from chiplog.values.media_value import MediaError

HEAD = '<base target="_blank">'


@pytest.mark.parametrize(
    ("data", "stored"),
    [
        ("<h1>é</h1>", HEAD + "<h1>é</h1>"),
        ("<html><head><title>a</title></head></html>", f"<html><head>{HEAD}<title>a</title></head></html>"),
        ("<html><p>a</html>", f"<html><head>{HEAD}</head><p>a</html>"),
        (b"<p>", HEAD + "<p>"),
        (io.StringIO("<p>"), HEAD + "<p>"),
        (io.BytesIO(b"<p>\xff"), HEAD + "<p>\ufffd"),
        ("a\ud800", HEAD + "a\\ud800"),
    ],
)
def test_text_is_stored_with_a_head(data: Any, stored: str) -> None:
    html = Html(data)
    content = html.to_content()
    assert (content.kind, content.data.decode(), content.metadata) == ("html", stored, {"format": "html"})
    assert html.html == stored


def test_without_inject_text_is_unchanged() -> None:
    assert Html("<h1>a</h1>", inject=False).to_content().data == b"<h1>a</h1>"


def test_a_file_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text("<p>1")
    pages = [Html(path, inject=False), Html(str(path), inject=False)]
    path.write_text("<p>2")
    assert [page.to_content().data for page in pages] == [b"<p>1"] * 2
    assert Html(str(path), inject=False, data_is_not_path=True).to_content().data == str(path).encode()


def test_what_is_not_html_is_said_by_to_content(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.html")
    for value, reason in [
        (5, "a value of type int is not HTML; log a text, an open file or a path"),
        ("missing.html", "the file 'missing.html' cannot be opened"),
        (Path("missing"), "the file 'missing' cannot be opened"),
        (str(tmp_path / "fifo.html"), "is a FIFO"),
    ]:
        with pytest.raises(MediaError) as caught:
            Html(value).to_content()
        assert reason in str(caught.value)
