"""One run of this process: its settings, and everything that training code calls on it."""

from chiplog.recording.run.run import Run

__all__ = ["Run"]
