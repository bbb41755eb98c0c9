"""What `log()` knows of media."""

import pytest

from chiplog.values.media_value import MediaValue
from chiplog.values.metrics import flatten


def test_a_value_says_how_it_becomes_bytes() -> None:
    with pytest.raises(NotImplementedError):
        MediaValue().to_content()


def test_lists_and_tuples_of_media_are_one_value() -> None:
    one, other = MediaValue(), MediaValue()
    assert dict(flatten({"a": one, "b": [one, other], "c": (other,)})) == {"a": one, "b": (one, other), "c": (other,)}
