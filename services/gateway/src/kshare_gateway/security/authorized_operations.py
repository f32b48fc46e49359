"""Authorized operations of groups, topics and the cluster (KIP-430): bit `1 << code` for each AclOperation.

Without an authorizer a client may do all that a resource supports (AclEntry.supportedOperations), which is what Kafka
4.3.1 answers without one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kshare_core.security.acls import CLUSTER_NAME, Operation, ResourceType

if TYPE_CHECKING:
    from kshare_gateway.request_context import RequestContext

UNKNOWN = -(1 << 31)
"""The client did not ask for them, or the resource does not exist."""

SUPPORTED = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


def _bits(operations: Iterable[Operation]) -> int:
    return sum(1 << operation for operation in operations)


_ALL = {kind: _bits(operations) for kind, operations in SUPPORTED.items()}


def of_topic(context: RequestContext, name: str) -> int:
    return _of(context, ResourceType.TOPIC, name)


def of_group(context: RequestContext, group_id: str, *, is_asked: bool) -> int:
    """UNKNOWN if the client did not ask, or the group does not exist."""
    return _of(context, ResourceType.GROUP, group_id) if is_asked else UNKNOWN


def of_cluster(context: RequestContext) -> int:
    """0 for a client that may not describe the cluster."""
    if not context.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return _of(context, ResourceType.CLUSTER, CLUSTER_NAME)


def _of(context: RequestContext, kind: ResourceType, name: str) -> int:
    if context.gateway.authorizer is None:
        return _ALL[kind]
    return _bits(operation for operation in SUPPORTED[kind] if context.may(operation, kind, name))
