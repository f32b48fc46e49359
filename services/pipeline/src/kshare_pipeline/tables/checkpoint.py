"""The position of the tables in the topic, by Spark's checkpoint, and their lag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from kshare_kafka_client.properties import kafka_properties, open_consumer, reader_properties
from kshare_kafka_client.topics import Partition, end_offsets, partitions_of, start_offsets
from kshare_spark.log_source.offsets import decode_offset


def committed_offsets(checkpoint: Path) -> dict[Partition, int]:
    """The end offset of the last committed batch by partition; empty before the first one."""
    commits = checkpoint / "commits"
    batches = [int(path.name) for path in commits.iterdir() if path.name.isdecimal()] if commits.exists() else []
    if not batches:
        return {}
    lines = (checkpoint / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()
    return {partition: found.end_offset for partition, found in decode_offset(json.loads(lines[-1])).items()}


def lag_offsets(options: Mapping[str, str], topic: str, checkpoint: Path) -> int:
    """The number of offsets that are not in the tables yet; 0 if the topic does not exist. KafkaUnavailable.

    A log that ends before the checkpoint's offset is to be read from its start.
    """
    consumer = open_consumer(reader_properties(kafka_properties(options)))
    try:
        partitions = partitions_of(consumer, [topic]).get(topic, [])
        starts, ends = start_offsets(consumer, partitions), end_offsets(consumer, partitions)
    finally:
        consumer.close()
    committed = committed_offsets(checkpoint)
    within = {partition: offset for partition, offset in committed.items() if offset <= ends.get(partition, 0)}
    return sum(end - within.get(partition, starts[partition]) for partition, end in ends.items())
