"""The ends of ranks: orphaned journals, and how processes ended."""
