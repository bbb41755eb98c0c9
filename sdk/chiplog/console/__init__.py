"""Capture what the process prints."""
