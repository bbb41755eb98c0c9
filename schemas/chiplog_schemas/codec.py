"""The one module that touches msgpack: plain values to bytes and back, bounded, with one error type."""

from typing import Any

import msgpack

from chiplog_schemas.limits import NESTING_MAX

__all__ = ["CodecError", "pack", "packer", "short_repr", "unpack"]


def _refuse(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is no plain value")


_UNPACK_LIMITS = {
    "raw": False,
    "strict_map_key": False,
    "use_list": True,
    "unicode_errors": "surrogateescape",
    "max_ext_len": 0,  # timestamps too, which no hook sees …
    "ext_hook": _refuse,  # … and those of no bytes, which no limit sees
    # Lengths are bounded by msgpack's default: no string, array or map may claim more than the bytes that are there.
}


class CodecError(ValueError):
    """Bytes that are no msgpack value within the limits, or a value that msgpack cannot hold."""


def packer() -> msgpack.Packer:
    """Return a packer of its own for a hot path. Its `pack` is one C call for builtin types: safe under signals."""
    return msgpack.Packer(autoreset=True, use_bin_type=True, unicode_errors="surrogateescape")


def pack(value: Any) -> bytes:
    """Encode a value of None, bool, int, float, str, bytes, list, tuple and dict.

    Raises CodecError for any other type, and for an int outside of 64 bits.
    """
    try:
        return bytes(packer().pack(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"value cannot be encoded: {error}") from error


def unpack(data: bytes | memoryview) -> Any:
    """Decode exactly one value. Raises CodecError for anything else, however hostile the bytes."""
    try:
        return msgpack.unpackb(data, **_UNPACK_LIMITS)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError, OverflowError, MemoryError) as error:
        raise CodecError(f"{len(data)} bytes are no msgpack value: {type(error).__name__} {error}") from error


def short_repr(value: Any) -> str:
    """Return a decoded value as a message shows it. Of a list or map only the type: its repr may overflow the stack."""
    return type(value).__name__ if isinstance(value, list | dict) else f"{value!r:.80}"


assert NESTING_MAX < 512, "msgpack itself stops at 512 levels; ours must be the tighter bound"
