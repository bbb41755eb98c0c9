"""The version of chiplog."""

__version__ = "0.1.0"
