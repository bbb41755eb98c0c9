"""Write a `.wandb` file as W&B 0.16.6 did: steps among the values, nested values and media as dicts of JSON."""

import json
import struct
import zlib

from wandb.proto.wandb_internal_pb2 import Record

ROWS = (
    {"loss": 0.5, "a": {"b": {"c": 1}}, "_step": 3, "_timestamp": 1.7e9},
    {"epoch": 1, "eval/acc": 0.25, "_step": 4, "_timestamp": 1.7e9 + 1},
    {"hist": {"_type": "histogram", "values": [1, 2], "bins": [0, 1, 2]}, "note": "x", "_step": 9},
)  # fmt: skip


def row_of(values):
    """Return the record of a row."""
    record = Record()
    for key, value in values.items():
        record.history.item.add(key=key, value_json=json.dumps(value))
    return record


def main():
    """Write the file."""
    run, defined, summary = Record(), Record(), Record()
    run.run.run_id, run.run.project = "old-wandb", "p"
    run.run.start_time.seconds = 1_700_000_000
    run.run.config.update.add(key="model", value_json='{"dim": 4}')
    defined.metric.glob_name, defined.metric.step_metric = "eval/*", "epoch"
    defined.metric.summary.max = True
    for key, value in (("eval/acc", {"max": 0.25}), ("a", {"b": {"c": 1}}), ("_step", 9)):
        summary.summary.update.add(key=key, value_json=json.dumps(value))
    ended = Record()
    ended.exit.exit_code = 1
    with open("run-old-wandb.wandb", "wb") as file:
        file.write(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
        for record in (run, defined, *map(row_of, ROWS), summary, ended):
            payload = record.SerializeToString()
            file.write(struct.pack("<IHB", zlib.crc32(payload, zlib.crc32(b"\1")), len(payload), 1) + payload)


main()
