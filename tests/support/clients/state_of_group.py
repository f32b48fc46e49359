"""A share group's state as the services report it, over unary gRPC at their operations addresses."""

from __future__ import annotations

import re
import time
from typing import Any

import grpc
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1.share_coordinator_pb2 import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from support.clusters.kshare_cluster import KshareCluster

TIMEOUT_S = 30.0
SHARE_PARTITION = ReadShareGroupStateSummaryRequest.SharePartition


def operations_address(cluster: KshareCluster, role: str) -> str:
    """Where a role's newest process serves health and unary calls; `role` as in the log ("share-coordinator")."""
    return str(re.findall(rf"operations_address=(\S+) role={role}\b", cluster.log_text())[-1])


def topic_id_of(bootstrap: str, topic: str) -> bytes:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    description: Any = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
    bits = (description.topic_id.get_most_significant_bits(), description.topic_id.get_least_significant_bits())
    return b"".join(value.to_bytes(8, "big", signed=True) for value in bits)


def start_offsets(cluster: KshareCluster, group: str, topic: str, partitions: int) -> list[int]:
    """The durable start offset of each share-partition.

    On the kafka engine a role is ready before it has read all its state partitions. One that is still being loaded is
    asked again, as leaders do.
    """
    topic_id = topic_id_of(cluster.bootstrap, topic)
    request = ReadShareGroupStateSummaryRequest(
        group_id=group,
        partitions=[
            SHARE_PARTITION(topic_id=topic_id, partition=index, leader_epoch=-1) for index in range(partitions)
        ],
    )
    with grpc.insecure_channel(operations_address(cluster, "share-coordinator")) as channel:
        call: Any = channel.unary_unary(
            "/kshare.v1.ShareCoordinator/ReadShareGroupStateSummary",
            request_serializer=ReadShareGroupStateSummaryRequest.SerializeToString,
            response_deserializer=ReadShareGroupStateSummaryResponse.FromString,
        )
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = call(request, timeout=TIMEOUT_S)
            codes = [result.error_code for result in answer.results]
            is_loading = cluster.upstream is not None and ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in codes
            if not is_loading or time.monotonic() > deadline:
                break
            time.sleep(0.05)
    assert codes == [0] * partitions, [result.error_message for result in answer.results]
    return [result.start_offset for result in answer.results]


def wait_until_drained(cluster: KshareCluster, group: str, topic: str, ends: list[int], timeout_s: float) -> None:
    """Returns when the durable state says that the group is done with every record below `ends`; AssertionError."""
    deadline = time.monotonic() + timeout_s
    while (found := start_offsets(cluster, group, topic, len(ends))) != ends:
        assert time.monotonic() < deadline, f"the group's start offsets are {found}, its topic ends at {ends}"
        time.sleep(0.5)
