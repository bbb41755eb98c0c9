"""The callbacks for Ray: `from chiplog.integrations.ray import ChiplogCallback, ChiplogLoggerCallback`."""

from chiplog.integrations.ray.train import ChiplogCallback
from chiplog.integrations.ray.tune import ChiplogLoggerCallback

__all__ = ["ChiplogCallback", "ChiplogLoggerCallback"]
