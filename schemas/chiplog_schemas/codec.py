"""The only module that uses msgpack. Converts plain values to bytes and back, within limits, with one error type."""

from typing import Any

import msgpack

from chiplog_schemas.limits import NESTING_MAX

__all__ = ["CodecError", "pack", "packer", "short_repr", "unpack"]


def _refuse(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not a plain value")


_UNPACK_LIMITS = {  # safeguard: extension-types-refused
    "raw": False,
    "strict_map_key": False,
    "use_list": True,
    "unicode_errors": "surrogateescape",
    "max_ext_len": 0,  # rejects timestamps, which ext_hook does not receive …
    "ext_hook": _refuse,  # … and rejects extensions of length 0, which max_ext_len lets pass
    # msgpack's defaults bound lengths: a string, array or map cannot claim more than the available bytes.
}


class CodecError(ValueError):
    """Bytes that are not a msgpack value within the limits, or a value that msgpack cannot represent."""


def packer() -> msgpack.Packer:
    """Return a dedicated packer for a hot path.

    Its `pack` is one C call for builtin types, so a signal cannot split it.
    """
    return msgpack.Packer(autoreset=True, use_bin_type=True, unicode_errors="surrogateescape")


def pack(value: Any) -> bytes:
    """Encode a value of None, bool, int, float, str, bytes, list, tuple and dict.

    Raises CodecError for any other type, and for an int outside the 64-bit range.
    """
    try:
        return bytes(packer().pack(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise CodecError(f"value cannot be encoded: {error}") from error


def unpack(data: bytes | memoryview) -> Any:
    """Decode exactly one value. Raises CodecError for anything else, also for hostile input."""
    try:
        return msgpack.unpackb(data, **_UNPACK_LIMITS)
    # safeguard: one-decode-error
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError, OverflowError, MemoryError) as error:
        raise CodecError(f"{len(data)} bytes are not a msgpack value: {type(error).__name__} {error}") from error


def short_repr(value: Any) -> str:
    """Return a decoded value for a message.

    A list or map is shown as its type only: its repr could overflow the stack.
    """
    return type(value).__name__ if isinstance(value, list | dict) else f"{value!r:.80}"


assert NESTING_MAX < 512, "msgpack itself stops at 512 levels; ours must be the tighter bound"
