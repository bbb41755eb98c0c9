"""The tracker for Accelerate. Importing this makes `Accelerator(log_with="chiplog")` work."""

from chiplog.integrations.accelerate.tracker import ChiplogTracker

__all__ = ["ChiplogTracker"]
