"""Media of `log()`: the bytes are in the outbox when it returns, an event names them, a refusal is one line."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import chiplog
from chiplog.recording.sharing import media
from chiplog.values.media_value import Content, MediaError, MediaValue
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.paths import paths_for_root
from tests.support.journals import Event

Offline = Callable[..., list[Event]]


class Bytes(MediaValue):
    """Some bytes as an image."""

    def __init__(self, data: bytes, *parts: bytes, **metadata: object) -> None:
        self.content = Content("image", data, metadata, tuple(("masks", Content("mask", part)) for part in parts))

    def to_content(self) -> Content:
        return self.content


class Broken(MediaValue):
    """A value without bytes. error: why."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def to_content(self) -> Content:
        raise self.error


def logged(offline: Offline) -> list[tuple[object, ...]]:
    """Return step, key, kind, digest, size and metadata of each event."""
    fields = [event.fields for event in offline(EventKind.MEDIA)]
    names = ("step", "key", "kind", "sha256", "bytes")
    return [(*(found[name] for name in names), json.loads(found["metadata"])) for found in fields]


def notices(offline: Offline) -> list[str]:
    return [event.fields["message"] for event in offline(EventKind.NOTICE) if event.fields["notice"] == "bad_value"]


def outbox(chiplog_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths_for_root(chiplog_dir).offline_files.iterdir()}


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def test_a_value_is_a_content_and_an_event_beside_the_numbers(
    run: chiplog.Run, chiplog_dir: Path, offline: Offline
) -> None:
    run.log({"sample": Bytes(b"pixels", caption="ü"), "deep": {"loss": 1.0, "x": Bytes(b"more")}}, step=7)
    assert logged(offline) == [
        (7, "sample", "image", sha256(b"pixels"), 6, {"caption": "ü"}),
        (7, "deep/x", "image", sha256(b"more"), 4, {}),
    ]
    assert outbox(chiplog_dir) == {sha256(data).hex(): data for data in (b"pixels", b"more")}
    assert [event.fields["step"] for event in offline(EventKind.METRICS)] == [7]


def test_items_of_a_list_are_numbered_and_equal_ones_are_one_content(
    run: chiplog.Run, chiplog_dir: Path, offline: Offline
) -> None:
    run.log({"samples": [Bytes(b"same"), Bytes(b"same")]})
    assert [found[5] for found in logged(offline)] == [{"item": 0}, {"item": 1}]
    assert list(outbox(chiplog_dir).values()) == [b"same"]


def test_parts_are_contents_of_their_own_before_the_whole(run: chiplog.Run, offline: Offline) -> None:
    run.log({"samples": Bytes(b"whole", b"one", b"two")})
    assert [found[1:4] for found in logged(offline)] == [
        ("samples/masks", "mask", sha256(b"one")),
        ("samples/masks", "mask", sha256(b"two")),
        ("samples", "image", sha256(b"whole")),
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Broken(MediaError("has 0 pixels; log an image that has some")), "'x' (Broken) is not stored: has 0 pixels"),
        (Broken(ZeroDivisionError("by zero")), "'x' (Broken) is not stored: by zero; it is not stored"),
        (Bytes(b"x" * 101), "it has 101 bytes, the limit is 100; save() it as a file"),
        (Bytes(b"", b"", b"", b""), "it holds 3 media, the limit is 2; log fewer"),
        (Bytes(b"", odd=float("nan")), "'x' (Bytes) is not stored: Out of range float values"),
        ([Bytes(b""), 3], "'x' is a list, not a number or short text"),
    ],
)
def test_what_cannot_be_stored_is_one_line_and_the_rest_is_kept(
    run: chiplog.Run, offline: Offline, monkeypatch: pytest.MonkeyPatch, value: object, message: str
) -> None:
    monkeypatch.setattr(media, "MEDIA_BYTES_MAX", 100)
    monkeypatch.setattr(media, "PARTS_PER_MEDIA_MAX", 2)
    run.log({"loss": 1.0, "x": value, "good": Bytes(b"good")})
    assert [found[1] for found in logged(offline)] == ["good"]
    assert len(offline(EventKind.METRICS)) == 1
    [found] = notices(offline)
    assert message in found


def test_of_too_many_items_the_first_are_stored(
    run: chiplog.Run, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "MEDIA_PER_LOG_MAX", 2)
    run.log({"x": [Bytes(b"%d" % number) for number in range(5)]})
    assert len(logged(offline)) == 2
    assert notices(offline) == ["'x' has 5 media; the first 2 are stored, log fewer at once"]


def test_without_room_in_the_outbox_a_value_is_refused_in_one_line(
    chiplog_dir: Path, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHIPLOG_OUTBOX_BYTES_MAX", "1048576")
    with chiplog.init(mode="offline", label="rank0", capture_console=False) as run:
        run.log({"x": Bytes(bytes(1_048_577))})
        run.log({"x": Bytes(b"few")})
    assert [found[3] for found in logged(offline)] == [sha256(b"few")]
    assert "'x' (Bytes) is not stored: 0 bytes of files wait for the collector" in notices(offline)[0]


def test_a_disabled_run_stores_nothing(chiplog_dir: Path) -> None:
    with chiplog.init(mode="disabled") as run:
        run.log({"x": Bytes(b"pixels")})
    assert not paths_for_root(chiplog_dir).offline_files.exists()
