"""TensorBoard's SummaryWriter: `from chiplog.integrations.tensorboard import SummaryWriter`, or `sync()` beside it."""

from chiplog.integrations.tensorboard.run_sync import RunSync, sync
from chiplog.integrations.tensorboard.writer import SummaryWriter

__all__ = ["RunSync", "SummaryWriter", "sync"]
