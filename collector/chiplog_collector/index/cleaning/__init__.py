"""Space that comes back: checkpoints, retention, and deleted rows in the log."""
