"""A rank that logs on command, and writes what it logged into an oracle's file (`oracle.py`).

    python rank.py FILE LABEL RUN [PAD]

A line on standard input is a number of calls of `log()`; a line on standard output answers with the longest of them in
ms and the events produced so far. The end of the input is the end of the run, after which it says `finished`. PAD: so
many characters of text with each value.
"""

import os
import random
import struct
import sys
import time

import chiplog


def main() -> None:
    file, label, run_id, pad = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0
    chooser = random.Random(label)
    run = chiplog.init(project="oracle", run_id=run_id, label=label, primary=True, capture_console=False)
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    step = 0
    print(f"0 {run._journal.next_seq}", flush=True)
    for line in sys.stdin:
        longest = 0.0
        for _ in range(int(line)):
            value = chooser.random()
            begun = time.monotonic()
            run.log({"value": value, "pad": "x" * pad} if pad else {"value": value, "other": 1.0}, step=step)
            longest = max(longest, time.monotonic() - begun)
            os.write(target, f"{step} {struct.pack('<d', value).hex()}\n".encode())
            step += 1
        print(f"{1000 * longest:.3f} {run._journal.next_seq}", flush=True)
    produced = run._journal.next_seq
    run.finish()
    print(f"finished {max(produced, run._journal.next_seq)}", flush=True)


main()
