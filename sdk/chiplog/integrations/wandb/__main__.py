"""`python -m chiplog.integrations.wandb train.py …`, or `-m MODULE …`: in that script `import wandb` is chiplog's."""

import os
import runpy
import sys

from chiplog.integrations.adapter.as_wandb import take_over, variables


def main(arguments: list[str]) -> None:
    """Run a script with its arguments, as `python SCRIPT ARGUMENT…` does. Raises what it raises."""
    is_module = arguments[:1] == ["-m"]
    given = arguments[is_module:]
    if not given:
        sys.exit("usage: python -m chiplog.integrations.wandb SCRIPT|-m MODULE [ARGUMENT]...")
    if not is_module and not os.path.exists(given[0]):
        sys.exit(f"chiplog: script {given[0]!r} does not exist; name it by its path, or a module by -m")
    os.environ.update(variables(os.environ))
    sys.argv[:] = given
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(given[0]))
    take_over()
    if is_module:
        runpy.run_module(given[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(given[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
