"""A bound for the memory of the index as a whole: DuckDB's own limit does not hold for what single functions return.

`repeat('x', 2000000000)` or `range(1000000000)` take gigabytes in one row, whatever `memory_limit` says. The kernel
then refuses the allocation (RLIMIT_DATA), and the query fails, not the machine.
"""

import resource

import duckdb

from chiplog_schemas.limits import GIB
from chiplog_schemas.query.query_messages import RESULT_BYTES_MAX

_SLACK_BYTES = GIB // 2  # the writer's flushes, what the index learns, threads
# DuckDB's allocator would keep freed memory mapped, and count it against us for ever.
ALLOCATOR_SETTING = {"DUCKDB_JE_MALLOC_CONF": "retain:false,dirty_decay_ms:1000,muzzy_decay_ms:0"}


def bound_memory(query_memory_bytes: int) -> int:
    """Let this process have that much for queries, besides their results and what it has now. Return the limit."""
    limit = data_bytes() + query_memory_bytes + 2 * RESULT_BYTES_MAX + _SLACK_BYTES
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = min([limit, *(value for value in (soft, hard) if value != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit


def limit_memory(connection: duckdb.DuckDBPyConnection, memory_bytes: int) -> None:
    """Let a database keep so much in memory; the rest of a sort or join goes to disk."""
    connection.execute(f"SET GLOBAL memory_limit = '{memory_bytes}B'")


def data_bytes() -> int:
    """Return what the kernel counts against RLIMIT_DATA: private writable memory, used or not."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0
