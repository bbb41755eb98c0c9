"""Resolve the identity of this process: run, label and rank, from launcher, parent or process group."""
