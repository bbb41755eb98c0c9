"""`python -m chiplog.cli`: the command `chiplog`, under the path that scripts have; the code is in `chiplog_cli`."""

import sys

from chiplog_cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
