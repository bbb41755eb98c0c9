"""What `log()` knows of values that are stored as a content of their own."""

import pytest

from chiplog.values.media_value import Content, MediaValue


def test_a_content_has_bytes_and_a_description() -> None:
    content = Content("image", b"x")
    assert (content.metadata, content.parts) == ({}, ())
    assert Content("table", b"y", {"n_rows": 1}, (("a/0", content),)).parts[0][1] is content


def test_the_classes_of_media_say_what_they_become() -> None:
    with pytest.raises(NotImplementedError):
        MediaValue().to_content()
