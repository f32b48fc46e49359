"""Poison records of a group: those of leaders that answer, and which share-partitions could not be read."""

from __future__ import annotations

import asyncio

from kshare_console.cluster_client import DESCRIBE_SHARE_GROUP_OFFSETS, SHARE_GROUP_DESCRIBE, ClusterClient
from kshare_console.role_calls import RoleCalls
from kshare_console.views.paging import Json, PageRequest
from kshare_console.views.share_partitions import PROBLEMS_LIMIT, SharePartitions, problems_of
from kshare_core.states import RecordState
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import COORDINATOR, DESCRIBE_PARTITIONS, DESCRIBE_SHARE_PARTITIONS, LEADER
from kshare_rpc.in_process_network import InProcessNetwork
from kshare_rpc.network import Service
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import BrokerAddress, ClientSettings
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.responses.describe_share_group_offsets import (
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from kshare_wire.generated.responses.find_coordinator import Coordinator, FindCoordinatorResponse
from kshare_wire.generated.responses.share_group_describe import DescribedGroup, ShareGroupDescribeResponse
from support.upstream.scripted_broker import NODE_ID, ScriptedBroker

GROUP, TOPIC, TOPIC_ID = "billing", "orders", b"t" * 16
LEADERS = {0: "leader:1", 1: "leader:2", 2: "leader:2", 3: ""}
"""The leaders of the partitions; leader:2 does not answer, and partition 3 has none."""


def script(broker: ScriptedBroker) -> None:
    """The group's share-partitions, as Kafka's protocol tells them."""
    partitions = [DescribeShareGroupOffsetsResponsePartition(partition_index=each, start_offset=0) for each in LEADERS]
    topic = DescribeShareGroupOffsetsResponseTopic(topic_name=TOPIC, topic_id=TOPIC_ID, partitions=partitions)
    offsets = DescribeShareGroupOffsetsResponseGroup(group_id=GROUP, topics=[topic])
    coordinator = Coordinator(key=GROUP, node_id=NODE_ID, host="127.0.0.1", port=broker.port)
    broker.served |= {
        ApiKey.SHARE_GROUP_DESCRIBE: SHARE_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: DESCRIBE_SHARE_GROUP_OFFSETS,
    }
    broker.answers |= {
        ApiKey.FIND_COORDINATOR: lambda version, frame: FindCoordinatorResponse(coordinators=[coordinator]),
        ApiKey.SHARE_GROUP_DESCRIBE: lambda version, frame: ShareGroupDescribeResponse(
            groups=[DescribedGroup(group_id=GROUP)]
        ),
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda version, frame: DescribeShareGroupOffsetsResponse(groups=[offsets]),
    }


async def describe_partitions(
    request: coordinator_pb2.DescribePartitionsRequest, payload: memoryview
) -> coordinator_pb2.DescribePartitionsResponse:
    answer = coordinator_pb2.DescribePartitionsResponse()
    for node_id in (1, 2):
        answer.leaders.add(node_id=node_id, rpc_address=f"leader:{node_id}", is_live=True)
    topic = answer.topics.add(name=TOPIC)
    for partition, leader in LEADERS.items():
        topic.partitions.add(partition=partition, leader_node_id=int(leader[-1]) if leader else -1)
    return answer


async def describe_share_partitions(
    request: leader_pb2.DescribeSharePartitionsRequest, payload: memoryview
) -> leader_pb2.DescribeSharePartitionsResponse:
    answer = leader_pb2.DescribeSharePartitionsResponse()
    for _ in request.partitions:
        result = answer.results.add(is_loaded=True, next_offset=-1)
        result.runs.add(first_offset=7, last_offset=8, delivery_state=RecordState.AVAILABLE, delivery_count=3)
    return answer


async def poison() -> Json:
    network = InProcessNetwork()
    await network.serve("coordinator:1", [Service(COORDINATOR, {DESCRIBE_PARTITIONS: describe_partitions})])
    await network.serve("leader:1", [Service(LEADER, {DESCRIBE_SHARE_PARTITIONS: describe_share_partitions})])
    async with ScriptedBroker() as broker:
        script(broker)
        cluster = Cluster([BrokerAddress("127.0.0.1", broker.port)], ClientSettings())
        client, roles = ClusterClient(cluster), RoleCalls(network, ["coordinator:1"])
        try:
            await client.sign_in()
            return await SharePartitions(client, roles, lambda: 0).poison(GROUP, PageRequest())
        finally:
            await roles.close()
            await cluster.close()


def test_share_partitions_that_cannot_be_read_are_told() -> None:
    found = asyncio.run(poison())
    items, problems = found["items"], found["problems"]
    assert isinstance(items, list) and isinstance(problems, list)
    assert [(each["partition"], each["offset"], each["delivery_count"]) for each in items] == [(0, 7, 3)]
    unanswered, without_leader = (problem["words"] for problem in problems)
    assert unanswered.startswith(
        "2 share-partitions, such as orders-1, could not be read: the leader at leader:2 did not answer"
    )
    assert without_leader == "orders-3 could not be read: it has no live leader"


def test_an_answer_has_a_limit_of_problems() -> None:
    unread = {f"problem {number}": [f"orders-{number}", "bills-0"] for number in range(PROBLEMS_LIMIT + 3)}
    found = problems_of(unread)
    assert len(found) == PROBLEMS_LIMIT + 1
    assert found[-1] == {"words": "6 more share-partitions could not be read"}
    assert problems_of({}) == []
