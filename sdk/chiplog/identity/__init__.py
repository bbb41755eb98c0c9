"""Which process this is: run, label, rank, attempt, by launcher, parent or process group."""
