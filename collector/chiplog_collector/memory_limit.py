"""A limit for the memory of the whole index: DuckDB's own limit does not cover the results of single functions.

`repeat('x', 2000000000)` or `range(1000000000)` take gigabytes in one row, regardless of `memory_limit`. With this
limit the kernel refuses the allocation (RLIMIT_DATA), so the query fails instead of the machine.
"""

import resource
from typing import TYPE_CHECKING

from chiplog_schemas.limits import GIB
from chiplog_schemas.query.query_messages import RESULT_BYTES_MAX

if TYPE_CHECKING:
    import duckdb  # not before ALLOCATOR_SETTING is in the environment

_SLACK_BYTES = GIB // 2  # the writer's flushes, the index's own state, threads
# DuckDB's allocator would keep freed memory mapped, where it counts against the limit forever. It reads this variable
# when DuckDB is imported.
ALLOCATOR_SETTING = {"DUCKDB_JE_MALLOC_CONF": "retain:false,dirty_decay_ms:1000,muzzy_decay_ms:0"}


def bound_memory(query_memory_bytes: int) -> int:
    """Limit this process to this much memory for queries, plus their results and its current memory.

    Return the limit.
    """
    limit = data_bytes() + query_memory_bytes + 2 * RESULT_BYTES_MAX + _SLACK_BYTES
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = min([limit, *(value for value in (soft, hard) if value != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit


def limit_memory(connection: "duckdb.DuckDBPyConnection", memory_bytes: int) -> None:
    """Limit the memory of a database; a larger sort or join spills to disk."""
    connection.execute(f"SET GLOBAL memory_limit = '{memory_bytes}B'")


def data_bytes() -> int:
    """Return the memory that counts against RLIMIT_DATA: private writable memory, used or not."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
