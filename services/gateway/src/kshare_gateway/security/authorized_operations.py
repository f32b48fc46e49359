"""Authorized operations of groups, topics and the cluster (KIP-430): bit `1 << code` for each AclOperation.

There is no authorizer, so a client may do all that a resource supports (AclEntry.supportedOperations), which is what
Kafka 4.3.1 answers without one.
"""

from __future__ import annotations

from collections.abc import Iterable

UNKNOWN = -(1 << 31)
"""The client did not ask for them, or the resource does not exist."""

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = range(3, 10)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(10, 13)


def _bits(operations: Iterable[int]) -> int:
    return sum(1 << operation for operation in operations)


ALL_OF_GROUP = _bits((_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS))
ALL_OF_TOPIC = _bits((_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS))
ALL_OF_CLUSTER = _bits(
    (_CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE)
)
