"""CURVE keys, allow lists and what a key permits."""
