"""The process in which hostile inputs are decoded: bounded memory, a watchdog, a line in and a line out for a batch.

    in    {"target": name, "seed": n, "n": inputs}
    out   {"accepted": n, "peak_kib": n} or {"error": traceback, "input": hex, "at": index}

An input may kill it: the parent process reads the end of its output and reports that.
"""

import faulthandler
import json
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

INPUT_S = 10.0  # for one input; they take micro- to milliseconds
BATCH_S = 120  # SIGALRM ends a process that hangs in C, too
ADDRESS_SPACE_BYTES = 1 << 30  # above the memory of the ready process: claims of gigabytes then fail
PEAK_KIB_MAX = 64 << 10  # of resident memory beyond the start of a batch: inputs of some KiB, times a hundred, and room


def main() -> None:
    from tests.fuzz.decoders import DECODERS
    from tests.fuzz.machines import MACHINES

    targets = DECODERS | MACHINES
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in ("codec", "blocks", "arrow"):  # import what is imported late, with the first accepted input
        target, chooser = targets[name][0](), random.Random(0)
        any(target.check(target.make(chooser)) for _ in range(100))
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_SPACE_BYTES, size + ADDRESS_SPACE_BYTES))
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_batch(targets[request["target"]][0], request["seed"], request["n"])), flush=True)


def _batch(kind: Any, seed: int, n: int) -> dict[str, Any]:
    signal.alarm(BATCH_S)
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")
    before = _peak_kib()
    chooser = random.Random(seed)
    target, accepted = kind(), 0
    for at in range(n):
        data = target.make(chooser)
        begun_s = time.process_time()  # a process that sleeps meets the alarm
        try:
            accepted += bool(target.check(data))
        except BaseException:
            return {"error": traceback.format_exc(), "input": repr(data)[:4000], "at": at}
        if time.process_time() - begun_s > INPUT_S:
            return {"error": f"an input took more than {INPUT_S:g} s", "input": repr(data)[:4000], "at": at}
    grown = _peak_kib() - before
    signal.alarm(0)
    if grown > PEAK_KIB_MAX:
        return {"error": f"{grown} KiB more than before the batch, at its peak", "input": "", "at": n}
    return {"accepted": accepted, "peak_kib": grown}


def _peak_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
