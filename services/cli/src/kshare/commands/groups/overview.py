"""Groups with their members, client ids and lag, as `kshare groups list`, `kshare top` and `kshare doctor` show them.

Groups are asked about in batches, at the coordinator of each: three requests for a hundred groups. Members and lag are
those of share groups; of other groups only type and state are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kshare.addresses import Address
from kshare.client_properties import NO_PROPERTIES, Properties
from kshare.commands.groups.group_requests import DESCRIBE_TIMEOUT_S, GROUP_COORDINATOR, SHARE, list_groups
from kshare.kafka_connection import KafkaConnection, connect_to_any
from kshare_wire.generated.requests.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.share_group_describe import ShareGroupDescribeRequest
from kshare_wire.generated.responses.describe_share_group_offsets import DescribeShareGroupOffsetsResponseGroup
from kshare_wire.generated.responses.share_group_describe import DescribedGroup

GROUPS_PER_REQUEST = 100


class TopicLag(NamedTuple):
    """The lag of a group in one topic; `unknown` counts the partitions whose lag the cluster does not know."""

    topic: str
    partitions: int
    lag: int
    unknown: int


class GroupOverview(NamedTuple):
    """A group; `members` and `topics` are None if it is no share group, or the cluster did not say."""

    group_id: str
    kind: str
    state: str
    members: int | None = None
    client_ids: tuple[str, ...] = ()
    topics: tuple[TopicLag, ...] | None = None

    @property
    def lag(self) -> int | None:
        """The records that are not processed yet in all partitions with a known lag; None if none is known."""
        known = [topic.lag for topic in self.topics or () if topic.unknown < topic.partitions]
        return sum(known) if known else None


def read_overviews(bootstrap: str, properties: Properties = NO_PROPERTIES) -> list[GroupOverview]:
    """All groups, by id. CommandFailed if the cluster cannot be reached; a group's own error leaves its fields None."""
    listed = list_groups(bootstrap, properties)
    names = [group.group_id for group in listed if group.group_type.lower() == SHARE]
    described: dict[str, DescribedGroup] = {}
    lags: dict[str, tuple[TopicLag, ...]] = {}
    for address, batch in _by_coordinator(bootstrap, names, properties):
        with KafkaConnection(address, timeout_s=DESCRIBE_TIMEOUT_S, properties=properties) as connection:
            answer = connection.call(ShareGroupDescribeRequest(group_ids=batch), version=1)
            described.update({group.group_id: group for group in answer.groups if not group.error_code})
            wanted = [DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None) for name in batch]
            offsets = connection.call(DescribeShareGroupOffsetsRequest(groups=wanted), version=1)
            lags.update({group.group_id: _lags(group) for group in offsets.groups if not group.error_code})
    found = []
    for group in listed:
        name = str(group.group_id)
        one = GroupOverview(name, group.group_type or group.protocol_type, group.group_state, topics=lags.get(name))
        if name in described:
            members = described[name].members
            clients = tuple(sorted({str(member.client_id) for member in members}))
            one = one._replace(members=len(members), client_ids=clients)
        found.append(one)
    return found


def _by_coordinator(
    bootstrap: str, names: Sequence[str], properties: Properties
) -> Iterator[tuple[Address, tuple[str, ...]]]:
    """Batches of groups with the coordinator of each; groups without one at the moment are left out."""
    for at in range(0, len(names), GROUPS_PER_REQUEST):
        keys = tuple(names[at : at + GROUPS_PER_REQUEST])
        request = FindCoordinatorRequest(key_type=GROUP_COORDINATOR, coordinator_keys=keys)
        with connect_to_any(bootstrap, properties=properties) as connection:
            coordinators = connection.call(request, version=4).coordinators
        batches: dict[Address, list[str]] = {}
        for one in coordinators:
            if not one.error_code:
                batches.setdefault(Address(one.host, one.port), []).append(one.key)
        yield from ((address, tuple(batch)) for address, batch in batches.items())


def _lags(group: DescribeShareGroupOffsetsResponseGroup) -> tuple[TopicLag, ...]:
    return tuple(
        TopicLag(
            topic=str(topic.topic_name),
            partitions=len(topic.partitions),
            lag=sum(max(int(partition.lag), 0) for partition in topic.partitions),
            unknown=sum(partition.lag < 0 for partition in topic.partitions),
        )
        for topic in group.topics
    )
