"""The cluster over the Kafka protocol, as one principal: the signed-in user, or anonymous without SASL.

Gateways judge every request by that principal's ACLs, so the console has no rules of its own for what a user may see.
Connections are kept; requests to different brokers are under way at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kshare_console import refusal
from kshare_core.security.acls import Operation
from kshare_upstream.cluster import Cluster
from kshare_upstream.connection import ConnectionLost, NotServed
from kshare_upstream.list_offsets import offsets_at_broker
from kshare_upstream.partition_log import OutcomeUnknown, PartitionLog, Refused
from kshare_upstream.port import LeaderUnknown, UpstreamPartitionName
from kshare_upstream.sasl import AuthenticationFailed
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_cluster import DescribeClusterRequest
from kshare_wire.generated.requests.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kshare_wire.generated.requests.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kshare_wire.generated.requests.list_groups import ListGroupsRequest
from kshare_wire.generated.requests.metadata import MetadataRequest, MetadataRequestTopic
from kshare_wire.generated.requests.share_group_describe import ShareGroupDescribeRequest
from kshare_wire.generated.responses.describe_configs import DescribeConfigsResourceResult
from kshare_wire.generated.responses.list_groups import ListedGroup
from kshare_wire.generated.responses.metadata import MetadataResponse, MetadataResponseTopic
from kshare_wire.generated.responses.share_group_describe import DescribedGroup
from kshare_wire.messages import Request, Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GROUP_COORDINATOR = 0
TOPIC_CONFIGS, GROUP_CONFIGS = 2, 32
SET, DELETE = 0, 1
SHARE = "share"
GROUPS_PER_REQUEST = 100
READ_DEADLINE_MS = 5_000
SHARE_GROUP_DESCRIBE, DESCRIBE_SHARE_GROUP_OFFSETS = VersionRange(1, 1), VersionRange(1, 1)
LIST_GROUPS, FIND_COORDINATOR, METADATA = VersionRange(5, 5), VersionRange(4, 4), VersionRange(9, 12)
DESCRIBE_CONFIGS, ALTER_CONFIGS, DESCRIBE_CLUSTER = VersionRange(1, 4), VersionRange(1, 1), VersionRange(0, 1)

AResponse = TypeVar("AResponse", bound=Response)


class ShareOffset(NamedTuple):
    """A share group's start offset in one partition; -1 for a `start_offset` not yet set, or an unknown `lag`."""

    topic: str
    topic_id: bytes
    partition: int
    start_offset: int
    lag: int


class ClusterClient:
    """See the module docstring. Every method raises Refusal."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def close(self) -> None:
        await self._cluster.close()

    async def sign_in(self) -> None:
        """Connects; a Refusal 401 if the cluster does not accept the user."""
        async with _refusing("connecting"):
            await self._cluster.describe([])

    # The cluster and its topics

    async def cluster_id(self) -> str:
        async with _refusing("describing the cluster"):
            return (await self._cluster.describe([])).cluster_id or ""

    async def may(self, operation: Operation) -> bool:
        """Whether the principal has an operation on the cluster."""
        request = DescribeClusterRequest(include_cluster_authorized_operations=True)
        answer = await self._ask_any(request, DESCRIBE_CLUSTER, "describing the cluster")
        refusal.check(answer.error_code, "describing the cluster", answer.error_message)
        return _allows(answer.cluster_authorized_operations, operation)

    async def topics(self, names: Sequence[str] | None = None) -> list[MetadataResponseTopic]:
        """The topics that the principal may describe, with what it may do to them; all of them without `names`."""
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        answer: MetadataResponse = await self._ask_any(
            MetadataRequest(
                topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=names is not None
            ),
            METADATA,
            "describing topics",
        )
        return sorted(answer.topics, key=lambda topic: str(topic.name))

    async def topic(self, name: str) -> MetadataResponseTopic:
        (found,) = await self.topics([name])
        refusal.check(found.error_code, f"topic {name}")
        return found

    async def check_topic(self, name: str, operation: Operation) -> MetadataResponseTopic:
        """The topic; Refusal 403 if the principal lacks the operation on it."""
        found = await self.topic(name)
        if not _allows(found.topic_authorized_operations, operation):
            raise refusal.forbidden(f"you need {operation.name} on topic {name}")
        return found

    async def end_offsets(self, topic: str, partitions: Iterable[int], timestamp: int) -> dict[int, int]:
        """Offsets at EARLIEST_TIMESTAMP or LATEST_TIMESTAMP; partitions without a leader are left out."""
        async with _refusing(f"looking up offsets of {topic}"):
            by_leader: dict[int, list[UpstreamPartitionName]] = {}
            for partition in partitions:
                at = UpstreamPartitionName(topic, partition)
                try:
                    by_leader.setdefault(await self._cluster.leader_of(at), []).append(at)
                except LeaderUnknown:
                    continue
            answers = await asyncio.gather(
                *(offsets_at_broker(self._cluster, node, names, timestamp) for node, names in by_leader.items())
            )
        return {at.partition: offset for answer in answers for at, offset in answer.items()}

    def log(self, topic: str, partition: int) -> PartitionLog:
        """The partition's log, to be read within `reading`."""
        return PartitionLog(
            self._cluster, UpstreamPartitionName(topic, partition), deadline_ms=READ_DEADLINE_MS, read_purpose="records"
        )

    # Groups

    async def list_groups(self) -> list[ListedGroup]:
        """All share groups that the principal may describe, by id; groups of ordinary consumers have no page."""
        async with _refusing("listing groups"):
            brokers = (await self._cluster.describe([])).brokers
            request = ListGroupsRequest(types_filter=[SHARE])
            answers = await asyncio.gather(*(self._cluster.ask_broker(node, request, LIST_GROUPS) for node in brokers))
        for answer in answers:
            refusal.check(answer.error_code, "listing groups")
        found = {group.group_id: group for answer in answers for group in answer.groups}
        return [found[name] for name in sorted(found)]

    async def describe_groups(self, names: Sequence[str]) -> dict[str, DescribedGroup]:
        """Share groups by id; those that have an error code are left out."""
        found: dict[str, DescribedGroup] = {}
        for node, batch in await self._by_coordinator(names):
            request = ShareGroupDescribeRequest(group_ids=batch)
            answer = await self._ask(node, request, SHARE_GROUP_DESCRIBE, "describing groups")
            found |= {group.group_id: group for group in answer.groups if not group.error_code}
        return found

    async def describe_group(self, name: str) -> DescribedGroup:
        """A share group with its members, and what the principal may do to it."""
        node = await self.coordinator_of(name)
        request = ShareGroupDescribeRequest(group_ids=[name], include_authorized_operations=True)
        answer = await self._ask(node, request, SHARE_GROUP_DESCRIBE, f"group {name}")
        (group,) = answer.groups
        refusal.check(group.error_code, f"group {name}", group.error_message)
        return group

    async def check_group(self, name: str, operation: Operation) -> DescribedGroup:
        """The group; Refusal 403 if the principal lacks the operation on it."""
        found = await self.describe_group(name)
        if not _allows(found.authorized_operations, operation):
            raise refusal.forbidden(f"you need {operation.name} on group {name}")
        return found

    async def share_offsets(
        self, names: Sequence[str], *, topic: str | None = None, partition: int = 0
    ) -> dict[str, list[ShareOffset]]:
        """Start offsets and lags of groups, or of one partition; groups that have an error code are left out."""
        wanted = None
        if topic is not None:
            wanted = [DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[partition])]
        found: dict[str, list[ShareOffset]] = {}
        for node, batch in await self._by_coordinator(names):
            groups = [DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=wanted) for name in batch]
            request = DescribeShareGroupOffsetsRequest(groups=groups)
            answer = await self._ask(node, request, DESCRIBE_SHARE_GROUP_OFFSETS, "describing offsets")
            for group in answer.groups:
                if group.error_code and len(names) == 1:
                    refusal.check(group.error_code, f"offsets of group {group.group_id}", group.error_message)
                if group.error_code:
                    continue
                found[group.group_id] = [
                    ShareOffset(each.topic_name, each.topic_id, one.partition_index, one.start_offset, one.lag)
                    for each in group.topics
                    for one in each.partitions
                    if not one.error_code
                ]
        return found

    async def coordinator_of(self, name: str) -> int:
        """The broker that coordinates the group."""
        found = await self._coordinators([name])
        if not found:
            raise refusal.unavailable(f"group {name} has no coordinator at the moment; try again")
        return found[name]

    async def _by_coordinator(self, names: Sequence[str]) -> list[tuple[int, list[str]]]:
        """Batches of groups with the coordinator of each; groups without one at the moment are left out."""
        batches: list[tuple[int, list[str]]] = []
        for at in range(0, len(names), GROUPS_PER_REQUEST):
            by_node: dict[int, list[str]] = {}
            for name, node in (await self._coordinators(names[at : at + GROUPS_PER_REQUEST])).items():
                by_node.setdefault(node, []).append(name)
            batches += by_node.items()
        return batches

    async def _coordinators(self, names: Sequence[str]) -> dict[str, int]:
        if not names:
            return {}
        request = FindCoordinatorRequest(key_type=GROUP_COORDINATOR, coordinator_keys=list(names))
        answer = await self._ask_any(request, FIND_COORDINATOR, "finding coordinators")
        for one in answer.coordinators:
            if one.error_code and len(names) == 1:
                refusal.check(one.error_code, f"coordinator of group {one.key}", one.error_message)
        return {one.key: one.node_id for one in answer.coordinators if not one.error_code}

    # Configs

    async def configs(
        self, kind: int, names: Sequence[str], keys: Sequence[str] | None = None
    ) -> dict[str, Sequence[DescribeConfigsResourceResult]]:
        """Configs by resource; resources that have an error code are left out."""
        resources = [
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys) for name in names
        ]
        request = DescribeConfigsRequest(resources=resources)
        answer = await self._ask_any(request, DESCRIBE_CONFIGS, "describing configs")
        return {result.resource_name: result.configs for result in answer.results if not result.error_code}

    async def alter_group_configs(self, name: str, changes: Mapping[str, str | None], *, dry_run: bool) -> None:
        """Sets configs of a group; None resets one. With `dry_run` they are only validated."""
        entries = [
            AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
            for key, value in changes.items()
        ]
        resource = AlterConfigsResource(resource_type=GROUP_CONFIGS, resource_name=name, configs=entries)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry_run)
        answer = await self._ask_any(request, ALTER_CONFIGS, "altering configs")
        for result in answer.responses:
            refusal.check(result.error_code, f"configs of group {name}", result.error_message)

    # Requests

    async def _ask_any(self, request: Request[AResponse], served: VersionRange, what: str) -> AResponse:
        async with _refusing(what):
            return await self._cluster.ask_any(request, served)

    async def _ask(self, node: int, request: Request[AResponse], served: VersionRange, what: str) -> AResponse:
        async with _refusing(what):
            return await self._cluster.ask_broker(node, request, served)


def _allows(bits: int, operation: Operation) -> bool:
    """Whether authorized operations (KIP-430) have the operation; none of them if the gateway did not say."""
    return bits >= 0 and bool(bits & (1 << operation))


@asynccontextmanager
async def _refusing(what: str) -> AsyncIterator[None]:
    """Turns failures of the connection and of the cluster into a Refusal."""
    try:
        yield
    except AuthenticationFailed as error:
        raise refusal.Refusal(401, "SASL_AUTHENTICATION_FAILED", str(error)) from None
    except Refused as error:
        raise refusal.of_kafka(error.code, what, str(error)) from None
    except (ConnectionLost, NotServed, OutcomeUnknown, LeaderUnknown) as error:
        raise refusal.unavailable(f"{what}: {error}") from None


reading = _refusing
"""The context within which a log is read."""
