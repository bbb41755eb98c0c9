"""`python -m chiplog_collector.index`: the process that the receiver starts. See process.py."""

import sys

from chiplog_collector.index.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
