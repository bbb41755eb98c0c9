"""`python -m chiplog_collector.index`: the process that the receiver starts. See daemon.py."""

import os
import sys

from chiplog_collector.memory_limit import ALLOCATOR_SETTING

if __name__ == "__main__":
    os.environ.update(ALLOCATOR_SETTING)  # safeguard: index-frees-memory
    from chiplog_collector.index.daemon import main  # imports DuckDB, whose allocator reads the variable once

    sys.exit(main(sys.argv[1:]))
