"""Media that are read when they are made: failures are kept, bytes are encoded once."""

import inspect
import logging
import signal
from typing import Any

import pytest

from chiplog.media.audio import Audio
from chiplog.media.encoding.captured import CapturedMedia, caption_metadata, check_size, problem_of
from chiplog.media.figure import Figure
from chiplog.media.html import Html
from chiplog.media.image import Image
from chiplog.media.object3d import Object3D
from chiplog.media.table import Table
from chiplog.media.video import Video
from chiplog.safety.foreign_names import stand_in
from chiplog.values.media_value import Content, MediaError
from chiplog_schemas.limits import MEDIA_BYTES_MAX, TEXT_CHARS_MAX
from tests.support.signals import handling, raising


class Bytes(CapturedMedia):
    def __init__(self, read: Any, encode: Any = lambda: b"x", *more: Any, **unknown: Any) -> None:
        self.encode, self.n_encoded = encode, 0
        self._capture(b"", read, more, unknown)

    def _encode(self) -> Content:
        self.n_encoded += 1
        return Content("html", self.encode())


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError


def fail(error: Exception) -> Any:
    def read() -> None:
        raise error

    return read


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (MediaError("it has 0 pixels; log some"), "it has 0 pixels; log some"),
        (TypeError("no\n  luck"), "it cannot be read: TypeError no luck"),
        (UnprintableError(), "it cannot be read: UnprintableError"),
        (ValueError("\ud800"), "it cannot be read: ValueError \\ud800"),
    ],
)
def test_a_failure_is_raised_by_to_content_and_not_by_the_constructor(error: Exception, problem: str) -> None:
    for media in (Bytes(fail(error)), Bytes(lambda: None, fail(error))):
        for _ in range(2):
            with pytest.raises(MediaError) as caught:
                media.to_content()
            assert str(caught.value) == problem


@pytest.mark.parametrize("kind", [Audio, Figure, Html, Image, Object3D, Video, lambda value: Table(data=value)])
def test_an_object_of_a_name_that_chiplog_lacks_is_refused(kind: Any) -> None:
    media = kind(stand_in("Plotly")())
    with pytest.raises(MediaError, match="a Plotly of another library holds nothing in chiplog; log its data"):
        media.to_content()


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Audio, "data_or_path sample_rate caption file_type"),
        (Html, "data inject data_is_not_path"),
        (Image, "data_or_path mode caption grouping classes boxes masks file_type normalize"),
        (Object3D, "data_or_path caption file_type"),
        (Table, "columns data rows dataframe dtype optional allow_mixed_types log_mode"),
        (Video, "data_or_path caption fps format"),
    ],
)
def test_the_signature_shows_the_arguments_of_wandb(kind: Any, arguments: str) -> None:
    assert list(inspect.signature(kind).parameters) == arguments.split()


def test_bytes_are_encoded_once() -> None:
    media = Bytes(lambda: None)
    assert media.to_content() is media.to_content()
    assert media.n_encoded == 1


def test_a_value_above_the_limit_is_refused() -> None:
    with pytest.raises(MediaError, match=f"it has {MEDIA_BYTES_MAX + 1} bytes, the limit is {MEDIA_BYTES_MAX}"):
        Bytes(lambda: None, lambda: bytes(MEDIA_BYTES_MAX + 1)).to_content()
    assert len(Bytes(lambda: None, lambda: bytes(MEDIA_BYTES_MAX)).to_content().data) == MEDIA_BYTES_MAX


def test_metadata_must_fit_an_event() -> None:
    check_size(Content("image", b"", {"boxes": "x" * 500_000}))
    with pytest.raises(MediaError, match="its metadata have 600013 bytes, the limit is 524288; log fewer boxes"):
        check_size(Content("image", b"", {"boxes": "x" * 600_000}))


def test_unknown_arguments_are_reported_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert Bytes(lambda: None, lambda: b"x", 1, colour="red").to_content().data == b"x"
    assert [record.getMessage() for record in caplog.records] == [
        "chiplog: Bytes() has no argument 1, colour=, which is left out"
    ]


def test_a_caption_is_text_of_a_bounded_length() -> None:
    assert caption_metadata(None) == {}
    assert caption_metadata(3) == {"caption": "3"}
    assert caption_metadata("x" * 100_000)["caption"] == "x" * (TEXT_CHARS_MAX - 1) + "…"
    assert caption_metadata("a\ud800") == {"caption": "a\\ud800"}


def test_what_a_signal_handler_raised_passes() -> None:
    with handling(signal.SIGUSR1, raising(TimeoutError())), pytest.raises(TimeoutError):
        Bytes(lambda: signal.raise_signal(signal.SIGUSR1))
    assert problem_of(TimeoutError()) == "it cannot be read: TimeoutError"
