"""Run a script as it is, with the real wandb and `mirror()`."""

import runpy
import sys

import chiplog.integrations.wandb

del sys.argv[0]
chiplog.integrations.wandb.mirror()
runpy.run_path(sys.argv[0], run_name="__main__")
