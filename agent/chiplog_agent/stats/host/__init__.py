"""Sources of the host: one module each, listed in `sources.py`."""
