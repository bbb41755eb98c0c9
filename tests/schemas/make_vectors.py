"""Make the golden vectors of schemas/vectors/v1. Only ever adds: a file that exists is never written again.

Run it from the repository: `python -m tests.schemas.make_vectors`. Each vector is a .bin file; index.json says of each
what it is and what it means. A multipart message is one file for each frame: name.0.bin, name.1.bin.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chiplog_collector.index.cleaning.block_pruning import trim_block
from chiplog_schemas.codec import pack
from chiplog_schemas.model.block_builder import BlockBuilder
from chiplog_schemas.model.events import EventKind, encode
from chiplog_schemas.protocol import file_messages, messages
from chiplog_schemas.query import query_messages
from chiplog_schemas.storage.journal_dir import FINISHED, encode_head
from chiplog_schemas.storage.record import Kind
from chiplog_schemas.storage.record import encode as encode_record
from chiplog_schemas.storage.segment_format import SegmentHeader, encode_header

VECTORS = Path(__file__).resolve().parents[2] / "schemas" / "vectors" / "v1"
INDEX = "index.json"

PRODUCER_A = bytes(range(16))
PRODUCER_B = bytes(range(16, 32))
SENDER = bytes(range(32, 48))
SESSION = bytes(range(0xA0, 0xA8))
TS = 1_795_225_200_123_456  # 2026-11-21 01:00:00.123456 UTC
LOSS_KEYS = pack(["train/loss", "train/grad_norm"])
NAN_WITH_PAYLOAD = struct.pack("<Q", 0x7FF8_0000_0000_002A)


def doubles(*values: float) -> bytes:
    """Pack float64s as an event carries them."""
    return struct.pack(f"<{len(values)}d", *values)


EVENTS: dict[EventKind, list[Any]] = {
    EventKind.METRICS: [7, LOSS_KEYS, doubles(0.5, -0.0)],
    EventKind.PHASES: [7, pack(["forward", "data"]), doubles(0.125, 0.03125)],
    EventKind.TEXT: [7, "sample", "grüße \udcff"],
    EventKind.HISTOGRAM: [7, "weights", doubles(0.0, 1.0, 2.0), doubles(3.0, 4.0)],
    EventKind.CONSOLE: [1, 42, "epoch 1: 100%"],
    EventKind.CONFIG: [{"lr": "0.0003", "model": '{"layers":4}'}],
    EventKind.SUMMARY: [{"best": "0.25"}],
    EventKind.IDENTITY: [
        {
            "role": "rank",
            "run_id": "20261121-0100-k3f9ab",
            "project": "gpt",
            "name": "first",
            "group": "sweep",
            "job_type": "train",
            "tags": ["a", "b"],
            "notes": "",
            "label": "rank3",
            "primary": False,
            "rank": 3,
            "local_rank": 3,
            "world_size": 8,
            "node": "node-a",
            "pid": 4242,
            "gpus": ["GPU-00000000-0000-0000-0000-000000000003"],
            "launch": "slurm:17:0:",
            "restart": 1,
            "started_at": TS,
            "sdk": "0.1.0",
        }
    ],
    EventKind.STATE: [
        {
            "state": "failed",
            "exit_code": 1,
            "exit_signal": 9,
            "reason": "ValueError: x",
            "sets_run": True,
            "produced": 9,
        }
    ],
    EventKind.LOST: [b"", 100, 199, "journal full"],
    EventKind.NOTICE: ["alert", "warning", "loss rises", {"text": "0.5 → 0.9", "step": 7}],
    EventKind.SYSTEM: ["GPU-00000000-0000-0000-0000-000000000003", pack(["gpu.util"]), doubles(97.0)],
    EventKind.FILE: ["checkpoints/last.pt", 1_234_567, bytes(range(64, 96))],
    EventKind.PEER: [PRODUCER_A, {"state": "crashed", "reason": "process ended without finish()", "produced": 10}],
    EventKind.DEFINE: ["val/*", {"summary": "min", "step_metric": "epoch"}],
    EventKind.MEDIA: [7, "samples", "image", b"\5" * 32, 8_600, '{"width": 256, "height": 256, "item": 0}'],
    EventKind.ARTIFACT_FILE: [b"\6" * 32, "model/weights.pt", 4_096, b"\7" * 32, ""],
    EventKind.ARTIFACT: ["gpt", "model", "model", b"\6" * 32, 2, 4_096, '{"epoch": 3}', "the best so far"],
    EventKind.ARTIFACT_ALIAS: ["gpt", "model", b"\6" * 32, "best", 1],
    EventKind.ARTIFACT_USE: ["gpt", "model", b"\6" * 32],
    EventKind.TAG: ["mlflow.runName", "wistful-finch-3"],
    EventKind.CONFIG_HASHES: [1, {"lr": "5f70bf18", "model/layers": "4b227777"}],
    EventKind.IMPORTED: [
        {
            "producer": {
                "role": "rank",
                "label": "rank3",
                "is_primary": True,
                "rank": 3,
                "node": "node-a",
                "agent_node": "node-a",
                "gpus": ["GPU-3"],
                "launch": "l",
                "restart": 1,
                "state": "failed",
                "exit_code": 1,
                "reason": "x",
                "started_at": TS,
                "ended_at": TS + 9,
                "produced": 12,
                "clock_us": 150,
                "cause": "exception",
            },
            "run": {"run_id": "r", "project": "p", "tags": ["a"], "primary_label": "rank3", "primary_restart": 1},
            "seqs": [1, 4, 9, 9],
            "seen_at": TS + 20,
            "lost": [[5, 6, "disk full"]],
            "config": [[1, TS, "lr", "0.1"]],
            "files": [[2, TS, "last.pt", 10, bytes(range(32))]],
            "stored": [[bytes(range(32)), 10, TS + 1]],
            "events": [[3, TS, "alert", "warning", "high", '{"text": "x"}', None]],
        }
    ],
}

# Forms that were added later, in addition to the first vector of their kind.
LATER_EVENTS: dict[str, tuple[EventKind, list[Any]]] = {
    "tag-removed": (EventKind.TAG, ["stage", None]),
    "peer-detail": (
        EventKind.PEER,
        [PRODUCER_A, {"state": "crashed", "exit_signal": 9, "late_us": 500_000, "detail": {"status_by": "pidfd"}}],
    ),
    "peer-location": (
        EventKind.PEER,
        [PRODUCER_A, {"node": "gpu-17", "pid": 23_456, "start": 987_654, "remote": False}],
    ),
    "identity-container": (
        EventKind.IDENTITY,
        [
            {
                "role": "rank",
                "run_id": "r",
                "label": "rank0",
                "node": "gpu-17",
                "pid": 1,
                "hostname": "pod-7f9c",
                "pid_namespace": 4_026_531_836,
            }
        ],
    ),
    "identity-gpus": (
        EventKind.IDENTITY,
        [
            {
                "role": "rank",
                "run_id": "r",
                "label": "rank1",
                "gpu_claim": {"visible": "0,1", "order": "PCI_BUS_ID", "local": 1, "current": 1, "uuid": "01"},
            }
        ],
    ),
    "state-cause": (
        EventKind.STATE,
        [{"state": "failed", "exit_code": 1, "reason": "RuntimeError: NCCL error", "cause": "peer_lost"}],
    ),
    "peer-cause": (
        EventKind.PEER,
        [PRODUCER_A, {"state": "crashed", "reason": "killed by SIGKILL", "exit_signal": 9, "cause": "exit_status"}],
    ),
    "notice-cause": (
        EventKind.NOTICE,
        [
            "traceback",
            "error",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            {"exception": "ConnectionResetError", "traceback": "Traceback …", "cause": "connection_lost"},
        ],
    ),
    "artifact_file-omitted": (
        EventKind.ARTIFACT_FILE,
        [b"\6" * 32, "model/weights.pt", 4_096, b"\7" * 32, "", "it has 4096 bytes, the limit is 1024"],
    ),
    "peer-gpus": (EventKind.PEER, [PRODUCER_A, {"gpus": ["GPU-00000000-0000-0000-0000-000000000003"]}]),
    "define-hidden": (EventKind.DEFINE, ["epoch", {"hidden": True}]),
    "identity-console": (
        EventKind.IDENTITY,
        [{"role": "console", "node": "node-a", "started_at": TS, "sdk": "0.1.0", "of": PRODUCER_A.hex()}],
    ),
}

# Two producers: metrics that share keys, text, console, an event of a kind nobody knows, and bytes that are no event.
BLOCK_ROWS: list[tuple[bytes, int, bytes]] = [
    (PRODUCER_A, 0, encode(EventKind.METRICS, TS, 0, LOSS_KEYS, doubles(1.5, float("inf")))),
    (PRODUCER_A, 1, encode(EventKind.METRICS, TS + 1, 1, LOSS_KEYS, doubles(1.25) + NAN_WITH_PAYLOAD)),
    (PRODUCER_B, 5, encode(EventKind.METRICS, TS + 2, 1, LOSS_KEYS, doubles(1.0, 2.0))),
    (PRODUCER_B, 6, encode(EventKind.TEXT, TS + 3, 1, "sample", "grüße \udcff")),
    (PRODUCER_A, 2, encode(EventKind.CONSOLE, TS + 4, 2, 1, "warning: slow")),
    (PRODUCER_A, 4, pack([200, TS + 5, "of the future", 1])),
    (PRODUCER_B, 9, b"\xc1 no msgpack"),
]


def block() -> bytes:
    """Return the block of BLOCK_ROWS."""
    builder = BlockBuilder()
    for row in BLOCK_ROWS:
        builder.add(*row)
    return builder.build(TS + 10)


RECORD_PAYLOADS: dict[Kind, bytes] = {
    Kind.EVENT: encode(EventKind.METRICS, TS, *EVENTS[EventKind.METRICS]),
    Kind.BLOCK: block(),
    Kind.RECEIPT: pack([TS, [[SENDER, 3, 6, 3]]]),
    Kind.SENDERS: pack([[SENDER, 3], [PRODUCER_B, 17]]),
    Kind.QUARANTINE: pack([SENDER, "checksum mismatch", b"\x00\x01\x02"]),
    Kind.STORED: pack([SENDER, bytes(range(64, 96)), 1_234_567]),
    Kind.GAP: pack([SENDER, 4, 5, "damaged in the spool"]),
    Kind.PRESENCE: pack([SENDER, False, 12_000_000, "node-a", "0d5b2b9c-6a1e-4a4b-8f0e-1c2d3e4f5a6b"]),
    Kind.MANAGE: pack([SESSION, "delete", {"producers": [PRODUCER_A], "runs": ["old"], "why": "older than 90 days"}]),
    Kind.PRUNED: b"",
    Kind.TRIMMED: trim_block(block()) or b"",
}

# Newer forms of a payload: the older ones stay as they are, and stay readable.
LATER_PAYLOADS: dict[str, tuple[Kind, bytes]] = {
    "receipt-nodes": (
        Kind.RECEIPT,
        pack(
            [
                TS,
                [[SENDER, 3, 6, 3, ["node-a", "gpu-*"]], [PRODUCER_B, 0, 1, 1, None], [SENDER, 6, 7, 1, []]],
            ]
        ),
    ),
    "manage-admit-blocks": (Kind.MANAGE, pack([SESSION, "admit_blocks", {"version": 2}])),
}

MESSAGES: dict[str, list[Any]] = {
    "hello": messages.hello(SESSION, SENDER, 3, {"node": "node-a", "pid": 4242}),
    "welcome": messages.welcome(SESSION, 3, 16_777_216),
    "data": messages.data(SESSION, 3, 3, encode_record(Kind.BLOCK, 3, RECORD_PAYLOADS[Kind.BLOCK])),
    "ack": messages.ack(SESSION, 4, 16_777_216),
    "lost": messages.lost(SESSION, 4, 5, "damaged in the spool"),
    "ping": messages.ping(SESSION, 6),
    "bye": messages.bye(SESSION),
    "reset": messages.reset(SESSION, "session is unknown here"),
}

# Newer forms of a message.
LATER_MESSAGES: dict[str, list[Any]] = {
    "ack-refused": messages.ack(SESSION, 4, 16_777_216, 42),
    "ack-queried": messages.ack(SESSION, 4, 16_777_216, 0, queried=True),
    "ping-health": messages.ping(SESSION, 6, {"chiplog.sdk.events": 6.0}),
}

FILES: dict[str, list[Any]] = {
    "offer": file_messages.offer(SESSION, SENDER, bytes(range(64, 96)), 1_234_567, {"node": "node-a", "pid": 4242}),
    "chunk": file_messages.chunk(SESSION, 262_144, b"bytes of a file"),
    "want": file_messages.want(SESSION, 262_144, 1_048_576),
    "stored": file_messages.stored(SESSION),
    "denied": file_messages.denied(SESSION, 30.0, "the disk of files has 0 bytes free"),
    "mismatch": file_messages.mismatch(SESSION),
}

QUESTIONS: dict[str, list[Any]] = {
    "ask": query_messages.request(SESSION, "SELECT * FROM runs WHERE run_id = ?", ["r1"], 30.0),
    "ask_in_zone": query_messages.request(SESSION, "FROM runs", None, 30.0, "Europe/Berlin"),
    "result": query_messages.result(SESSION, 2, b"an Arrow IPC stream"),
    "error": query_messages.failure(SESSION, "refused", "query is empty; write one SELECT"),
    "ping": query_messages.ping(SESSION),
    "pong": query_messages.pong(SESSION, {"versions": [1, 1], "pid": 4242, "waiting": False}),
    "read": query_messages.read_file(SESSION, bytes(range(64, 96)), 1_048_576, 65_536),
    "part": query_messages.file_part(SESSION, 1_234_567, b"bytes of a file"),
    "cancel": query_messages.cancel(SESSION),
    "manage": query_messages.manage(SESSION, "edit", {"run": "r1", "fields": {"name": "baseline", "notes": None}}),
    "done": query_messages.done(SESSION, {"runs": 1, "labels": 8}),
    "wait": query_messages.wait_for(SESSION, 1_234, 10.0),
    "ask_for_parts": query_messages.request(SESSION, "FROM metrics", None, 30.0, bytes_max=4_194_304),
    "fetch": query_messages.fetch(SESSION, 3_145_728, 1_048_576),
    "part_of_result": query_messages.result_part(SESSION, 716_177_408, 20_000_000, 3_145_728, b"bytes of a stream"),
}


def all_vectors() -> Iterator[tuple[str, bytes, str]]:
    """Yield (file name, bytes, meaning)."""
    for kind, payload in RECORD_PAYLOADS.items():
        number = 1_000 + kind
        yield f"record-{kind.name.lower()}.bin", encode_record(kind, number, payload), f"record {number} of kind {kind}"
    for name, (kind, payload) in LATER_PAYLOADS.items():
        yield f"record-{name}.bin", encode_record(kind, 2_000, payload), f"record 2000 of kind {kind}, a later form"
    header = SegmentHeader(PRODUCER_A, 1_001, TS)
    yield "segment-header.bin", encode_header(header), "segment of producer 00..0f, base 1001"
    identity = pack(EVENTS[EventKind.IDENTITY][0])
    yield (
        "head-page.bin",
        encode_head(PRODUCER_A, identity, acked=5, produced=10, flags=FINISHED),
        "head page up to the end of the identity: acked 5, produced 10, finished",
    )
    for event, fields in EVENTS.items():
        yield f"event-{event.name.lower()}.bin", encode(event, TS, *fields), f"event of kind {event}"
    for name, (event, fields) in LATER_EVENTS.items():
        yield f"event-{name}.bin", encode(event, TS, *fields), f"event of kind {event}, a later form"
    yield "block.bin", block(), "block of two producers: metrics, text, console, and two events kept verbatim"
    for prefix, samples in (
        ("message", MESSAGES),
        ("message", LATER_MESSAGES),
        ("question", QUESTIONS),
        ("file", FILES),
    ):
        for name, frames in samples.items():
            for index, frame in enumerate(frames):
                yield f"{prefix}-{name}.{index}.bin", bytes(frame), f"{prefix} {name.upper()}, frame {index}"


def main() -> None:
    """Write the vectors that are not there yet, and the index of all."""
    VECTORS.mkdir(parents=True, exist_ok=True)
    path = VECTORS / INDEX
    index: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    n_new = 0
    for name, data, meaning in all_vectors():
        if (VECTORS / name).exists():
            continue
        (VECTORS / name).write_bytes(data)
        index[name] = meaning
        n_new += 1
    path.write_text(json.dumps(index, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{n_new} new vectors, {len(index)} in all, in {VECTORS}")


if __name__ == "__main__":
    main()
