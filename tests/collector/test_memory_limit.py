"""The memory of the index is limited by the kernel, and that of a database by DuckDB."""

import subprocess
import sys

import duckdb
import pytest

from chiplog_collector.memory_limit import data_bytes, limit_memory

ALLOCATION = """
import resource
from chiplog_collector.memory_limit import bound_memory, data_bytes
before = data_bytes()
limit = bound_memory(1 << 20)
assert resource.getrlimit(resource.RLIMIT_DATA)[0] == limit > before
kept = bytearray(64 << 20)  # what results may take
try:
    bytearray(limit)
except MemoryError:
    print("refused")
lower = limit // 2
resource.setrlimit(resource.RLIMIT_DATA, (lower, resource.RLIM_INFINITY))
print("kept" if bound_memory(1 << 20) == lower else "raised")
"""


def test_a_single_allocation_beyond_the_limit_is_refused_and_a_lower_limit_stays() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOCATION], capture_output=True, text=True, timeout=180)
    assert done.stdout.split() == ["refused", "kept"], done.stderr


def test_memory_is_counted_before_it_is_used() -> None:
    before = data_bytes()
    kept = bytearray(64 << 20)
    assert data_bytes() - before > len(kept) // 2


def test_a_database_refuses_a_query_above_its_limit() -> None:
    with duckdb.connect(config={"max_temp_directory_size": "0B"}) as connection:
        limit_memory(connection, 32 << 20)
        with pytest.raises(duckdb.OutOfMemoryException):
            connection.execute("SELECT len(list(range)) FROM range(100000000)")
