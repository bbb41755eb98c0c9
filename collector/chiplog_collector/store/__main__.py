"""Run the publisher of a collector as a process."""

import sys

from chiplog_collector.priority import lower_process

if __name__ == "__main__":
    lower_process()
    from chiplog_collector.store.publisher import main  # its libraries start threads, of the priority of this one

    sys.exit(main(sys.argv[1:]))
