"""An exit with a code."""

import sys

import wandb

run = wandb.init()
run.log({"loss": 1.0})
sys.exit(3)
