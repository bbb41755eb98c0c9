"""The logger and the callback for Lightning: `from chiplog.integrations.lightning import ChiplogLogger`."""

from chiplog.integrations.lightning.callback import ChiplogCallback
from chiplog.integrations.lightning.logger import ChiplogLogger

__all__ = ["ChiplogCallback", "ChiplogLogger"]
