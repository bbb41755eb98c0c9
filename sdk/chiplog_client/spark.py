"""The tables and views of a store in a session of Spark. A process of the collector's package reads the store."""

import json
import subprocess
import sys
from typing import Any

from chiplog_client.results.result import QueryError

_COMMAND = ("chiplog_collector.store.commands", "spark-tables")
_WAIT_S = 600.0  # for the logs of 29 tables in a store across the world


def register_store(spark: Any, url: str) -> None:
    """Give a session of Spark the tables of a store as `store_…`, and chiplog's views over them.

    The views are temporary, and have the names and columns of a collector's: `runs`, `labels`, `metrics`, `summary`,
    `events`, `step_skew` and more. They have the rows of this moment: call it again for newer ones. Where the session
    can, it reads Delta, else the files of the tables. It needs `chiplog[lake]` where it is called.

    Args:
        spark: A SparkSession, also one of Spark Connect.
        url: The address of the store, as of `chiplog collector --store`: file:///DIRECTORY, s3://BUCKET/FOLDER.
            Credentials come from the environment, and those of Spark from its configuration.

    Raises:
        QueryError: The store is away, has no table yet, or the address is none; `kind` is unreachable.

    Examples:
        >>> chiplog.register_store(spark, "file:///data/lake")
        >>> spark.sql("SELECT run_id, state FROM runs").show()
    """
    found = _read(url)
    tables: dict[str, dict[str, Any]] = found["tables"]
    if not tables:
        hint = "a collector with this --store makes them about 10 s after the first data"
        raise QueryError("unreachable", f"{url} has no table of chiplog; {hint}")
    has_delta = _has_delta(spark, _folder_of(next(iter(tables.values()))))
    for name, table in tables.items():
        folder = _folder_of(table)
        if has_delta:
            frame = spark.read.format("delta").load(folder)
        else:
            # The day is in the names of folders; a file of an older chiplog may lack columns of the schema.
            reader = spark.read.schema(table["columns"]).option("basePath", folder)
            frame = reader.parquet(*map(_address_of, table["files"]))
        frame.createOrReplaceTempView(f"store_{name}")
    for name, statement in found["views"].items():
        spark.sql(statement)
        if name in found["deciding"]:
            _keep_rows(spark, name)


def _keep_rows(spark: Any, view: str) -> None:
    """Compute the rows of a view once: Spark plans a nested view again at each reference, which can take minutes."""
    try:
        rows = spark.table(view).localCheckpoint()
    except Exception:  # Spark Connect before 4.0 and Sail have none; the view remains as it is
        return
    rows.createOrReplaceTempView(view)


def _read(url: str) -> Any:
    """Return the files and columns of each table of a store, and the SQL of the views."""
    command = [sys.executable, "-P", "-m", *_COMMAND, url]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_WAIT_S)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{_COMMAND[0]} ended with {done.returncode}"]
        raise QueryError("unreachable", lines[-1].removeprefix("Error: "))
    return json.loads(done.stdout)


def _folder_of(table: dict[str, Any]) -> str:
    return _address_of(table["files"][0].rpartition("/day=")[0])


def _address_of(path: str) -> str:
    """Return an address that names this disk, whatever the session's default is. Spark decodes no %20 in it."""
    return f"file://{path}" if path.startswith("/") else path


def _has_delta(spark: Any, address: str) -> bool:
    """Return True if a session reads a table of Delta. Without its jar, each kind of session raises another error."""
    try:
        return bool(spark.read.format("delta").load(address).columns)
    except Exception:  # whatever it lacks, the files remain; what they lack is raised
        return False
