"""Sound: samples as WAV, other formats by soundfile, files as they are."""

import io
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from chiplog.media.audio import Audio
from chiplog.values.media_value import Content, MediaError

TONE = np.sin(np.arange(800) / 10).astype(np.float32)
NAN = float("nan")


def samples_of(content: Content) -> list[list[int]]:
    with wave.open(io.BytesIO(content.data)) as file:
        kind = {1: "u1", 2: "<i2", 4: "<i4"}[file.getsampwidth()]
        frames = np.frombuffer(file.readframes(file.getnframes()), kind)
        return frames.reshape(-1, file.getnchannels()).tolist()


def test_floats_become_16_bits() -> None:
    content = Audio(TONE, sample_rate=8_000, caption="a tone").to_content()
    assert content.kind == "audio"
    described = {"format": "wav", "sample_rate": 8_000, "n_channels": 1, "duration_s": 0.1, "caption": "a tone"}
    assert content.metadata == described
    assert samples_of(content) == np.rint(TONE * 32_767).astype(int)[:, None].tolist()


@pytest.mark.parametrize(
    ("values", "stored", "counts"),
    [
        ([1.0, -1.0, 0.0], [32_767, -32_767, 0], {}),
        ([2.0, -np.inf, NAN], [32_767, -32_767, 0], {"n_nan": 1, "n_clipped": 2}),
        ([1, -32_768], [1, -32_768], {}),
        (np.array([1, 70_000], np.int32), [1, 70_000], {}),
        (np.array([0, 255], np.uint8), [0, 255], {}),
        (np.array([0.5], np.float16), [16_384], {}),
    ],
)
def test_samples_of_each_type(values: Any, stored: list[int], counts: dict[str, int]) -> None:
    content = Audio(values, 8_000).to_content()
    assert samples_of(content) == [[sample] for sample in stored]
    assert {name: n for name, n in content.metadata.items() if name in ("n_nan", "n_clipped")} == counts


def test_channels_are_last_in_arrays_and_first_in_tensors() -> None:
    array = np.array([[1, 2], [3, 4], [5, 6]], np.int16)
    for value in (array, torch.tensor(array.T)):
        content = Audio(value, 2).to_content()
        assert (samples_of(content), content.metadata["n_channels"]) == (array.tolist(), 2)
        assert content.metadata["duration_s"] == 1.5


def test_later_changes_are_not_logged() -> None:
    array = np.array([1, 2], np.int16)
    audio = Audio(array, 8_000)
    array[:] = 0
    assert samples_of(audio.to_content()) == [[1], [2]]


@pytest.mark.parametrize(("form", "name"), [("flac", "FLAC"), ("ogg", "OGG"), ("mp3", "MP3")])
def test_other_formats_are_written_by_soundfile(form: str, name: str) -> None:
    content = Audio(TONE, 8_000, file_type=form).to_content()
    assert content.metadata["format"] == form
    info = soundfile.info(io.BytesIO(content.data))
    assert (info.format, info.samplerate, info.channels) == (name, 8_000, 1)


def test_files_keep_their_bytes(tmp_path: Path) -> None:
    data = Audio(TONE, 8_000).to_content().data
    (tmp_path / "a.wav").write_bytes(data)
    (tmp_path / "a.opus").write_bytes(b"anything")
    (tmp_path / "b.wav").write_bytes(b"anything")
    read = Audio(tmp_path / "a.wav").to_content()
    described = {"format": "wav", "sample_rate": 8_000, "n_channels": 1, "duration_s": 0.1}
    assert (read.data, read.metadata) == (data, described)
    assert Audio(str(tmp_path / "a.opus"), 48_000).to_content().metadata == {"format": "opus", "sample_rate": 48_000}
    assert Audio(tmp_path / "b.wav").to_content().data == b"anything"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((TONE,), "sample_rate is missing; give the frames per second, as in Audio(samples, 16_000)"),
        ((TONE, 0), "sample_rate is 0; give the frames per second"),
        ((TONE, "fast"), "it cannot be read: ValueError"),
        ((np.zeros((2, 8_000)), 8_000), "the sound has 8000 channels; log (frames, channels)"),
        ((np.zeros(0), 8_000), "samples have the shape (0,)"),
        ((np.zeros((1, 2, 3)), 8_000), "samples have the shape (1, 2, 3)"),
        ((np.array([1 << 40]), 8_000), "samples of type int64 do not fit 16 bits"),
        ((np.array([np.nan, np.inf]), 8_000), "none of its values is a finite number; log it when it has some"),
        ((np.array([1j]), 8_000), "samples have the type complex128"),
        ((lambda: 1, 8_000), "a value of type function is not a sound; log samples or a path"),
        (("missing.wav",), "the file 'missing.wav' cannot be opened"),
        ((TONE, 8_000, None, "aiff"), "file_type 'aiff' is unknown; use one of wav, flac, ogg, mp3"),
    ],
)
def test_what_is_not_a_sound_is_said_by_to_content(given: Any, reason: str) -> None:
    with pytest.raises(MediaError) as caught:
        Audio(*given).to_content()
    assert str(caught.value).startswith(reason)


def test_without_soundfile_only_wav_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)  # type: ignore[arg-type]
    assert Audio(TONE, 8_000).to_content().data
    with pytest.raises(
        MediaError, match="a sound as flac needs soundfile, which is not installed; pip install 'chiplog"
    ):
        Audio(TONE, 8_000, file_type="flac").to_content()
