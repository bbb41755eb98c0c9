"""Runs next to each other: what differs, and metrics at the same step."""
