"""What `add_scalar` of chiplog's SummaryWriter costs, next to tensorboardX's, which hands values to a thread."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.figure import Figure, Node

PROGRAM = """
import json, statistics, time
from tensorboardX import SummaryWriter as Other
from chiplog.integrations.tensorboard import SummaryWriter
ROUNDS, CALLS, PAUSE_S = 20, 500, 0.05  # in the pause the threads of both write what is queued
writers = SummaryWriter("own", capture_console=False), Other("other")
def round_us(writer, first):
    began = time.perf_counter()
    for step in range(first, first + CALLS):
        writer.add_scalar("train/loss", 0.1, step)
    spent = time.perf_counter() - began
    time.sleep(PAUSE_S)
    return spent / CALLS * 1e6
found = [[round_us(writer, index * CALLS) for writer in writers] for index in range(ROUNDS)]
print(json.dumps([statistics.median(each) for each in zip(*found)]))
"""


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory, Node(Path(directory) / "chiplog") as node:
        command = [sys.executable, "-c", PROGRAM]
        printed = subprocess.run(command, env=node.environ, check=True, stdout=subprocess.PIPE, cwd=directory).stdout
    own_us, other_us = json.loads(printed.splitlines()[-1])
    yardstick = f"tensorboardX {other_us:,.1f}"
    return [Figure("add_scalar of chiplog's SummaryWriter, median", own_us, "µs", at_most=30, yardstick=yardstick)]
