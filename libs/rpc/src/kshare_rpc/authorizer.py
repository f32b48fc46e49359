"""The authorizer: it decides by the catalog's ACLs what a principal may do, as Kafka 4.3.1's StandardAuthorizer.

- `super.users` may do everything.
- A DENY that matches wins over every ALLOW.
- ALLOW of READ, WRITE, DELETE or ALTER implies DESCRIBE, and ALLOW of ALTER_CONFIGS implies DESCRIBE_CONFIGS.
- A resource without any ACL is closed, unless `allow.everyone.if.no.acl.found` is true.
- Hosts are compared as addresses: ::1 and 0:0:0:0:0:0:0:1 are the same. ACLs are shown with the text that they have.

A gateway asks it about every request, with the ACLs of the newest catalog view: a change has an effect at every gateway
without a restart. A coordinator asks it which topics a regular expression finds for a client. Decisions are remembered
until the ACLs change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kshare_core.configs import Configs
from kshare_core.security.acls import ANY_USER, WILDCARD, Operation, PatternType, PermissionType, ResourceType
from kshare_core.security.addresses import address_text
from kshare_rpc.generated.kshare.v1.security_pb2 import Acl, SecurityEntry

REMEMBERED_DECISIONS = 50_000
"""Decisions kept; a name may have as many bytes as a request."""
REMEMBERED_NAME_LENGTH = 300
ANY_NAME = "hardcode"
"""The name that stands for those without an ACL; it is Kafka's (Authorizer.authorizeByResourceType)."""
_IMPLYING = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
Decision = tuple[str, str, Operation, ResourceType, str]
SecurityRows = Mapping[bytes, SecurityEntry]


class _Rule(NamedTuple):
    """An ACL, and its host as `address_text` writes it."""

    acl: Acl
    host: str

    def is_about(self, principal: str, host: str) -> bool:
        return self.acl.principal in (principal, ANY_USER) and self.host in (host, WILDCARD)


@dataclass(slots=True)
class _Patterns:
    """The ACLs of one resource type by their names."""

    literal: dict[str, list[_Rule]] = field(default_factory=dict)
    prefixed: dict[str, list[_Rule]] = field(default_factory=dict)
    prefix_lengths: set[int] = field(default_factory=set)

    def add(self, acl: Acl) -> None:
        rule = _Rule(acl, address_text(acl.host))
        if acl.pattern_type == PatternType.PREFIXED:
            self.prefixed.setdefault(acl.resource_name, []).append(rule)
            self.prefix_lengths.add(len(acl.resource_name))
        else:
            self.literal.setdefault(acl.resource_name, []).append(rule)

    def of(self, name: str) -> Iterator[_Rule]:
        """The ACLs whose pattern matches the name."""
        yield from self.literal.get(name, ())
        if name != WILDCARD:
            yield from self.literal.get(WILDCARD, ())
        for length in self.prefix_lengths:
            if length <= len(name):
                yield from self.prefixed.get(name[:length], ())

    def all(self) -> Iterator[_Rule]:
        for table in (self.literal, self.prefixed):
            for rules in table.values():
                yield from rules


class Authorizer:
    """See the module docstring; `rows` returns the newest security rows, another mapping after each change."""

    def __init__(
        self, rows: Callable[[], SecurityRows], *, super_users: Iterable[str] = (), is_open_without_acls: bool = False
    ) -> None:
        self._super_users = frozenset(super_users)
        self.is_open_without_acls = is_open_without_acls
        """Whether everybody may use a resource without any ACL."""
        self._rows = rows
        self._indexed: SecurityRows | None = None
        self._patterns: dict[int, _Patterns] = {}
        self._decisions: dict[Decision, bool] = {}

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether a principal ("User:name") from a host (an `address_text`) may do that with the resource."""
        self._follow()
        question = (principal, host, operation, kind, name)
        found = self._decisions.get(question)
        if found is None:
            found = self._decide(principal, host, operation, kind, name)
            if len(name) <= REMEMBERED_NAME_LENGTH:
                if len(self._decisions) >= REMEMBERED_DECISIONS:
                    self._decisions.clear()
                self._decisions[question] = found
        return found

    def allows_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether it may do that with at least one resource of this type (Authorizer.authorizeByResourceType).

        An ALLOW counts unless a DENY covers every name that it matches. As in Kafka, what is allowed without an ACL is
        asked of one name only: an ACL that matches it, such as one of another principal for all names, closes it.
        """
        if self.allows(principal, host, operation, kind, ANY_NAME):
            return True
        patterns = self._patterns.get(kind, _Patterns())
        denied: list[Acl] = []
        allowed: list[Acl] = []
        for rule in patterns.all():
            if rule.is_about(principal, host):
                acl = rule.acl
                if acl.permission_type == PermissionType.DENY and acl.operation in (operation, Operation.ALL):
                    denied.append(acl)
                elif acl.permission_type == PermissionType.ALLOW and acl.operation in (operation, Operation.ALL):
                    allowed.append(acl)
        if any(_covers_all(acl) for acl in denied):
            return False
        return any(not any(_dominates(no, yes) for no in denied) for yes in allowed)

    def acls(self) -> Iterator[Acl]:
        """All ACLs."""
        self._follow()
        for patterns in self._patterns.values():
            for rule in patterns.all():
                yield rule.acl

    def _follow(self) -> None:
        rows = self._rows()
        if rows is self._indexed:
            return
        self._indexed, self._patterns = rows, {}
        self._decisions.clear()
        for entry in rows.values():
            if entry.key.HasField("acl"):
                self._patterns.setdefault(entry.key.acl.resource_type, _Patterns()).add(entry.key.acl)

    def _decide(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        if principal in self._super_users:
            return True
        implying = _IMPLYING.get(operation, frozenset())
        has_acls = is_allowed = False
        for rule in self._patterns.get(kind, _Patterns()).of(name):
            has_acls = True
            if not rule.is_about(principal, host):
                continue
            acl = rule.acl
            if acl.permission_type == PermissionType.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return False
            elif acl.operation in (operation, Operation.ALL) or acl.operation in implying:
                is_allowed = True
        return is_allowed or (not has_acls and self.is_open_without_acls)


def configured_authorizer(configs: Configs, rows: Callable[[], SecurityRows]) -> Authorizer | None:
    """The authorizer of `authorizer.class.name`; None if none is set, so that everything is allowed."""
    return _authorizer_of(configs, rows) if configs.text("authorizer.class.name") else None


def authorizer_without_acls(configs: Configs) -> Authorizer:
    """Stands for the authorizer of an existing cluster, which is asked as each client (`ClientPermissions`)."""
    return _authorizer_of(configs, dict)


def _authorizer_of(configs: Configs, rows: Callable[[], SecurityRows]) -> Authorizer:
    names = [name.strip() for name in configs.text("super.users").split(";")]
    return Authorizer(
        rows,
        super_users=filter(None, names),
        is_open_without_acls=configs.boolean("allow.everyone.if.no.acl.found"),
    )


def _covers_all(acl: Acl) -> bool:
    return acl.pattern_type == PatternType.LITERAL and acl.resource_name == WILDCARD


def _dominates(denied: Acl, allowed: Acl) -> bool:
    """Whether the DENY matches every name that the ALLOW matches."""
    if denied.pattern_type == PatternType.PREFIXED:
        return not _covers_all(allowed) and allowed.resource_name.startswith(denied.resource_name)
    is_literal = allowed.pattern_type == PatternType.LITERAL
    return is_literal and allowed.resource_name == denied.resource_name
