"""Videos: frames encoded by ffmpeg or Pillow, files as they are."""

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from PIL import Image

from chiplog.media.video import Video
from chiplog.values.media_value import Content, MediaError

FRAMES = np.zeros((4, 3, 32, 48), np.uint8)
FRAMES[:, 0] = np.array([0, 60, 120, 240], np.uint8)[:, None, None]  # red, brighter in each frame


def film_of(content: Content, folder: Path) -> tuple[tuple[int, int], float, np.ndarray]:
    """Return size, frames per second and frames, as ffmpeg reads them."""
    path = folder / f"video.{content.metadata['format']}"
    path.write_bytes(content.data)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    about = done.stderr.decode()
    [(width, height)] = {(int(w), int(h)) for w, h in re.findall(r"Video:.*? ([1-9]\d+)x(\d+)", about)}
    fps = float(re.findall(r"([\d.]+) fps", about)[0])
    return (width, height), fps, np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


@pytest.mark.parametrize("form", ["mp4", "webm"])
def test_frames_become_a_film(tmp_path: Path, form: str) -> None:
    content = Video(FRAMES, caption="c", fps=10, format=form).to_content()
    described = {"format": form, "width": 48, "height": 32, "n_frames": 4, "fps": 10.0, "caption": "c"}
    assert (content.kind, content.metadata) == ("video", described)
    size, fps, frames = film_of(content, tmp_path)
    assert (size, fps, len(frames)) == ((48, 32), 10.0, 4)
    reds = [frame[..., 0].mean() for frame in frames]
    assert np.allclose(reds, [0, 60, 120, 240], atol=20)


def test_frames_with_odd_sides_are_padded(tmp_path: Path) -> None:
    content = Video(FRAMES[..., :31, :47]).to_content()
    assert content.metadata["format"] == "mp4"
    size, fps, frames = film_of(content, tmp_path)
    assert (size, fps, len(frames)) == ((48, 32), 4.0, 4)


@pytest.mark.parametrize(
    ("code", "reason"), [("exit 1", "status 1"), ("echo a; echo no codec >&2; exit 1", "no codec")]
)
def test_a_failure_of_ffmpeg_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/input\n{code}\n")
    program.chmod(0o755)
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: str(program))
    with pytest.raises(MediaError, match=f"ffmpeg failed: {reason}; use another format, such as webp"):
        Video(FRAMES, format="mp4").to_content()


@pytest.mark.parametrize("form", ["gif", "webp"])
def test_frames_become_a_moving_picture(form: str) -> None:
    picture: Any = Image.open(io.BytesIO(Video(FRAMES, fps=20, format=form).to_content().data))
    assert (picture.format, picture.n_frames, picture.size) == (form.upper(), 4, (48, 32))
    picture.seek(1)
    picture.load()
    assert picture.info["duration"] == 50


@pytest.mark.parametrize(
    ("frames", "size"),
    [
        (FRAMES[:, :1], (48, 32)),
        (np.concatenate([FRAMES, FRAMES[:, :1]], axis=1), (48, 32)),
        (torch.tensor(FRAMES).float() / 255, (48, 32)),
        (np.stack([FRAMES, FRAMES, FRAMES]), (144, 32)),
    ],
    ids=["grey", "with alpha", "floats", "batch"],
)
def test_each_shape_of_frames(frames: Any, size: tuple[int, int]) -> None:
    content = Video(frames, format="webp").to_content()
    picture: Any = Image.open(io.BytesIO(content.data))
    assert (picture.size, (content.metadata["width"], content.metadata["height"])) == (size, size)
    picture.seek(3)
    assert abs(picture.convert("RGB").getpixel((5, 5))[0] - 240) < 20


def test_without_ffmpeg_frames_become_webp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)  # type: ignore[arg-type]
    assert Video(FRAMES).to_content().metadata["format"] == "webp"
    with pytest.raises(
        MediaError, match="a video as mp4 needs imageio-ffmpeg, which is not installed; pip install 'chip"
    ):
        Video(FRAMES, format="mp4").to_content()
    monkeypatch.setitem(sys.modules, "PIL.Image", None)  # type: ignore[arg-type]
    with pytest.raises(MediaError, match="an image needs Pillow"):
        Video(FRAMES).to_content()


def test_files_keep_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.MP4"
    path.write_bytes(b"film")
    values = [Video(path), Video(str(path)), Video(io.BytesIO(b"film"), format="mp4"), Video(b"film", format="mp4")]
    path.unlink()
    for value in values:
        assert (value.to_content().data, value.to_content().metadata) == (b"film", {"format": "mp4"})


def test_later_changes_are_not_logged() -> None:
    frames = FRAMES.copy()
    video = Video(frames, format="webp")
    frames[:] = 0
    assert video.to_content().data == Video(FRAMES, format="webp").to_content().data


@pytest.mark.parametrize(
    ("value", "options", "reason"),
    [
        (np.zeros((3, 4, 4)), {}, "it has the shape (3, 4, 4); log (frames, channels, height, width)"),
        (np.zeros((2, 5, 5, 3)), {}, "it has the shape (2, 5, 5, 3)"),
        (np.zeros((0, 3, 4, 4)), {}, "it has 0 frames or pixels"),
        (np.broadcast_to(np.uint8(0), (30, 3, 4_000, 4_000)), {}, "it has 1440000000 values, the limit is"),
        (FRAMES, {"fps": 0}, "fps is 0.0; give the frames per second"),
        (FRAMES, {"format": "avi"}, "the frames has the format avi; use one of mp4, webm, ogg, gif, webp"),
        (np.full((1, 3, 4, 4), np.nan), {}, "none of its values is a finite number"),
        (lambda: 1, {}, "a value of type function is not a video; log frames or a path"),
        ("missing.mp4", {}, "the file 'missing.mp4' cannot be opened"),
        (__file__, {}, "has the format py; use one of"),
        (b"film", {}, "the bytes has the format of no name; use one of"),
    ],
)
def test_what_is_not_a_video_is_said_by_to_content(value: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(MediaError) as caught:
        Video(value, **options).to_content()
    assert reason in str(caught.value)
