"""Run the publisher of a collector as a process."""

import sys

from chiplog_collector.store.publisher import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
