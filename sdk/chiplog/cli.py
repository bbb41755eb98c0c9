"""`python -m chiplog.cli`: the command `chiplog`, under the path that scripts have; the code is in `chiplog_cli`."""

import sys

from chiplog import _ONLY_SDK

try:
    from chiplog_cli import main
except ModuleNotFoundError as error:
    if error.name != "chiplog_cli":
        raise
    sys.exit(f"chiplog: the command {_ONLY_SDK}")

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
