"""SQL over runs, from Python."""
