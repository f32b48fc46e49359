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

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kshare_core.errors import ErrorCode, KafkaError
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

    def known(self, permission: Permission) -> bool | None:
        """The cluster's answer; None if it was not asked, or too long ago."""
        is_allowed, until_ms = self._known.get(permission, _UNKNOWN)
        return is_allowed if until_ms > loop_ms() else None

    def forget(self) -> None:
        """The client authenticates again."""
        self._known.clear()

    async def learn(self, wanted: Iterable[Permission]) -> dict[Permission, bool]:
        """The answers for what is wanted; the cluster is asked for what is not known."""
        answers: dict[Permission, bool] = {}
        asked: list[Permission] = []
        for each in dict.fromkeys(wanted):
            if (known := self.known(each)) is None:
                asked.append(each)
            else:
                answers[each] = known
        if asked:
            learned = await self._ask_for(asked)
            if len(self._known) + len(learned) > KNOWN_LIMIT:
                self._known.clear()
            until_ms = loop_ms() + self._cache_ms
            self._known.update((permission, (is_allowed, until_ms)) for permission, is_allowed in learned.items())
            answers |= learned
        return answers

    async def _ask_for(self, asked: Sequence[Permission]) -> dict[Permission, bool]:
        """The cluster's answers for these, and for what it tells with them."""
        learned: dict[Permission, bool] = {}
        topics = {each.name for each in asked if each.resource_type == ResourceType.TOPIC}
        groups = [each for each in asked if each.resource_type == ResourceType.GROUP]
        with_cluster = CLUSTER_KNOWN in asked or len(topics) + len(groups) < len(asked)
        if topics or with_cluster or any(each.operation not in _PROBED for each in groups):
            learned |= await self._topics_and_cluster(topics)
        for each in groups:
            learned[each] = await self._on_group(each, learned)
        for each in asked:  # such as an operation that Kafka does not list for this kind of resource
            learned.setdefault(each, False)
        return learned

    async def _topics_and_cluster(self, topics: Iterable[str]) -> dict[Permission, bool]:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        answer = await self._ask(request, METADATA_WITH_OPERATIONS)
        learned = _of_bits(ResourceType.CLUSTER, CLUSTER_NAME, answer.cluster_authorized_operations)
        for topic in answer.topics:
            bits = topic.topic_authorized_operations
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and bits == UNKNOWN:
                bits = 1 << Operation.DESCRIBE  # who may not describe it gets TOPIC_AUTHORIZATION_FAILED
            learned |= _of_bits(ResourceType.TOPIC, topic.name, bits)
        return learned

    async def _on_group(self, wanted: Permission, learned: Mapping[Permission, bool]) -> bool:
        group_id = wanted.name
        if wanted.operation == Operation.READ:
            beat = HeartbeatRequest(group_id=group_id, generation_id=-1, member_id=NO_MEMBER)
            return _is_authorized(group_id, [(await self._ask(beat, HEARTBEAT)).error_code])
        if wanted.operation == Operation.DESCRIBE:
            find = FindCoordinatorRequest(key=group_id, key_type=GROUP_KEY, coordinator_keys=[group_id])
            found = await self._ask(find, FIND_COORDINATOR)
            return _is_authorized(group_id, [found.error_code, *(each.error_code for each in found.coordinators)])
        return await self._other_operation(wanted, learned)

    async def _other_operation(self, wanted: Permission, learned: Mapping[Permission, bool]) -> bool:
        describe = DescribeGroupsRequest(groups=[wanted.name], include_authorized_operations=True)
        (group,) = (await self._ask(describe, DESCRIBE_GROUPS)).groups
        bits = max(0, group.authorized_operations)
        if group.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            return False
        of_cluster = wanted.operation if wanted.operation in CONFIGS else Operation.ALTER
        by_cluster = learned[Permission(of_cluster, ResourceType.CLUSTER, CLUSTER_NAME)]
        needs_cluster = wanted.operation in CONFIGS or group.authorized_operations == UNKNOWN
        return bool(bits >> wanted.operation & 1) or (needs_cluster and by_cluster)


class RequestPermissions:
    """The client's permissions as one request sees them: an answer that it has seen holds until it ends."""

    def __init__(self, client: ClientPermissions) -> None:
        self._client = client
        self._seen: dict[Permission, bool] = {}
        self._missing: set[Permission] = set()

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do that; False, and noted as missing, where the cluster has to be asked."""
        permission = Permission(operation, resource_type, name)
        seen = self._seen.get(permission)
        if seen is None:
            seen = self._client.known(permission)
            if seen is None:
                self._missing.add(permission)
                return False
            self._seen[permission] = seen
        return seen

    def is_missing(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether `allows` could not say."""
        return Permission(operation, resource_type, name) in self._missing

    def take_missing(self) -> set[Permission]:
        """What was to be known since the last call, and was not."""
        missing, self._missing = self._missing, set()
        return missing

    async def learn(self, wanted: Iterable[Permission]) -> None:
        """Asks the cluster for what is not known."""
        self._seen |= await self._client.learn(wanted)


def _of_bits(resource_type: ResourceType, name: str, bits: int) -> dict[Permission, bool]:
    """The answers of a field with authorized operations."""
    return {
        Permission(operation, resource_type, name): bits != UNKNOWN and bool(bits >> operation & 1)
        for operation in SUPPORTED[resource_type]
    }


def _is_authorized(group_id: str, codes: Sequence[int]) -> bool:
    """What the codes of an answer say of the permission on the group; KafkaError, to try again, if nothing."""
    if ErrorCode.GROUP_AUTHORIZATION_FAILED in codes:
        return False
    failures = [code for code in codes if code not in _AFTER_AUTHORIZATION]
    if failures:
        text = f"The permissions on group {group_id} are not known now: a broker answered error {failures[0]}"
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
    return True


_AFTER_AUTHORIZATION = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    }
)
"""The codes of Heartbeat and FindCoordinator that brokers answer only to clients with the permission.

INVALID_REPLICATION_FACTOR: of a cluster that cannot create __consumer_offsets.
"""
_UNKNOWN = (False, -1)
_PROBED = (Operation.READ, Operation.DESCRIBE)
"""The operations on a group that one request shows."""
