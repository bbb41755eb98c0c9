"""Open an SQLite file of another program for reading, without changing it."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from chiplog_client.transfer.importers.imported_run import ImporterError

_HEADER = b"SQLite format 3\0"  # https://www.sqlite.org/fileformat.html
_BUSY_WAIT_S = 5.0  # for a writer of the file; a transaction of a tracker takes milliseconds


def has_tables(path: Path, tables: frozenset[str]) -> bool:
    """Return True if a path is an SQLite file with these tables. A locked file has them."""
    try:
        with path.open("rb") as file:
            if file.read(len(_HEADER)) != _HEADER:
                return False
        with contextlib.closing(_connected(path)) as connection:
            return tables <= _tables(connection)
    except sqlite3.OperationalError:
        return True  # `opened` reports it
    except (OSError, sqlite3.Error):
        return False


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file and hold a snapshot of it. Rows have names.

    Raises:
        ImporterError: It is locked, damaged or not an SQLite file.

    """
    try:
        with contextlib.closing(_connected(path)) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")
            _tables(connection)  # it begins the snapshot
            yield connection
    except sqlite3.OperationalError as error:
        remedy = (
            "stop the program that writes it, or import a copy" if "locked" in str(error) else "import a copy of it"
        )
        raise ImporterError(f"{path} cannot be read: {error}; {remedy}") from error
    except sqlite3.Error as error:
        raise ImporterError(f"{path} is no SQLite file, or is damaged: {error}; import another copy") from error


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True, timeout=_BUSY_WAIT_S)


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
