"""ACL bindings and filters with Kafka's numbers (org.apache.kafka.common.acl and .resource of 4.3.1)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol


class ResourceType(IntEnum):
    """ResourceType; ANY is for filters only."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """PatternType; ANY and MATCH are for filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """AclOperation; ANY is for filters only, ALL stands for every other one."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(IntEnum):
    """AclPermissionType; ANY is for filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""
WILDCARD = "*"
"""As the name of a literal pattern, as a principal's name and as a host: all of them."""
ANY_USER = "User:*"


class Binding(Protocol):
    """The seven fields of an ACL, as a message or a tuple has them."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def pattern_type(self) -> int: ...
    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


class AclFilter(NamedTuple):
    """AclBindingFilter: an absent text and ANY match everything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def matches(self, acl: Binding) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission_type in (PermissionType.ANY, acl.permission_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._matches_name(acl)
        )

    def _matches_name(self, acl: Binding) -> bool:
        """ResourcePatternFilter: MATCH takes every pattern that applies to the resource of this name."""
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, WILDCARD)


def is_known(acl: Binding | AclFilter) -> bool:
    """False for a number that Kafka 4.3.1 does not know (isUnknown of its bindings and filters)."""
    return (
        ResourceType.UNKNOWN < acl.resource_type <= ResourceType.USER
        and PatternType.UNKNOWN < acl.pattern_type <= PatternType.PREFIXED
        and Operation.UNKNOWN < acl.operation <= Operation.TWO_PHASE_COMMIT
        and PermissionType.UNKNOWN < acl.permission_type <= PermissionType.ALLOW
    )
