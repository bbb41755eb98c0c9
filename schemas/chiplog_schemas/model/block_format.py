"""The block: many events of many producers as columns. The agent converts rows to columns once.

    offset  size  field
         0     4  header_length
         4     2  version        1
         6     2  flags          0
         8     …  header         msgpack: [created_ts, producers, groups]
         …     …  columns        each at a multiple of 8 from the start of the block

    producers  [[producer: 16 bytes, [first, last, first, last …]: the seqs of it that this block holds], …]
    groups     [[kind, keys, n_rows, columns], …]    keys: bin (a msgpack array of str), or nil
    columns    [[name, type, offset, size], …]       type: '<i8', '<u4', '<f8', or 'o': a msgpack array of n_rows values

Every group has the columns `producer` (<u4, index into producers), `seq` and `ts` (<i8), and the columns that FIELDS
defines for its kind. `values` is the matrix of n_rows × n_keys, row by row. A group of kind 0 holds the events that
this version cannot decode and those of kinds above 13. Its column `payload` keeps them verbatim.
"""

import struct
from typing import Any

from chiplog_schemas.codec import CodecError, unpack
from chiplog_schemas.limits import KEY_BYTES_MAX, KEYS_MAX

BLOCK_VERSION = 1
OPAQUE = 0  # the group kind of events kept verbatim
LAST_GROUP_KIND = 13  # the highest in a block of version 1: its first readers reject a block with a higher one
PREFIX = struct.Struct("<IHH")


class BlockError(ValueError):
    """Bytes that are not a block of a known version."""


class NewerBlockError(BlockError):
    """A block of a newer version. The index parks it instead of putting it into quarantine."""

    def __init__(self, version: int, known: int = BLOCK_VERSION) -> None:
        super().__init__(f"block of version {version} is newer than {known}; upgrade the collector")
        self.version = version


def version_of(block: bytes | memoryview) -> int:
    """Return the version of a block. Raises BlockError for bytes that are too few."""
    if len(block) < PREFIX.size:
        raise BlockError(f"block of {len(block)} bytes is shorter than its prefix of {PREFIX.size}")
    return int(PREFIX.unpack_from(block)[1])


def keys_of(keys_bin: bytes) -> tuple[str, ...]:
    """Decode a group's keys. Raises BlockError unless they are distinct strings within the limits."""
    try:
        keys = unpack(keys_bin)
    except CodecError as error:
        raise BlockError(str(error)) from error
    if not (isinstance(keys, list) and 0 < len(keys) <= KEYS_MAX and all(_is_key(key) for key in keys)):
        raise BlockError("keys are not an array of names within the limits")
    if len(set(keys)) != len(keys):
        raise BlockError("keys repeat")
    return tuple(keys)


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and len(key.encode("utf-8", "surrogateescape")) <= KEY_BYTES_MAX
