"""The rank of test_clocks.py: `python -m tests.fault.rank_of_clocks FILE LABEL` logs until SIGTERM, then finishes.

Each value goes into FILE as the oracle writes it, with a phase around it, and each hundredth step is printed.
"""

import os
import random
import signal
import struct
import sys
import time

import chiplog


def main(path: str, label: str) -> None:
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    run = chiplog.init(project="oracle", run_id="clocks", label=label, primary=True)
    chooser = random.Random(label)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    step = 0
    while not stopping:
        with run.phase("wait"):
            time.sleep(0.002)
        value = chooser.random()
        if step % 100 == 0:
            print(f"step {step}", flush=True)
        run.log({"value": value}, step=step)
        os.write(target, f"{step} {struct.pack('<d', value).hex()}\n".encode())
        step += 1
    run.finish()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
