"""Structured Streaming from a topic: the share source on kshare beside Spark's own Kafka source on Apache Kafka.

`make bench-spark`. The same Spark, the same records of 1 KB in 16 partitions, one after the other in the same run, a
noop sink, AvailableNow; each system is warmed up with a small topic first. A rate is records by the time from the
query's start to its end: for the share source with all records accepted. Told is the median of the rounds; the target
is half of Kafka's. Share groups lock at most 10,000 records of a partition, which bounds the share source's batches.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from kshare_spark.data_source import register
from kshare_spark.session import spark_session
from support.clients.administration import create_topic, read_from_earliest
from support.clusters.kshare_cluster import KshareCluster
from support.kafka.apache_kafka import ApacheKafka
from support.kafka.java import spark_kafka_jars

PARTITIONS = 16
RECORD = b"x" * 1000
WARM_UP_RECORDS = 2_000
TARGET = 0.5
TIMEOUT_S = 300
KAFKA = "Spark's Kafka source, Apache Kafka 4.3.1"
LOCKS = {"group.share.max.partition.max.record.locks": "10000", "group.share.partition.max.record.locks": "10000"}
SYSTEMS: dict[str, Callable[[Path], AbstractContextManager[ApacheKafka | KshareCluster]]] = {
    KAFKA: ApacheKafka,
    "share source, kshare in four processes": lambda folder: KshareCluster(folder, LOCKS),
    "share source, kshare --single-process": lambda folder: KshareCluster(folder, LOCKS, single_process=True),
}


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Produces `records` to all partitions in turn."""
    failures: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 131072, "acks": "all"})

    def confirmed(error: object, message: object) -> None:
        if error is not None:
            failures.append(str(error))

    for index in range(records):
        while True:
            try:
                producer.produce(topic, RECORD, key=b"%d" % index, partition=index % PARTITIONS, on_delivery=confirmed)
                break
            except BufferError:
                producer.poll(0.01)
        if index % 64 == 0:
            producer.poll(0)
    if producer.flush(TIMEOUT_S) or failures:
        raise RuntimeError(f"records were not stored: {failures[:1]}")


def rate(spark: SparkSession, bootstrap: str, topic: str, records: int, *, is_kafka: bool) -> float:
    """Records per second of one AvailableNow query over the whole topic; RuntimeError where it read another number."""
    options: Mapping[str, str] = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    if is_kafka:
        options = {**options, "startingOffsets": "earliest"}
    else:
        options = {**options, "group.id": f"group-of-{topic}", "numPartitions": "2"}
        read_from_earliest(bootstrap, f"group-of-{topic}")
    frame = spark.readStream.format("kafka" if is_kafka else "kshare").options(**options).load()
    with tempfile.TemporaryDirectory(prefix="kshare-checkpoint-") as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        started = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(TIMEOUT_S)
        taken_s = time.perf_counter() - started
    read = sum(progress["numInputRows"] for progress in query.recentProgress)
    if read != records:
        raise RuntimeError(f"{read} of {records} records were read")
    return records / taken_s


def measure(rounds: int, records: int, console: Console) -> dict[str, list[float]]:
    """System -> records per second, by round."""
    jars = ",".join(str(jar) for jar in spark_kafka_jars())
    spark = spark_session("bench", options={"spark.jars": jars, "spark.ui.showConsoleProgress": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    rates: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for _ in range(rounds):
        for system, start in SYSTEMS.items():
            with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder, start(Path(folder)) as running:
                for topic, number in (("warm-up", WARM_UP_RECORDS), ("records", records)):
                    create_topic(running.bootstrap, topic, PARTITIONS)
                    fill(running.bootstrap, topic, number)
                    found = rate(spark, running.bootstrap, topic, number, is_kafka=system == KAFKA)
                rates[system].append(found)
                console.print(f"{system}: {found:,.0f} records/s")
    spark.stop()
    return rates


def report(rates: dict[str, list[float]], console: Console) -> bool:
    """Prints the table; whether the target was reached everywhere."""
    medians = {system: statistics.median(found) for system, found in rates.items()}
    table = Table("reading with Structured Streaming", "records/s (median)", "of Spark's Kafka source")
    for system, median in medians.items():
        table.add_row(system, f"{median:,.0f}", f"{median / medians[KAFKA]:.2f}")
    console.print(table)
    return all(median >= TARGET * medians[KAFKA] for median in medians.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=400_000)
    given = parser.parse_args(arguments)
    console = Console()
    is_reached = report(measure(given.rounds, given.records, console), console)
    console.print(f"target: {TARGET} of Kafka's; {'reached' if is_reached else 'missed'}")
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
