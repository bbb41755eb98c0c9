"""Read a store in one engine, as a process of that engine's Python: `python -m tests.bench.lake.in_engine ENGINE`.

Standard input has what `chiplog store spark-tables` prints, and the address of the store. Standard output has the
version, and the SHA-256 of the rows of one file of each table and of each view; if standard input has a question, it
has the rows of the answer.
"""

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

from tests.support.engine_rows import VIEWS, plain_rows

Found = tuple[Sequence[str], Iterable[Sequence[Any]]]
_PACKAGES = {"polars": "polars", "datafusion": "datafusion", "clickhouse": "chdb", "pyarrow": "pyarrow"}


def digest(name: str, found: Found) -> str:
    """Return the SHA-256 of the rows of a view or a file."""
    return hashlib.sha256("\n".join(plain_rows(name, *found)).encode()).hexdigest()


def main(engine: str) -> None:
    """Print the result of an engine."""
    given = json.load(sys.stdin)
    result: Any
    if "question" in given:
        result = _answer(engine, given)
    elif engine in _PACKAGES:
        read = _reader(engine)
        files = {name: _tried(lambda table=table: read(table["files"][0])) for name, table in given["tables"].items()}
        result = {"version": version(_PACKAGES[engine]), "files": {n: _digested(n, f) for n, f in files.items()}}
    else:
        result = _spark_3(given) if engine == "spark 3" else _sail(given)
    print(json.dumps(result))


def _reader(engine: str) -> Callable[[str], Found]:
    """Return the function that reads a Parquet file."""
    module: Any = importlib.import_module(_PACKAGES[engine])
    if engine == "polars":
        return lambda path: _of_arrow(module.read_parquet(path, hive_partitioning=False).to_arrow())
    if engine == "datafusion":
        return lambda path: _of_arrow(module.SessionContext().read_parquet(path).to_arrow_table())
    if engine == "clickhouse":
        query = "SELECT * FROM file('{}', Parquet) SETTINGS use_hive_partitioning = 0"
        return lambda path: _of_arrow(module.query(query.format(path), "ArrowTable"))
    parquet = importlib.import_module("pyarrow.parquet")
    return lambda path: _of_arrow(parquet.ParquetFile(path).read())


def _of_arrow(table: Any) -> Found:
    return table.column_names, (tuple(row.values()) for row in table.to_pylist())


def _spark_session() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    return builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "1").getOrCreate()


def _make_table(spark: Any, name: str, table: dict[str, Any]) -> None:
    """Make a view of the files of a table."""
    folder = table["files"][0].rpartition("/day=")[0]
    reader = spark.read.schema(table["columns"]).option("basePath", folder)
    reader.parquet(*table["files"]).createOrReplaceTempView(f"store_{name}")


def _answer(engine: str, given: dict[str, Any]) -> list[list[Any]]:
    """Return what Spark or Sail answers to one question."""
    if engine == "sail":
        from pysail.spark import SparkConnectServer
        from pyspark.sql import SparkSession

        server = SparkConnectServer(ip="127.0.0.1", port=0)
        server.start(background=True)
        spark: Any = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").create()
    else:
        spark = _spark_session()
    for name, table in given["tables"].items():
        if engine == "sail":
            spark.sql(f"CREATE TABLE store_{name} USING delta LOCATION '{given['url']}/{name}'")
        else:
            _make_table(spark, name, table)
    for statement in given["views"].values():
        spark.sql(statement)
    rows = [list(row) for row in spark.sql(given["question"]).collect()]
    spark.stop()
    return rows


def _spark_3(given: dict[str, Any]) -> dict[str, Any]:
    spark = _spark_session()
    files = {}
    for name, table in given["tables"].items():
        frame = _tried(lambda table=table: spark.read.parquet(table["files"][0]))
        files[name] = frame if isinstance(frame, str) else _digested(name, _tried(lambda f=frame: _collected(f)))
        _make_table(spark, name, table)
    result = {"version": spark.version, "files": files, "views": _views(spark, given["views"].values())}
    spark.stop()
    return result


def _sail(given: dict[str, Any]) -> dict[str, Any]:
    """Read Delta tables: by `CREATE TABLE … USING delta`, and by `format("delta")`."""
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer(ip="127.0.0.1", port=0)
    server.start(background=True)
    results = {}
    for way in ("created", "format"):
        _, port = server.listening_address
        spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for name in given["tables"]:
            address = f"{given['url']}/{name}"
            if way == "created":
                spark.sql(f"CREATE TABLE store_{name} USING delta LOCATION '{address}'")
            else:
                spark.read.format("delta").load(address).createOrReplaceTempView(f"store_{name}")
        results[way] = _views(spark, given["views"].values())
        spark.stop()
    return {"version": version("pysail"), "client": version("pyspark-client"), **results}


def _views(spark: Any, statements: Iterable[str]) -> dict[str, str]:
    for statement in statements:
        spark.sql(statement)
    found = {view: _tried(lambda view=view: _collected(spark.sql(f"SELECT * FROM {view}"))) for view in VIEWS}
    return {view: _digested(view, rows) for view, rows in found.items()}


def _collected(frame: Any) -> Found:
    return frame.columns, frame.collect()


def _digested(name: str, found: Found | str) -> str:
    return found if isinstance(found, str) else digest(name, found)


def _tried(call: Callable[[], Any]) -> Any:
    """Return what an engine returns; else the first line of its error, which no digest is equal to."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


if __name__ == "__main__":
    main(sys.argv[1])
