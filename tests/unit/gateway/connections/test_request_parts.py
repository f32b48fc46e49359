"""Long requests are answered part by part, and the answer is that of the whole."""

from __future__ import annotations

import asyncio
from typing import Any

from kshare_core.errors import ErrorCode
from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_gateway.connections.request_parts import JoinedResponse, parts_of
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_wire.generated.api_keys import ApiKey
from kshare_wire.generated.requests.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kshare_wire.generated.responses.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kshare_wire.generated.responses.offset_delete import OffsetDeleteResponse
from support.gateway.harness import GatewayHarness, run

ELEMENTS = 200_000
LIMIT = 10_000


def test_parts_have_at_most_a_slice_of_elements_and_join_to_the_whole() -> None:
    sizes = [3, 1_200, 0, 499, 2, 700]
    topics = [
        ListOffsetsTopic(
            name=f"t{at}", partitions=[ListOffsetsPartition(partition_index=index) for index in range(size)]
        )
        for at, size in enumerate(sizes)
    ]
    joined = JoinedResponse(ApiKey.LIST_OFFSETS)
    counts = []
    request = ListOffsetsRequest(topics=topics, isolation_level=1)
    for part, elements in parts_of(ApiKey.LIST_OFFSETS, request, LIMIT):
        assert isinstance(part, ListOffsetsRequest) and part.isolation_level == 1
        counts.append(sum(len(topic.partitions) for topic in part.topics))
        assert elements >= counts[-1]
        results = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=each.partition_index) for each in topic.partitions
                ],
            )
            for topic in part.topics
        ]
        joined.add(ListOffsetsResponse(topics=results))
    assert max(counts) <= SLICE_ELEMENTS and sum(counts) == sum(sizes)
    found = joined.response()
    assert isinstance(found, ListOffsetsResponse)
    assert [topic.name for topic in found.topics] == [f"t{at}" for at in range(len(sizes))]
    assert [[each.partition_index for each in topic.partitions] for topic in found.topics] == [
        list(range(size)) for size in sizes
    ]


def test_an_error_of_a_part_is_not_lost() -> None:
    joined = JoinedResponse(ApiKey.OFFSET_DELETE)
    joined.add(OffsetDeleteResponse())
    joined.add(OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
    joined.add(OffsetDeleteResponse())
    assert joined.response() == OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, topics=[])


def test_a_commit_of_200_000_offsets_is_many_commands_and_others_are_answered_meanwhile() -> None:
    lengths: list[int] = []

    def commit(request: Any, payload: memoryview) -> Any:
        lengths.append(len(request.offsets))
        result = coordinator_pb2.OffsetCommitResponse.Result
        return coordinator_pb2.OffsetCommitResponse(results=[result(error_code=0) for _ in request.offsets])

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["OffsetCommit"] = commit
        partitions = [{"partition_index": index, "committed_offset": 1} for index in range(ELEMENTS)]
        long, other = harness.client(), harness.client()
        answer = long.send(ApiKey.OFFSET_COMMIT, 8, group_id="g", topics=[{"name": "orders", "partitions": partitions}])
        asked = 0
        while not answer.done():
            await other.ask(ApiKey.API_VERSIONS, 3)
            await asyncio.sleep(0)
            asked += 1
        assert max(lengths) == SLICE_ELEMENTS and sum(lengths) == ELEMENTS
        assert asked >= ELEMENTS // SLICE_ELEMENTS
        (topic,) = (await answer).topics
        assert [partition.partition_index for partition in topic.partitions] == list(range(ELEMENTS))

    run(scenario)


def test_a_coordinator_that_gives_no_answer_is_asked_once() -> None:
    calls = 0

    def refuse(request: Any, payload: memoryview) -> Any:
        nonlocal calls
        calls += 1
        raise RuntimeError("no answer")

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["OffsetCommit"] = refuse
        partitions = [{"partition_index": index, "committed_offset": 1} for index in range(5_000)]
        client = harness.client()
        asked = [{"name": "orders", "partitions": partitions}]
        answer = await client.ask(ApiKey.OFFSET_COMMIT, 8, group_id="g", topics=asked)
        codes = {partition.error_code for topic in answer.topics for partition in topic.partitions}
        assert codes == {ErrorCode.COORDINATOR_NOT_AVAILABLE} and calls == 1
        assert len(answer.topics[0].partitions) == 5_000

    run(scenario)


def test_what_is_answered_at_once_is_answered_in_slices_where_it_is_long() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        topics = [{"topic": "orders", "partitions": tuple(range(20_000))}]
        before = harness.node._gateway.slices.slices
        answer = await client.ask(ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=topics)
        (topic,) = answer.replica_election_results
        assert len(topic.partition_result) == 20_000
        assert harness.node._gateway.slices.slices - before >= 20_000 // SLICE_ELEMENTS

    run(scenario)


def test_the_longest_throttle_time_of_the_parts_is_told() -> None:
    joined = JoinedResponse(ApiKey.OFFSET_DELETE)
    for throttle_ms in (0, 700, 30):
        joined.add(OffsetDeleteResponse(throttle_time_ms=throttle_ms))
    assert joined.response() == OffsetDeleteResponse(throttle_time_ms=700, topics=[])
