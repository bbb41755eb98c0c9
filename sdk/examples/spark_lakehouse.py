"""Ask Spark about the runs of a store, and join them with a table of your own.

Run: `python spark_lakehouse.py file://$TMPDIR/lake`
"""

import sys

from pyspark.sql import SparkSession

import chiplog

QUERIES = (
    "SELECT project, state, n_labels, n_attempts FROM runs",
    "SELECT label, count(*) AS n, min(value) AS lowest FROM metrics WHERE key = 'loss' GROUP BY label ORDER BY label",
    "SELECT step, n_labels, min, max, max_label FROM step_skew WHERE key = 'loss' AND step < 2 ORDER BY step",
    """SELECT b.team, s.label, s.value, CAST(s.value AS DOUBLE) <= b.loss AS is_reached
       FROM summary s JOIN runs r ON r.run_id = s.run_id JOIN bounds b ON b.project = r.project
       WHERE s.key = 'loss' ORDER BY s.label""",
)

if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    chiplog.register_store(spark, sys.argv[1])
    own = spark.createDataFrame([("spark", "vision", 0.15)], "project STRING, team STRING, loss DOUBLE")
    own.createOrReplaceTempView("bounds")
    for query in QUERIES:
        spark.sql(query).show()
    spark.stop()
