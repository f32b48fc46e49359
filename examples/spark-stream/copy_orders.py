"""A Spark stream that reads orders through a share group and appends them to a folder of Parquet files.

Each order is locked while its batch runs, accepted when Spark has committed the batch, and released when the batch
fails. After a crash a batch may be written again: (topic, partition, offset) is the key of a row.
"""

from __future__ import annotations

import argparse

from kshare_spark.data_source import register
from kshare_spark.session import spark_session


def copy(bootstrap: str, topic: str, group: str, output: str, *, until_empty: bool) -> None:
    """Appends each new order to `output`; `until_empty` ends it when the group has no more of them."""
    spark = spark_session("orders")
    register(spark)
    orders = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("group.id", group)
        .option("maxRecordsPerTrigger", "10000")
        .load()
        .selectExpr("topic", "partition", "offset", "delivery_count", "CAST(value AS STRING) AS order")
    )
    writer = orders.writeStream.format("parquet").option("path", output).option("checkpointLocation", f"{output}.state")
    writer = writer.trigger(availableNow=True) if until_empty else writer.trigger(processingTime="1 second")
    writer.start().awaitTermination()
    print(f"{output} has {spark.read.parquet(output).count()} orders", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="archive")
    parser.add_argument("--output", default="orders.parquet", help="the folder; its state is beside it")
    parser.add_argument("--until-empty", action="store_true", help="end when the group has no more orders")
    arguments = parser.parse_args()
    copy(arguments.bootstrap, arguments.topic, arguments.group, arguments.output, until_empty=arguments.until_empty)
