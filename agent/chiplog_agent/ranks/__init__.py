"""What becomes of ranks: orphaned journals, and how processes ended."""
