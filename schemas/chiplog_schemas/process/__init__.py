"""Processes: locks, descriptors, /proc, exit statuses, daemons."""
