"""The handler for Python's logging: `from chiplog.integrations.logging import ChiplogHandler`."""

from chiplog.integrations.logging.handler import ChiplogHandler

__all__ = ["ChiplogHandler"]
