"""The only module that reads DuckDB's messages: where its Python client has no type, or too general a type.

A message of DuckDB 2.0 begins with its kind, `<Kind> Error: ` (`Exception::ExceptionTypeToString` of its sources). An
error after the first rows arrives through Arrow's C stream as a plain Exception, with STREAM_PREFIX in front (from
arro3). The patterns are anchored there: a query can put any text into an error, but not in front of its kind.
"""

import re
from pathlib import Path

STREAM_PREFIX = "C Data interface error: "
_OUT_OF_MEMORY = re.compile(rf"({STREAM_PREFIX})?Out of Memory Error: ")
# Wrong bytes, as opposed to a full disk or a file that another process has open.
_DAMAGE = re.compile(
    rf"({STREAM_PREFIX})?(Data Corruption Error: |FATAL Error: .*)?"
    r"(Corrupt database file: "
    r'|IO Error: The file ".*" exists, but it is not a valid DuckDB database file!'
    r'|IO Error: Could not read enough bytes from file ".*\.duckdb"'
    r'|(IO Error: )?Failure while replaying WAL file ".*": '
    r"(Corrupt WAL file|WAL does not match database file|Failed to read WAL of version))",
    re.DOTALL,
)
# DuckDB reports a disk that refuses a commit as a failed transaction. A message that names a constraint is not
# included.
_REFUSED_COMMIT = re.compile(r"(TransactionContext Error: )?Failed to commit: .*(Could not|Cannot|fsync)", re.DOTALL)

_REMEDIES = (
    (
        re.compile("Binder Error: Referenced column .* not found"),
        "a text has single quotes: key = 'loss'; DESCRIBE metrics lists the columns of a view",
    ),
    (re.compile("Catalog Error: .*does not exist"), "SHOW TABLES lists the views"),
    (
        re.compile("Parser Error: "),
        "a name that is a word of SQL needs double quotes; DESCRIBE runs lists the columns of a view",
    ),
    (re.compile("Permission Error: "), "queries read the views of chiplog only; SHOW TABLES lists them"),
)


def is_stream_error(text: str) -> bool:
    """Return True if a message is that of a query that failed after its first rows."""
    return text.startswith(STREAM_PREFIX)


def is_out_of_memory(text: str) -> bool:
    """Return True if a message reports that a query needs more memory or disk than allowed."""
    return _OUT_OF_MEMORY.match(text) is not None  # safeguard: lack-of-memory-by-prefix


def is_damage(text: str) -> bool:
    """Return True if a message proves that the database's file holds wrong bytes."""
    return _DAMAGE.match(text) is not None


def corruption_reason(error: BaseException) -> str | None:
    """Return a line that names the damage when an error proves that the file holds wrong bytes, else None."""
    text = str(error)
    return text.partition("\n")[0] if is_damage(text) else None


def is_refused_commit(text: str) -> bool:
    """Return True if a message of a failed transaction reports that the disk refused it."""
    return _REFUSED_COMMIT.match(text) is not None


def remedy_of_query(text: str) -> str:
    """Return `; ` and what to write instead in a query that DuckDB refuses; empty if none is known."""
    return next((f"; {remedy}" for pattern, remedy in _REMEDIES if pattern.match(text)), "")


def foreign_path_reason(path: Path) -> str | None:
    """Return why DuckDB does not open a database at exactly this path, in one line; None if it does.

    DuckDB 2.0 reads a backslash as a slash, and writes the log of `a?b/c` to `a.wal?b/c`.
    """
    odd = next((character for character in "\\?" if character in str(path.parent)), None)
    return None if odd is None else f"DuckDB cannot open a database in {path.parent}, because of the {odd} in its path"


def is_lock_conflict(text: str, path: str) -> bool:
    """Return True if a message reports that another process has the file open.

    path: the file's path, as it was opened.
    """
    return "Conflicting lock is held in " in text.replace(path, "")
