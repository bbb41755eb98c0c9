"""Samples of GPUs, hosts and processes."""
