"""An environment that draws itself, and films of it without moviepy, which needs an older Pillow than the others.

gymnasium and Stable-Baselines3 write their films by moviepy; here the ffmpeg of imageio-ffmpeg does it.
"""

import sys
from types import ModuleType
from typing import ClassVar

import gymnasium
import imageio_ffmpeg
import numpy

_MODULE = "moviepy.video.io.ImageSequenceClip"
N_STEPS = 8  # of an episode


class DrawnEnv(gymnasium.Env):
    """Right moves to the right. An episode has a fixed number of steps."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(-N_STEPS, N_STEPS, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.n_steps = 0
        return self._observed(), {}

    def step(self, action):
        self.place += 1 if action == 1 else -1
        self.n_steps += 1
        return self._observed(), float(self.place), self.n_steps >= N_STEPS, False, {}

    def render(self):
        return numpy.full((32, 32, 3), 128 + 8 * self.place, "uint8")

    def _observed(self):
        return numpy.array([self.place], "float32")


class Clip:
    """Frames, and the one method that is called."""

    def __init__(self, frames, fps):
        self._frames, self._fps = frames, fps

    def write_videofile(self, path, logger=None):
        height, width = self._frames[0].shape[:2]
        film = imageio_ffmpeg.write_frames(path, (width, height), fps=self._fps)
        film.send(None)
        for frame in self._frames:
            film.send(frame)
        film.close()


parts = _MODULE.split(".")
for n_parts in range(1, len(parts) + 1):
    sys.modules[".".join(parts[:n_parts])] = ModuleType(".".join(parts[:n_parts]))
sys.modules[_MODULE].ImageSequenceClip = Clip
