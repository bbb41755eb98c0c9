"""`python -m chiplog.integrations.wandb train.py …`: run a script whose `import wandb` is chiplog's."""

import os
import runpy
import sys

from chiplog.integrations.adapter.as_wandb import take_over, variables


def main(arguments: list[str]) -> None:
    """Run a script with its arguments, as `python SCRIPT ARGUMENT…` does. Raises what it raises."""
    if not arguments:
        sys.exit("usage: python -m chiplog.integrations.wandb SCRIPT [ARGUMENT]...")
    os.environ.update(variables(os.environ))
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    take_over()
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
