"""Requests about groups, sent over `KafkaConnection` since librdkafka does not offer them.

As Kafka's admin client does, they ask again while a coordinator loads its groups, or while another takes over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from kshare.addresses import Address, parse_addresses
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.cluster_metadata import reach
from kshare.commands.resource_configs import GROUP, alter_configs
from kshare.endpoint import Endpoint
from kshare.failure import CommandFailed
from kshare.kafka_connection import KafkaConnection, connect_to_any, refuse
from kshare_core.errors import ErrorCode
from kshare_wire.generated.requests import alter_share_group_offsets as alter
from kshare_wire.generated.requests.delete_groups import DeleteGroupsRequest
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kshare_wire.generated.requests.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.list_groups import ListGroupsRequest
from kshare_wire.generated.requests.share_group_describe import ShareGroupDescribeRequest
from kshare_wire.generated.responses.list_groups import ListedGroup
from kshare_wire.generated.responses.share_group_describe import DescribedGroup
from kshare_wire.messages import Request, Response

GROUP_COORDINATOR = 0
SHARE = "share"
"""A group type."""
DESCRIBE_TIMEOUT_S = 30
COORDINATOR_TIMEOUT_S, RETRY_INTERVAL_S = 30, 0.2
NOT_READY = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)

AResponse = TypeVar("AResponse", bound=Response)


class ShareOffset(NamedTuple):
    """A share group's start offset in one partition; -1 for a `start_offset` not yet set, or an unknown `lag`."""

    topic: str
    topic_id: bytes
    partition: int
    start_offset: int
    lag: int


def list_groups(bootstrap: str, properties: Properties = NO_PROPERTIES) -> list[ListedGroup]:
    """All groups of all brokers, by id (ListGroups v5)."""
    brokers = [Address(broker.host, broker.port) for broker in reach(bootstrap, properties).brokers]
    found: dict[str, ListedGroup] = {}
    for address in brokers or parse_addresses(bootstrap, what="--bootstrap"):
        with KafkaConnection(address, properties=properties) as connection:
            ask = partial(connection.call, ListGroupsRequest(), version=5)
            response = _when_ready(ask, lambda answer: answer.error_code)
        refuse(response.error_code, "listing groups")
        found.update({group.group_id: group for group in response.groups})
    return sorted(found.values(), key=lambda group: group.group_id)


def group_type_of(bootstrap: str, group_id: str, properties: Properties = NO_PROPERTIES) -> str | None:
    """The group's type in lower case, such as `classic`; None if it does not exist or this user may not see it."""
    types = {group.group_id: group.group_type.lower() for group in list_groups(bootstrap, properties)}
    return types.get(group_id)


def coordinator_of(bootstrap: str, group_id: str, properties: Properties = NO_PROPERTIES) -> Address:
    """The broker that coordinates the group (FindCoordinator v4).

    Kafka makes the topic of its coordinators at the first question for one; it is asked again meanwhile.
    """
    find = FindCoordinatorRequest(key_type=GROUP_COORDINATOR, coordinator_keys=(group_id,))
    with connect_to_any(bootstrap, properties=properties) as connection:
        (coordinator,) = _when_ready(
            lambda: connection.call(find, version=4), lambda answer: answer.coordinators[0].error_code
        ).coordinators
    refuse(coordinator.error_code, f"finding the coordinator of group {group_id}", coordinator.error_message)
    return Address(coordinator.host, coordinator.port)


def _when_ready(ask: Callable[[], AResponse], code_of: Callable[[AResponse], int]) -> AResponse:
    """The first response whose code is none of NOT_READY; the last one after COORDINATOR_TIMEOUT_S."""
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_S
    while code_of(response := ask()) in NOT_READY and time.monotonic() < deadline:
        time.sleep(RETRY_INTERVAL_S)
    return response


def _answer_of_coordinator(
    bootstrap: str,
    group_id: str,
    properties: Properties,
    request: Request[AResponse],
    version: int,
    code_of: Callable[[AResponse], int],
) -> AResponse:
    """The response of the group's coordinator, which is found anew for each attempt."""

    def ask() -> AResponse:
        address = coordinator_of(bootstrap, group_id, properties)
        with KafkaConnection(address, timeout_s=DESCRIBE_TIMEOUT_S, properties=properties) as connection:
            return connection.call(request, version)

    return _when_ready(ask, code_of)


def describe_share_group(bootstrap: str, group_id: str, properties: Properties = NO_PROPERTIES) -> DescribedGroup:
    """A share group with its members, from its coordinator (ShareGroupDescribe v1)."""
    describe = ShareGroupDescribeRequest(group_ids=(group_id,))
    (group,) = _answer_of_coordinator(
        bootstrap, group_id, properties, describe, 1, lambda answer: answer.groups[0].error_code
    ).groups
    refuse(group.error_code, f"describing group {group_id}", group.error_message)
    return group


def read_share_offsets(bootstrap: str, group_id: str, properties: Properties = NO_PROPERTIES) -> list[ShareOffset]:
    """Offsets of the group's share-partitions (DescribeShareGroupOffsets v1); empty if the group does not exist."""
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
    (group,) = _answer_of_coordinator(
        bootstrap,
        group_id,
        properties,
        DescribeShareGroupOffsetsRequest(groups=(wanted,)),
        1,
        lambda answer: answer.groups[0].error_code,
    ).groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return []
    refuse(group.error_code, f"describing the offsets of group {group_id}", group.error_message)
    return [
        ShareOffset(
            topic=topic.topic_name,
            topic_id=topic.topic_id,
            partition=partition.partition_index,
            start_offset=partition.start_offset,
            lag=partition.lag,
        )
        for topic in group.topics
        for partition in topic.partitions
    ]


def describe_configs(
    bootstrap: str, kind: int, name: str, keys: Sequence[str], properties: Properties = NO_PROPERTIES
) -> dict[str, str]:
    """The resource's values of these configs (DescribeConfigs v4); CommandFailed."""
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=tuple(keys))
    with connect_to_any(bootstrap, properties=properties) as connection:
        (result,) = connection.call(DescribeConfigsRequest(resources=(resource,)), version=4).results
    refuse(result.error_code, f"describing the configs of {name}", result.error_message)
    return {entry.name: entry.value for entry in result.configs if entry.value is not None}


def alter_group_configs(
    bootstrap: str, group_id: str, changes: Mapping[str, str | None], properties: Properties = NO_PROPERTIES
) -> None:
    """Sets configs of a group; None resets one to the broker default. CommandFailed."""
    alter_configs(Endpoint(bootstrap, properties), GROUP, group_id, changes)


def alter_share_offsets(
    bootstrap: str,
    group_id: str,
    offsets: Mapping[tuple[str, int], int],
    properties: Properties = NO_PROPERTIES,
) -> None:
    """Sets start offsets, by (topic, partition), of a group without members; CommandFailed names the first problem."""
    by_topic: dict[str, list[alter.AlterShareGroupOffsetsRequestPartition]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, []).append(
            alter.AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)
        )
    topics = tuple(
        alter.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=tuple(partitions))
        for topic, partitions in by_topic.items()
    )
    request = alter.AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)
    answer = _answer_of_coordinator(bootstrap, group_id, properties, request, 0, lambda answer: answer.error_code)
    refuse(answer.error_code, f"resetting group {group_id}", answer.error_message)
    for topic_answer in answer.responses:
        for result in topic_answer.partitions:
            what = f"resetting group {group_id} in {topic_answer.topic_name}-{result.partition_index}"
            refuse(result.error_code, what, result.error_message)


def delete_group(bootstrap: str, group_id: str, properties: Properties = NO_PROPERTIES) -> None:
    """Deletes a group without members, of any type, with its offsets; CommandFailed."""
    request = DeleteGroupsRequest(groups_names=(group_id,))
    (result,) = _answer_of_coordinator(
        bootstrap, group_id, properties, request, 2, lambda answer: answer.results[0].error_code
    ).results
    if result.error_code == ErrorCode.NON_EMPTY_GROUP:
        raise CommandFailed(f"group {group_id} has members (NON_EMPTY_GROUP); stop them first")
    refuse(result.error_code, f"deleting group {group_id}")
