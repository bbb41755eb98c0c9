"""The process that takes events from agents and writes the log."""
