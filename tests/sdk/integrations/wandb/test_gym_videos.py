"""Videos of gymnasium, on stand-ins for its classes; tests/integrations has the real ones."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import chiplog
from chiplog.integrations import wandb
from chiplog.integrations.wandb import gym_videos, names
from chiplog_schemas.model.events import EventKind
from tests.support.journals import Event

Offline = Callable[..., list[Event]]
RECORD_VIDEO = """
class RecordVideo:
    def __init__(self, folder, name):
        self.video_folder, self._video_name = folder, name

    def stop_recording(self):
        with open(f"{self.video_folder}/{self._video_name}.mp4", "wb") as file:
            file.write(b"film")
        self._video_name = None
"""
VIDEO_RECORDER = """
class VideoRecorder:
    def __init__(self, folder, name):
        self.path, self.is_open = f"{folder}/{name}.mp4", True

    def close(self):
        if self.is_open:
            with open(self.path, "wb") as file:
                file.write(b"film")
        self.is_open = False
"""
VEC_VIDEO_RECORDER = """
class VecVideoRecorder:
    def __init__(self, folder, name):
        self.video_path = f"{folder}/{name}.mp4"

    def _stop_recording(self):
        with open(self.video_path, "wb") as file:
            file.write(b"film")
"""
WRITERS = [
    ("gymnasium.wrappers.rendering", RECORD_VIDEO, "stop_recording"),
    ("gymnasium.wrappers.vector.rendering", RECORD_VIDEO, "stop_recording"),
    ("gymnasium.wrappers.monitoring.video_recorder", VIDEO_RECORDER, "close"),
    ("gym.wrappers.monitoring.video_recorder", VIDEO_RECORDER, "close"),
    ("stable_baselines3.common.vec_env.vec_video_recorder", VEC_VIDEO_RECORDER, "_stop_recording"),
]


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Return what makes a module of a source importable, below packages of its name."""
    known = set(sys.modules)

    def make(name: str, source: str) -> None:
        path = tmp_path.joinpath("packages", *name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True)
        path.write_text(source)

    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield make
    for name in set(sys.modules) - known:
        if name.split(".")[0] in ("gym", "gymnasium", "stable_baselines3"):
            del sys.modules[name]


def videos(offline: Offline) -> list[tuple[int, str]]:
    return [(event.fields["step"], event.fields["key"]) for event in offline(EventKind.MEDIA)]


@pytest.mark.parametrize("is_imported_first", [True, False])
@pytest.mark.parametrize(("module", "source", "method"), WRITERS)
def test_each_video_is_logged_when_it_is_written_until_the_run_is_finished(
    make_module: Any,
    chiplog_dir: Path,
    offline: Offline,
    tmp_path: Path,
    module: str,
    source: str,
    method: str,
    is_imported_first: bool,
) -> None:
    make_module(module, source)
    if is_imported_first:
        importlib.import_module(module)
    run = wandb.init(mode="offline", monitor_gym=True)
    assert wandb.init(monitor_gym=True) is run  # takes them once
    [kind] = [value for value in vars(importlib.import_module(module)).values() if isinstance(value, type)]
    for name in ("rl-video-episode-0", "openaigym.video.0.12.video000000"):
        recorder = kind(str(tmp_path), name)
        getattr(recorder, method)()
        run.log({"return": 1.0})
    run.finish()
    getattr(kind(str(tmp_path), "late"), method)()
    assert videos(offline) == [(0, "videos"), (2, "video.0")]
    assert "call" not in getattr(kind, method).__qualname__


def test_what_is_written_twice_or_not_at_all_is_no_video(
    make_module: Any, chiplog_dir: Path, offline: Offline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_module("gym.wrappers.monitoring.video_recorder", VIDEO_RECORDER)
    kind = importlib.import_module("gym.wrappers.monitoring.video_recorder").VideoRecorder
    with wandb.init(mode="offline", monitor_gym=True):
        recorder = kind(str(tmp_path), "film")
        recorder.close()
        recorder.close()
        del recorder.path  # of tomorrow
        recorder.close()
        with pytest.raises(FileNotFoundError):
            kind(str(tmp_path / "no such directory"), "film").close()
    assert videos(offline) == [(0, "videos")]
    assert "'VideoRecorder' object has no attribute 'path'" in caplog.text


def test_monitor_logs_to_the_run_that_is_open_and_says_when_there_is_none(
    make_module: Any, chiplog_dir: Path, offline: Offline, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_module("gymnasium.wrappers.rendering", RECORD_VIDEO)
    assert wandb.gym.monitor is wandb.integration.gym.monitor
    wandb.gym.monitor()
    wandb.gym.monitor()
    kind = importlib.import_module("gymnasium.wrappers.rendering").RecordVideo
    kind(str(tmp_path), "a").stop_recording()
    assert "call wandb.init() first" in capfd.readouterr().err
    with wandb.init(mode="offline"):
        kind(str(tmp_path), "b").stop_recording()
    with wandb.init(mode="offline", monitor_gym=True):
        kind(str(tmp_path), "c").stop_recording()
        chiplog.finish()
        kind(str(tmp_path), "d").stop_recording()
    for monitor in names._monitors:
        monitor.end()
    names._monitors.clear()
    assert len(videos(offline)) == 2 and gym_videos._patches.newest is None


def test_without_gym_there_is_one_line_or_wandbs_error_in_strict_mode(
    chiplog_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("gym", "gymnasium"):
        monkeypatch.setitem(sys.modules, name, None)
    wandb.gym.monitor()
    wandb.init(mode="offline", monitor_gym=True).finish()
    assert capfd.readouterr().err.count("pip install gymnasium") == 1
    with pytest.raises(wandb.Error, match="pip install gymnasium"):
        wandb.init(mode="offline", monitor_gym=True, settings={"strict": True})
