"""Run the benchmarks of stores and print one table: `python -m tests.bench.lake.run [name …]`.

They install other engines into build/lake, so they are a lane apart.
"""

import sys

from tests.bench.run import run

NAMES = ("engines", "cold", "bucket", "catch_up", "live")

if __name__ == "__main__":
    sys.exit(run("chiplog and other engines on a store", "tests.bench.lake", sys.argv[1:] or NAMES))
