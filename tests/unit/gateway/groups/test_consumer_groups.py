"""ConsumerGroupHeartbeat and ConsumerGroupDescribe at the gateway: calls to the coordinator, and responses."""

from __future__ import annotations

import uuid

import pytest

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayHarness, run

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOPIC_ID = uuid.UUID("00000000-0000-4000-8000-000000000007").bytes


@pytest.mark.parametrize("version", [0, 1])
def test_null_and_empty_are_told_apart(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        answer = pb.ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=2, heartbeat_interval_ms=5000)
        harness.catalog.answers["ConsumerGroupHeartbeat"] = lambda request, payload: answer
        client = harness.client()
        await client.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, version, group_id="g", member_id="m", member_epoch=2, topic_partitions=None
        )
        await client.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            version,
            group_id="g",
            member_id="m",
            member_epoch=0,
            instance_id="",
            rack_id="r",
            rebalance_timeout=1234,
            subscribed_topic_names=[],
            server_assignor="",
            topic_partitions=[],
        )
        nothing, everything = harness.catalog.requests("ConsumerGroupHeartbeat")
        fields = [
            field.name for field in pb.ConsumerGroupHeartbeatRequest.DESCRIPTOR.fields if field.name[:4] == "has_"
        ]
        assert [field for field in fields if getattr(nothing, field)] == []
        assert (nothing.api_version, nothing.rebalance_timeout_ms) == (version, -1)
        assert [field for field in fields if not getattr(everything, field)] == ["has_subscribed_topic_regex"]
        assert (everything.rack_id, everything.instance_id, everything.rebalance_timeout_ms) == ("r", "", 1234)
        assert (everything.client_id, everything.client_host) == ("tester", "/10.1.2.3")

    run(scenario)


def test_assignments_and_refusals() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        partitions = pb.TopicPartitions(topic_id=TOPIC_ID, partitions=[0, 2])
        answers = [
            pb.ConsumerGroupHeartbeatResponse(
                member_id="m", member_epoch=3, heartbeat_interval_ms=5000, has_assignment=True, assignment=[partitions]
            ),
            pb.ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=3, has_assignment=True),
            pb.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH, error_message="why"),
        ]
        harness.catalog.answers["ConsumerGroupHeartbeat"] = lambda request, payload: answers.pop(0)
        client = harness.client()
        who = {"group_id": "g", "member_id": "m", "member_epoch": 2}
        owned = [{"topic_id": TOPIC_ID, "partitions": [1]}]
        answer = await client.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **who, subscribed_topic_regex="t.*", topic_partitions=owned
        )
        (topic,) = answer.assignment.topic_partitions
        assert (topic.topic_id.bytes, topic.partitions, answer.member_epoch) == (TOPIC_ID, (0, 2), 3)
        answer = await client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **who, topic_partitions=None)
        assert answer.assignment.topic_partitions == ()
        answer = await client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **who, topic_partitions=None)
        refused = (int(answer.error_code), answer.error_message, answer.member_id, answer.assignment)
        assert refused == (ErrorCode.FENCED_MEMBER_EPOCH, "why", None, None)
        first = harness.catalog.requests("ConsumerGroupHeartbeat")[0]
        assert first.subscribed_topic_regex == "t.*" and list(first.owned_partitions[0].partitions) == [1]

    run(scenario)


@pytest.mark.parametrize("version", [0, 1])
def test_descriptions(version: int) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        member = pb.ConsumerGroupDescribeResponse.Member(
            member_id="m",
            instance_id="i",
            member_epoch=4,
            client_id="c",
            client_host="/h",
            subscribed_topic_regex="t.*",
            assignment=[pb.TopicPartitions(topic_id=TOPIC_ID, topic_name="t", partitions=[0])],
            target_assignment=[pb.TopicPartitions(topic_id=TOPIC_ID, topic_name="t", partitions=[0, 1])],
        )
        described = pb.ConsumerGroupDescribeResponse.DescribedGroup(
            group_id="g",
            group_state="Reconciling",
            group_epoch=5,
            assignment_epoch=4,
            assignor_name="uniform",
            members=[member],
        )
        answer = pb.ConsumerGroupDescribeResponse(groups=[described])
        harness.catalog.answers["ConsumerGroupDescribe"] = lambda request, payload: answer
        client = harness.client()
        found = (await client.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, version, group_ids=["g"])).groups[0]
        assert (found.group_id, found.group_state, found.group_epoch, found.assignment_epoch) == (
            "g",
            "Reconciling",
            5,
            4,
        )
        shown = found.members[0]
        assert (shown.instance_id, shown.rack_id, shown.subscribed_topic_regex) == ("i", None, "t.*")
        assert shown.assignment.topic_partitions[0].partitions == (0,)
        assert shown.target_assignment.topic_partitions[0].partitions == (0, 1)
        assert version == 0 or shown.member_type == 1

    run(scenario)


def test_the_coordinator_is_away() -> None:
    async def scenario(harness: GatewayHarness) -> None:
        client = harness.client()
        answer = await client.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=1, topic_partitions=None
        )
        assert int(answer.error_code) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = await client.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g", "h"])
        codes = [(group.group_id, int(group.error_code)) for group in answer.groups]
        assert codes == [("g", ErrorCode.COORDINATOR_NOT_AVAILABLE), ("h", ErrorCode.COORDINATOR_NOT_AVAILABLE)]

    run(scenario)


@pytest.mark.parametrize(
    ("configs", "sent"),
    [
        ({}, ("", False)),
        ({"authorizer.class.name": STANDARD_AUTHORIZER}, ("User:ANONYMOUS", True)),
        ({"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}, ("", True)),
    ],
)
def test_a_heartbeat_says_who_the_client_is_if_acls_limit_it(configs: dict[str, str], sent: tuple[str, bool]) -> None:
    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers["ConsumerGroupHeartbeat"] = lambda r, p: pb.ConsumerGroupHeartbeatResponse()
        fields = {"group_id": "g", "member_id": "m", "member_epoch": 2, "subscribed_topic_regex": "t.*"}
        await harness.client().ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **fields, topic_partitions=None)
        (request,) = harness.catalog.requests("ConsumerGroupHeartbeat")
        assert (request.principal, request.is_open_without_acls) == sent

    run(scenario, {"allow.everyone.if.no.acl.found": "true", **configs} if configs else {})
