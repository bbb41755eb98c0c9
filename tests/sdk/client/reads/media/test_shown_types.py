"""Which logged values a browser displays."""

import pytest

from chiplog_client.reads.media.shown_types import shown_type


@pytest.mark.parametrize(
    ("kind", "form", "found"),
    [
        ("image", "png", "image/png"),
        ("mask", "png", "image/png"),
        ("figure", "png", "image/png"),
        ("audio", "mp3", "audio/mpeg"),
        ("video", "mp4", "video/mp4"),
        ("video", "webp", "image/webp"),
        ("html", "html", "text/html; charset=utf-8"),
        ("image", "svg", None),
        ("image", "html", None),
        ("figure", "plotly.json", None),
        ("table", "parquet", None),
        ("object3d", None, None),
        ("unknown", "png", None),
    ],
)
def test_a_type_follows_from_kind_and_format(kind: str, form: str | None, found: str | None) -> None:
    assert shown_type(kind, form) == found
