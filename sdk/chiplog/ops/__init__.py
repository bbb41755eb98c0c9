"""Start, stop, find and check the daemons."""
