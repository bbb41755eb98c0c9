"""Seconds of phases, steps, data waits and garbage collection."""
