"""`python -m chiplog.cli`: the command `chiplog`, under the path that scripts have; the code is in `chiplog_cli`."""

import sys

try:
    from chiplog_cli import main
except ModuleNotFoundError as error:
    if error.name != "chiplog_cli":
        raise
    sys.exit("chiplog: the command is in the package chiplog, and only chiplog-sdk is installed; pip install chiplog")

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
