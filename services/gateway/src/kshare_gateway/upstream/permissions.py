"""The permissions of one client, by the answers of the cluster to that client.

Only the cluster knows the client, so it is asked on the client's own connection. It is asked again after
kshare.upstream.authorization.cache.ms.

| question | answer |
|---|---|
| topics and the cluster | Metadata with authorized operations (KIP-430) |
| Read on a group | Heartbeat of a member that does not exist; any broker checks the permission first |
| Describe on a group | FindCoordinator, which any broker answers |
| other operations on a group | DescribeGroups with authorized operations, from the group's coordinator |

Other brokers do not tell other operations on a group. There a client has them that may alter the cluster, since it can
give itself every permission.
Configs of groups are the cluster's where its groups have none (before Kafka 3.8).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from kshare_core.errors import ErrorCode
from kshare_core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kshare_gateway.gateway import loop_ms
from kshare_gateway.security.authorized_operations import SUPPORTED, UNKNOWN
from kshare_wire.api_versions import VersionRange
from kshare_wire.generated.requests.describe_groups import DescribeGroupsRequest
from kshare_wire.generated.requests.find_coordinator import FindCoordinatorRequest
from kshare_wire.generated.requests.heartbeat import HeartbeatRequest
from kshare_wire.generated.requests.metadata import MetadataRequest, MetadataRequestTopic
from kshare_wire.messages import Request

KNOWN_LIMIT = 20_000
"""Limit of the answers that are kept for one client."""
METADATA_WITH_OPERATIONS = VersionRange(8, 10)
HEARTBEAT, FIND_COORDINATOR, DESCRIBE_GROUPS = VersionRange(0, 4), VersionRange(1, 6), VersionRange(3, 5)
NO_MEMBER = "kshare-permission-check"
GROUP_KEY = 0
CONFIGS = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)


class Permission(NamedTuple):
    """An operation on a resource."""

    operation: Operation
    resource_type: ResourceType
    name: str


CLUSTER_KNOWN = Permission(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
Ask = Callable[[Request[Any], VersionRange], Awaitable[Any]]
"""Asks the cluster as the client."""


class ClientPermissions:
    """See the module docstring."""

    def __init__(self, ask: Ask, cache_ms: int) -> None:
        self._ask = ask
        self._cache_ms = cache_ms
        self._known: dict[Permission, tuple[bool, int]] = {}
        """The answer, and until when it holds."""
        self._missing: set[Permission] = set()

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do that; False, and noted as missing, where the cluster was not asked."""
        permission = Permission(operation, resource_type, name)
        known = self._known.get(permission)
        if known is None:
            self._missing.add(permission)
            return False
        return known[0]

    def take_missing(self) -> set[Permission]:
        """What was to be known since the last call, and was not."""
        missing, self._missing = self._missing, set()
        return missing

    def forget(self) -> None:
        """The client authenticates again."""
        self._known.clear()

    async def learn(self, wanted: Iterable[Permission]) -> None:
        """Asks the cluster for what is not known, or no longer."""
        now_ms = loop_ms()
        asked = [each for each in dict.fromkeys(wanted) if self._known.get(each, (False, 0))[1] <= now_ms]
        if not asked:
            return
        if len(self._known) + len(asked) > KNOWN_LIMIT:
            self._known.clear()
        topics = {each.name for each in asked if each.resource_type == ResourceType.TOPIC}
        groups = [each for each in asked if each.resource_type == ResourceType.GROUP]
        with_cluster = CLUSTER_KNOWN in asked or len(topics) + len(groups) < len(asked)
        if topics or with_cluster or any(each.operation not in _PROBED for each in groups):
            await self._learn_topics_and_cluster(topics)
        for each in groups:
            await self._learn_group(each)
        for each in asked:  # such as an operation that Kafka does not list for this kind of resource
            if each not in self._known:
                self._note(each, False)

    async def _learn_topics_and_cluster(self, topics: Iterable[str]) -> None:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        answer = await self._ask(request, METADATA_WITH_OPERATIONS)
        self._note_bits(ResourceType.CLUSTER, CLUSTER_NAME, answer.cluster_authorized_operations)
        for topic in answer.topics:
            bits = topic.topic_authorized_operations
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and bits == UNKNOWN:
                bits = 1 << Operation.DESCRIBE  # who may not describe it gets TOPIC_AUTHORIZATION_FAILED
            self._note_bits(ResourceType.TOPIC, topic.name, bits)

    async def _learn_group(self, wanted: Permission) -> None:
        group_id = wanted.name
        if wanted.operation == Operation.READ:
            beat = HeartbeatRequest(group_id=group_id, generation_id=-1, member_id=NO_MEMBER)
            code = (await self._ask(beat, HEARTBEAT)).error_code
            self._note(wanted, code != ErrorCode.GROUP_AUTHORIZATION_FAILED)
        elif wanted.operation == Operation.DESCRIBE:
            find = FindCoordinatorRequest(key=group_id, key_type=GROUP_KEY, coordinator_keys=[group_id])
            found = await self._ask(find, FIND_COORDINATOR)
            codes = [found.error_code, *(each.error_code for each in found.coordinators)]
            self._note(wanted, ErrorCode.GROUP_AUTHORIZATION_FAILED not in codes)
        else:
            await self._learn_other_operations(wanted)

    async def _learn_other_operations(self, wanted: Permission) -> None:
        describe = DescribeGroupsRequest(groups=[wanted.name], include_authorized_operations=True)
        (group,) = (await self._ask(describe, DESCRIBE_GROUPS)).groups
        bits = max(0, group.authorized_operations)
        if group.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._note(wanted, False)
            return
        of_cluster = wanted.operation if wanted.operation in CONFIGS else Operation.ALTER
        by_cluster = self._known[Permission(of_cluster, ResourceType.CLUSTER, CLUSTER_NAME)][0]
        needs_cluster = wanted.operation in CONFIGS or group.authorized_operations == UNKNOWN
        self._note(wanted, bool(bits >> wanted.operation & 1) or (needs_cluster and by_cluster))

    def _note_bits(self, resource_type: ResourceType, name: str, bits: int) -> None:
        for operation in SUPPORTED[resource_type]:
            allowed = bits != UNKNOWN and bool(bits >> operation & 1)
            self._note(Permission(operation, resource_type, name), allowed)

    def _note(self, permission: Permission, is_allowed: bool) -> None:
        self._known[permission] = (is_allowed, loop_ms() + self._cache_ms)


_PROBED = (Operation.READ, Operation.DESCRIBE)
"""The operations on a group that one request shows."""
