"""Config and summary of a run as W&B has them."""
