"""Sources of ranks: their processes and control groups."""
