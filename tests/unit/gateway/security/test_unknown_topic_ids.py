"""With an authorizer, a topic id that is unknown when it is checked is refused: it is not used after a wait."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_core.security.acls import Operation, PatternType, PermissionType, ResourceType
from kshare_gateway.share.requests import denied_fetches, take_denied_acknowledgements
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.kshare.v1.security_pb2 import Acl
from kshare_wire.framing import RequestHeader
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import TOPIC_ID, GatewayHarness, run, topic

HIDDEN_ID = b"hidden".ljust(16, b"-")
UNKNOWN, DENIED = ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
OF_BOB = Acl(
    resource_type=ResourceType.TOPIC,
    resource_name="hidden",
    pattern_type=PatternType.LITERAL,
    principal="User:bob",
    host="*",
    operation=Operation.ALL,
    permission_type=PermissionType.ALLOW,
)


async def change(harness: GatewayHarness, *, is_moving: bool, with_hidden: bool) -> None:
    """The gateway has a catalog in which partition 0 of "orders" waits for the end of its move, or does not."""
    orders = topic("orders", TOPIC_ID, [1, 1, 1])
    if is_moving:
        partition: coordinator_pb2.Topic.Partition = orders.partitions[0]
        partition.is_moving, partition.moving_to_node_id, partition.is_fenced = True, 2, True
    harness.catalog.topics["orders"] = orders
    if with_hidden:
        harness.catalog.topics["hidden"] = topic("hidden", HIDDEN_ID, [1])
    await harness.node._catalog.wait_for_version(harness.catalog.change(), timeout_ms=1000)


@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.FETCH])
def test_a_topic_that_is_created_during_a_wait_is_not_used_unchecked(api: ApiKey) -> None:
    used: list[bytes] = []

    def produced(request: leader_pb2.ProduceRequest, payload: memoryview) -> leader_pb2.ProduceResponse:
        used.extend(entry.topic_id for entry in request.partitions)
        entry = leader_pb2.ProduceResponse.Partition(topic_id=TOPIC_ID, partition=0)
        return leader_pb2.ProduceResponse(partitions=[entry])

    def fetched(request: leader_pb2.FetchRequest, payload: memoryview) -> leader_pb2.FetchResponse:
        used.extend(entry.topic_id for entry in request.partitions)
        entry = leader_pb2.FetchResponse.Partition(topic_id=TOPIC_ID, partition=0)
        return leader_pb2.FetchResponse(partitions=[entry])

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.acls.append(OF_BOB)
        harness.leaders[1].answers |= {"Produce": produced, "Fetch": fetched}
        await change(harness, is_moving=True, with_hidden=False)
        client = harness.client()
        ids = (TOPIC_ID, HIDDEN_ID)
        if api == ApiKey.PRODUCE:
            data = [{"topic_id": each, "partition_data": [{"index": 0, "records": bytes(90)}]} for each in ids]
            answer = client.send(api, 13, acks=-1, timeout=1000, topic_data=data)
        else:
            partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}
            topics = [{"topic_id": each, "partitions": [partition]} for each in ids]
            answer = client.send(api, 13, max_wait=0, min_bytes=1, topics=topics)
        await harness.settle()
        assert not answer.done()
        await change(harness, is_moving=False, with_hidden=True)
        found = {
            each.topic_id.bytes: int(part.error_code)
            for each in (await asyncio.wait_for(answer, 5)).responses
            for part in (each.partition_responses if api == ApiKey.PRODUCE else each.partitions)
        }
        assert found == {TOPIC_ID: 0, HIDDEN_ID: UNKNOWN} and used == [TOPIC_ID]

    run(scenario, AUTHORIZER)


def test_a_commit_names_no_topic_to_the_coordinator_that_the_gateway_could_not_check() -> None:
    """The coordinator's catalog is newer than that of the gateway."""
    asked: list[bytes] = []

    def commit(request: coordinator_pb2.OffsetCommitRequest, payload: memoryview) -> object:
        asked.extend(offset.topic_id for offset in request.offsets)
        results = [coordinator_pb2.OffsetCommitResponse.Result() for _ in request.offsets]
        return coordinator_pb2.OffsetCommitResponse(results=results)

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["OffsetCommit"] = commit
        topics = [
            {"topic_id": each, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
            for each in (HIDDEN_ID, TOPIC_ID)
        ]
        values = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        answer = await harness.client().ask(ApiKey.OFFSET_COMMIT, 10, **values)
        found = {each.topic_id.bytes: int(each.partitions[0].error_code) for each in answer.topics}
        assert found == {TOPIC_ID: 0, HIDDEN_ID: UNKNOWN} and asked == [TOPIC_ID]

    run(scenario, AUTHORIZER)


def test_share_partitions_of_unknown_topics_are_refused_at_the_check() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.acls.append(OF_BOB)
        header = RequestHeader(ApiKey.SHARE_FETCH, 1, 1, "client", 0)
        keys = [TopicPartition(TOPIC_ID, 0), TopicPartition(HIDDEN_ID, 0)]
        for with_hidden, code in ((False, UNKNOWN), (True, DENIED)):
            await change(harness, is_moving=False, with_hidden=with_hidden)
            context = harness.node._context(harness.client().connection, header)
            assert [(each.key, each.error_code) for each in denied_fetches(context, keys)] == [(keys[1], code)]
            acknowledgements = {key: [leader_pb2.AcknowledgementBatch()] for key in keys}
            (refused,) = take_denied_acknowledgements(context, acknowledgements)
            assert (refused.key, refused.acknowledge_error_code) == (keys[1], code) and list(acknowledgements) == keys[
                :1
            ]

    run(scenario, AUTHORIZER)
