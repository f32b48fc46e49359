"""The SparkSession of a test process, with the project's formats; one for all tests of the process."""

from __future__ import annotations

from pyspark.sql import SparkSession

from kshare_spark.data_source import register
from kshare_spark.session import spark_session

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for a minute need not compile twice: 40 % less CPU than with the second compiler."""
OPTIONS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
}


def shared_spark(master: str = "local[2]") -> SparkSession:
    """The running session of this process, or a new one that ends with the process."""
    spark = spark_session("kshare-tests", master=master, options=OPTIONS)
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark
