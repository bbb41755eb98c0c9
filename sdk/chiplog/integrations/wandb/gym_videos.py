"""Logs the videos that gymnasium, gym and Stable-Baselines3 record, while a run takes them: `init(monitor_gym=True)`.

W&B 0.31 patches `close` of RecordVideo, which fails with gymnasium 1.0 and later. Here it is the method that writes.
"""

import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

from chiplog.integrations.adapter.method_patches import Method, MethodPatches
from chiplog.safety.boundary import never_raises

MISSING = "monitor_gym records nothing: neither gymnasium nor gym is installed; pip install gymnasium"
_WRITERS = {  # by module: the class, and the method that writes a video
    "gymnasium.wrappers.rendering": ("RecordVideo", ("stop_recording",)),  # from 1.0 on
    "gymnasium.wrappers.vector.rendering": ("RecordVideo", ("stop_recording",)),
    "gymnasium.wrappers.monitoring.video_recorder": ("VideoRecorder", ("close",)),
    "gym.wrappers.monitoring.video_recorder": ("VideoRecorder", ("close",)),
    "stable_baselines3.common.vec_env.vec_video_recorder": ("VecVideoRecorder", ("_stop_recording",)),
}
_PATHS: dict[str, Callable[[Any], str]] = {  # by class: the file of the video that is being recorded
    "RecordVideo": lambda recorder: os.path.join(recorder.video_folder, f"{recorder._video_name}.mp4"),
    "VideoRecorder": attrgetter("path"),
    "VecVideoRecorder": attrgetter("video_path"),
}
_NUMBERED = re.compile(r".+(video\.\d+).+")  # names of gym before 0.22, whose number is in W&B's key


def is_installed() -> bool:
    """Return True if gymnasium or gym can be imported."""
    return any(sys.modules.get(name) or find_spec(name) for name in ("gymnasium", "gym"))


class Monitor:
    """Takes the videos that are recorded, from `begin` to `end`.

    log: called with a video by its key, and no step. report: called with a place and an exception.
    """

    def __init__(
        self, log: Callable[[dict[str, Any], int | None], None], report: Callable[[str, Exception], None]
    ) -> None:
        self._log = log
        self._report_internal_error = report

    def begin(self) -> None:
        """Take the videos, in place of those that began before."""
        _patches.begin(self)

    def end(self) -> None:
        """Take no more. Without another one the classes are again as they were."""
        _patches.end(self)

    @never_raises("monitor_gym")
    def find(self, kind: str, recorder: Any) -> str | None:
        """Return the path of the video that a recorder of a kind is going to write."""
        return _PATHS[kind](recorder)

    @never_raises("monitor_gym")
    def take(self, path: str) -> None:
        """Log a video, under W&B's key."""
        from chiplog.media.video import Video  # a training without videos does not need it

        numbered = _NUMBERED.match(path)
        self._log({numbered[1] if numbered else "videos": Video(path)}, None)


def _ours(cls: type, _: str, method: Method) -> Method:
    kind = cls.__name__

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        monitor = _patches.newest
        path = None if monitor is None else monitor.find(kind, self)
        before = _written_at(path)
        result = method(self, *given, **named)
        if monitor is not None and path is not None and _written_at(path) != before:
            monitor.take(path)
        return result

    return call


def _written_at(path: str | None) -> int | None:
    try:
        return None if path is None else os.stat(path).st_mtime_ns
    except OSError:
        return None


_patches: MethodPatches[Monitor] = MethodPatches(_WRITERS, _ours)
