"""A run whose names, numbers, steps and attempts are unusual."""

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

from chiplog_schemas.codec import pack
from chiplog_schemas.model.events import EventKind
from chiplog_schemas.storage.record import Kind
from tests.support.collector_log import START_US, Rank, whole

ODD = 'it\'s "a/b\\c"\n😀 %_!*'
FINITE = (2.0**53, 2.0**53 + 2, -(2.0**60), 1e-300, 1.7e308, 0.1)
VALUES = (math.nan, math.inf, -math.inf, -0.0, *FINITE)


def odd_run(values: Sequence[float] = VALUES) -> list[Any]:
    """Return the payloads of such a run, of its node's agent, and of three small runs."""
    ranks = [
        Rank(20 + n, f"{ODD}{n}", run_id=ODD, rank=n, primary=n == 0, launch="odd", node="node-ö", gpus=[f"GPU-o{n}"])
        for n in range(4)
    ]
    again = Rank(30, f"{ODD}1", run_id=ODD, rank=1, launch="odd", restart=1, start_us=START_US + 500_000, node="node-ö")
    nameless = Rank(31, "helper", run_id=ODD, rank=None, launch="odd", node="node-ö", primary=False)
    for n, rank in enumerate((*ranks, again, nameless)):
        for at, value in enumerate(values):
            step = 5 * (at - len(values) // 2)
            rank.log(step, **{f"{ODD}/one": value, "turned": values[(at + n) % len(values)]})
            rank.log(step, **{f"only/{n}/{at}": value})
        for step in (-(2**63), -7, -1, 0, 2**53 + 1, 2**63 - 1):
            rank.log(step, far=float(n))
            rank.say(EventKind.PHASES, step, pack([ODD, "data"]), struct.pack("<2d", n / 8, 0.25))
            if n == 2:  # parts of one step
                rank.say(EventKind.PHASES, step, pack([ODD]), struct.pack("<1d", 0.125))
        rank.say(EventKind.PHASES, 1, pack(["odd values"]), struct.pack("<1d", values[n]))
        rank.say(EventKind.TEXT, -1, ODD, f"{ODD} {n}")
        rank.say(EventKind.CONSOLE, 1, 1, ODD)
        rank.say(EventKind.CONFIG, {ODD: json.dumps(ODD), "list": "[1e400, null]", "shared": "1"})
        rank.say(EventKind.CONFIG_HASHES, 1, {f"{ODD}{key}": f"{key}{n if n else ''}" for key in range(25)})
        rank.say(EventKind.SUMMARY, {"far": json.dumps({"n": n}), ODD: json.dumps(ODD)})
        rank.say(EventKind.FILE, f"{ODD}.pt", 2**53 + 1, bytes([n]) * 32)
        rank.say(EventKind.FILE, "mlflow/model.pt", 10, b"\x09" * 32)
        rank.say(EventKind.TAG, f"chiplog:param/{ODD}", "first")
        rank.say(EventKind.TAG, f"chiplog:param/own {n}", f"{ODD}\t\x01\x7f")
        rank.say(EventKind.NOTICE, "alert", "warning", ODD, {"text": ODD})
    ranks[0].say(EventKind.DEFINE, "only/*", {"summary": "mean"})
    ranks[0].say(EventKind.DEFINE, "only/?/3", {"summary": "max"})
    ranks[0].say(EventKind.DEFINE, "only/0/4", {"summary": "min"})
    ranks[1].say(EventKind.DEFINE, "t*", {"summary": "first", "hidden": True})
    ranks[2].say(EventKind.DEFINE, "turned", {"summary": "none"})
    ranks[3].say(EventKind.DEFINE, "it's \"a/b?c*%_!*/one", {"summary": "max"})
    ranks[3].say(EventKind.STATE, {"state": "failed", "exit_code": 3, "reason": ODD})
    agent = Rank(32, label="agent", role="agent", pid=9, node="node-ö", run_id=None)
    for step in range(10):
        for device in ("", "GPU-o0", "GPU-o1", "GPU-free", "pid:120", "pid:121", "pid:130"):
            keys = pack(["hw.power", ODD])
            agent.say(
                EventKind.SYSTEM,
                device,
                keys,
                struct.pack("<2d", step, values[step % len(values)]),
                ts=START_US + step * 90_000,
            )
    agent.say(EventKind.LOST, ranks[2].uuid, 3000, 3050, ODD)
    agent.say(EventKind.LOST, ranks[2].uuid, 4000, 4050, "disk")
    single = [Rank(40 + n, run_id=f"single {n}", project=ODD, launch=f"s{n}", primary=True, node="s") for n in range(3)]
    for n, rank in enumerate(single):
        rank.log(0, loss=values[n])
    return [*map(whole, (*ranks, again, nameless, agent, *single)), (Kind.STORED, pack([b"S" * 16, b"\x09" * 32, 10]))]
