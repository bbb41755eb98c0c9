"""The one place that reads DuckDB's messages: where its Python client gives no type, or one that covers too much.

A message of DuckDB 2.0 begins with its kind, `<Kind> Error: ` (`Exception::ExceptionTypeToString` of its sources). What
fails while rows already flow comes through Arrow's C stream as a plain Exception, with STREAM_PREFIX in front (from
arro3). Patterns are anchored there: a query can make an error say anything, but not in front of its kind.
"""

import re

STREAM_PREFIX = "C Data interface error: "
_OUT_OF_MEMORY = re.compile(rf"({STREAM_PREFIX})?Out of Memory Error: ")
# Bytes that are wrong, as opposed to a disk that is full or a file that another process has.
_DAMAGE = re.compile(
    rf"({STREAM_PREFIX})?(Data Corruption Error: |FATAL Error: .*)?"
    r"(Corrupt database file: "
    r'|IO Error: The file ".*" exists, but it is not a valid DuckDB database file!'
    r'|IO Error: Could not read enough bytes from file ".*\.duckdb"'
    r'|(IO Error: )?Failure while replaying WAL file ".*": '
    r"(Corrupt WAL file|WAL does not match database file|Failed to read WAL of version))",
    re.DOTALL,
)
# DuckDB tells of a disk that refuses a commit as of a failed transaction; what names a constraint is not of the disk.
_REFUSED_COMMIT = re.compile(r"(TransactionContext Error: )?Failed to commit: .*(Could not|Cannot|fsync)", re.DOTALL)


def is_stream_error(text: str) -> bool:
    """Return True if a message is of a query that failed while its rows flowed."""
    return text.startswith(STREAM_PREFIX)


def is_out_of_memory(text: str) -> bool:
    """Return True if a message says that a query needs more memory or disk than it may have."""
    return _OUT_OF_MEMORY.match(text) is not None


def is_damage(text: str) -> bool:
    """Return True if a message proves that the database's file holds wrong bytes."""
    return _DAMAGE.match(text) is not None


def is_refused_commit(text: str) -> bool:
    """Return True if a message of a failed transaction says that the disk refused it."""
    return _REFUSED_COMMIT.match(text) is not None


def is_lock_conflict(text: str, path: str) -> bool:
    """Return True if a message says that another process has the file open. path: of the file, as it was opened."""
    return "Conflicting lock is held in " in text.replace(path, "")
