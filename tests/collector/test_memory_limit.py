"""The memory of the index is limited by the kernel, and that of a database by DuckDB."""

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from chiplog_collector.memory_limit import ALLOCATOR_SETTING, data_bytes, limit_memory
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

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
    done = subprocess.run([sys.executable, "-c", ALLOCATION], capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout.split() == ["refused", "kept"], done.stderr


@proves("index-frees-memory", "an index returns freed memory to the system, whatever starts it")
def test_the_allocator_is_set_before_the_index_imports_duckdb(tmp_path: Path) -> None:
    shown = "import os\nprint(os.environ.get('DUCKDB_JE_MALLOC_CONF'), flush=True)\nos._exit(0)\n"
    (tmp_path / "duckdb.py").write_text(shown)
    command = [sys.executable, "-m", "chiplog_collector.index", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name not in ALLOCATOR_SETTING}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout.splitlines() == list(ALLOCATOR_SETTING.values()), done.stderr


def test_memory_is_counted_before_it_is_used() -> None:
    before = data_bytes()
    kept = bytearray(64 << 20)
    assert data_bytes() - before > len(kept) // 2


def test_a_database_refuses_a_query_above_its_limit() -> None:
    with duckdb.connect(config={"max_temp_directory_size": "0B"}) as connection:
        limit_memory(connection, 32 << 20)
        with pytest.raises(duckdb.OutOfMemoryException):
            connection.execute("SELECT len(list(range)) FROM range(100000000)")
