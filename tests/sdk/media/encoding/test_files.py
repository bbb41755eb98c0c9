"""Files that users log: read at once and whole, or refused with a reason."""

import io
import os
import signal
from pathlib import Path

import pytest

from chiplog.media.encoding import files
from chiplog.media.encoding.files import extension_of, is_path, read_file, read_stream
from chiplog.values.media_value import MediaError
from tests.support.signals import handling, raising


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "a.bin").write_bytes(data)
    assert read_file(tmp_path / "a.bin") == read_file(str(tmp_path / "a.bin")) == data


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    for path, reason in [
        (tmp_path / "missing.png", "cannot be opened: No such file or directory"),
        (tmp_path, "is a directory; log a regular file"),
        (tmp_path / "fifo", "is a FIFO, socket or device; log a regular file"),
        ("/dev/zero", "is a FIFO, socket or device; log a regular file"),
        (tmp_path / "empty", "is empty; log it after it is written"),
        ("s3://bucket/image.png", "is a URL, which chiplog does not download; log a local file"),
        ("nul\0", "cannot be opened: embedded null byte"),
    ]:
        with pytest.raises(MediaError) as caught:
            read_file(path)
        assert str(caught.value).endswith(reason)


def test_a_large_file_is_refused_before_it_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MEDIA_BYTES_MAX", 1_000)
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(MediaError, match=r"has 1099511627776 bytes, the limit is 1000; use save\(\)"):
        read_file(tmp_path / "large")


def test_what_a_signal_handler_raised_is_no_failure_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """TimeoutError is an OSError, as what open() raises."""

    def interrupted(*given: object) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return -1

    monkeypatch.setattr(files.os, "open", interrupted)
    with handling(signal.SIGUSR1, raising(TimeoutError("own"))), pytest.raises(TimeoutError, match="own"):
        read_file("a.png")


def test_paths_extensions_and_streams() -> None:
    assert is_path("a") and is_path(Path("a")) and not is_path(b"a")
    assert extension_of("a/B.TAR.GZ") == "gz" and extension_of(Path("a.d/b")) == ""
    text = io.StringIO("é")
    text.read()
    assert read_stream(text) == "é".encode()
    assert read_stream(io.BytesIO(b"x")) == b"x"
