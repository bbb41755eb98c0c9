"""Records in, rows out: what the log means. Pure."""
