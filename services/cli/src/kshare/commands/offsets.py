"""Offsets of logs by ListOffsets: the earliest, the latest, or by timestamp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from kshare.client_properties import Properties
from kshare.commands.topics import TIMEOUT_S, admin_client, kafka_failure

NamedPartition = tuple[str, int]
"""Topic and partition."""

EARLIEST, LATEST = -2, -1
"""ListOffsets' special timestamps: the first record, and the end of the log."""


def look_up_offsets(
    bootstrap: str, partitions: Sequence[NamedPartition], timestamp_ms: int, properties: Properties
) -> dict[NamedPartition, int]:
    """Each partition's offset for EARLIEST, LATEST, or the first record from a time on (-1: none); CommandFailed."""
    admin = admin_client(bootstrap, properties)  # it must outlive its futures
    wanted: Mapping[TopicPartition, OffsetSpec] = {TopicPartition(*each): _spec(timestamp_ms) for each in partitions}
    try:
        futures = admin.list_offsets(dict(wanted), request_timeout=TIMEOUT_S)
        results = {each: future.result(TIMEOUT_S + 5) for each, future in futures.items()}
    except KafkaException as error:
        raise kafka_failure("looking up offsets", error) from None
    return {(each.topic, each.partition): result.offset for each, result in results.items()}


def _spec(timestamp_ms: int) -> OffsetSpec:
    spec: OffsetSpec
    if timestamp_ms == EARLIEST:
        spec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    elif timestamp_ms == LATEST:
        spec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    else:
        spec = OffsetSpec.for_timestamp(timestamp_ms)
    return spec
