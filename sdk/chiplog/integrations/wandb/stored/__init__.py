"""Runs that are stored: wandb.Api(), its filters, values by step, saved files that come back."""
