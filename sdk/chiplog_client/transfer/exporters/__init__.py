"""Runs as files of other libraries."""
