"""Which run a process continues, and at which step."""
