"""Framing between the agent and its sampler process: a length, then one msgpack value, over a pair of pipes.

    offset  size  field
         0     4  length   little-endian, of the value; at most FRAME_BYTES_MAX
         4     n  value    a msgpack array whose first element names its kind

From the sampler: `["sample", ts_us, device, [name …], [value …]]`, `["line", text]`, `["line", text, level]`,
`["stale", device]`, `["event", kind, level, text, device, body]`, text without the device and body a map;
`["gpus", [[uuid, speed, [[uuid, GPU instance, compute instance] …]] …]]`: all of the node in NVML's order, with their
MIG instances; `["addresses", map]`: UUID → PCI address of GPUs, before their events; `["holders", pid, [uuid …]]`: the
GPUs that a rank's tree uses; `["facts", map]`: what the node is.
To the sampler: `["pids", [pid …]]`, `["period", seconds]`. The end of its input ends the sampler.
"""

import struct
from typing import Any, NamedTuple

from chiplog_schemas.codec import CodecError, packer, unpack
from chiplog_schemas.limits import MIB

FRAME_BYTES_MAX = 1 * MIB  # a sample is about 1 KB; a damaged length must not make the agent allocate without limit
PERIOD_MIN_S = 0.05  # the driver updates its counters no faster
RELEASED = "--released"  # the argument of a sampler process that leaves GPUs closed
KNOWN_GPUS = "--known-gpus="  # … and the file in which it keeps the UUIDs of GPUs
GPU_DEVICES = ("GPU-", "MIG-")  # how the UUIDs of GPUs and MIG instances begin, which name devices
RANK_DEVICE = "pid:"  # how the device of a process's samples begins
_LENGTH = struct.Struct("<I")
_pack = packer().pack  # one packer for all frames; each half writes from one thread only


class MigDevice(NamedTuple):
    """One compute instance of a GPU in MIG mode."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class Gpu(NamedTuple):
    """One GPU of the node. `speed`: cores × clock; only their order counts."""

    uuid: str
    speed: float
    instances: tuple[MigDevice, ...] = ()


class FrameError(ValueError):
    """A length beyond the limit. The rest of the stream cannot be trusted."""


def encode_frame(value: Any) -> bytes:
    """Return the bytes of one frame. Call from one thread only. Raises FrameError when it exceeds the limit."""
    payload: bytes = _pack(value)
    if len(payload) > FRAME_BYTES_MAX:
        raise FrameError(f"frame of {len(payload)} bytes exceeds the limit of {FRAME_BYTES_MAX}; send less at once")
    return _LENGTH.pack(len(payload)) + payload


def encode_failure(error: Exception) -> bytes:
    """Return the frame by which a sampler that ends for an error says so."""
    return encode_frame(["line", f"the sampler failed: {type(error).__name__}: {error}", "warning"])


class FrameReader:
    """Splits a stream of bytes into values. `bad_frames` counts frames whose payload was not a msgpack value."""

    def __init__(self) -> None:
        self.bad_frames = 0
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Add received bytes and return the values that they complete, oldest first. Raises FrameError."""
        buffer = self._buffer
        buffer += data
        values: list[Any] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > FRAME_BYTES_MAX:  # safeguard: frame-length-bounded
                raise FrameError(f"frame of {length} bytes exceeds the limit of {FRAME_BYTES_MAX}; restart the sampler")
            end = start + _LENGTH.size + length
            if end > len(buffer):
                break
            try:
                values.append(unpack(bytes(buffer[start + _LENGTH.size : end])))
            except CodecError:
                self.bad_frames += 1
            start = end
        del buffer[:start]
        return values
