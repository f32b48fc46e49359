"""Descriptions of groups that have topics which the client may not describe."""

from __future__ import annotations

from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import Operation, PatternType, PermissionType, ResourceType
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from kshare_rpc.generated.kshare.v1.security_pb2 import Acl
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import GatewayHarness, run, topic

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
HIDDEN = Acl(
    resource_type=ResourceType.TOPIC,
    resource_name="hidden",
    pattern_type=PatternType.LITERAL,
    principal="User:bob",
    host="*",
    operation=Operation.READ,
    permission_type=PermissionType.ALLOW,
)


def test_no_cursor_names_a_hidden_topic() -> None:
    """Topics are filtered before they are paged (DescribeTopicPartitionsRequestHandler)."""

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.acls.append(HIDDEN)
        harness.catalog.topics = {
            name: topic(name, bytes([number] * 16), [1]) for number, name in enumerate(("a", "hidden", "open"), 1)
        }
        harness.catalog.change()
        await harness.settle()
        client = harness.client()

        async def page(start: str, index: int = 0) -> tuple[list[str], str | None]:
            cursor = {"topic_name": start, "partition_index": index}
            answer = await client.ask(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=1, cursor=cursor
            )
            return [each.name for each in answer.topics], answer.next_cursor and answer.next_cursor.topic_name

        assert await page("a") == (["a"], "open")
        assert await page("hidden") == (["open"], None)
        del harness.catalog.topics["open"]
        harness.catalog.change()
        await harness.settle()
        assert await page("a") == (["a"], None)

    run(scenario, AUTHORIZER)


@pytest.mark.parametrize(
    ("api", "response", "topics", "code"),
    [
        (ApiKey.CONSUMER_GROUP_DESCRIBE, pb.ConsumerGroupDescribeResponse, {"assignment": "open"}, 0),
        (
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            pb.ConsumerGroupDescribeResponse,
            {"assignment": "hidden"},
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ),
        (
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            pb.ConsumerGroupDescribeResponse,
            {"target_assignment": "hidden"},
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ),
        (ApiKey.SHARE_GROUP_DESCRIBE, pb.ShareGroupDescribeResponse, {"assignment": "open"}, 0),
        (
            ApiKey.SHARE_GROUP_DESCRIBE,
            pb.ShareGroupDescribeResponse,
            {"assignment": "hidden"},
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ),
    ],
)
def test_a_group_is_hidden_for_assigned_topics_and_not_for_those_it_subscribes_to(
    api: ApiKey, response: Any, topics: dict[str, str], code: int
) -> None:
    """KafkaApis looks at the assignments only, and the members' subscriptions name topics that have none."""
    assigned = {field: [pb.TopicPartitions(topic_name=name, partitions=[0])] for field, name in topics.items()}
    member = response.Member(member_id="m", subscribed_topic_names=["hidden", "open"], **assigned)
    group = response.DescribedGroup(group_id="g", group_state="Stable", members=[member])

    async def scenario(harness: GatewayHarness) -> None:
        harness.catalog.answers[api.api_name] = lambda request, payload: response(groups=[group])
        harness.catalog.acls.append(HIDDEN)
        harness.catalog.change()
        await harness.settle()
        (found,) = (await harness.client().ask(api, 1, group_ids=["g"])).groups
        assert int(found.error_code) == code
        assert [each.member_id for each in found.members] == ([] if code else ["m"])

    run(scenario, AUTHORIZER)
