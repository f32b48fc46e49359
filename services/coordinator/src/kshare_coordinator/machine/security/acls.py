"""CreateAcls and DeleteAcls, validated as in AclControlManager of Kafka 4.3.1.

An ACL that exists already is created once more without an error. Each filter of several is told all ACLs that it
matches, also those that an earlier one deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog.budget import CatalogBudget
from kshare_coordinator.machine.catalog.nodes import next_version
from kshare_coordinator.machine.commands import AlterAcls, CatalogChanged, Effect
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState, security_key
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import (
    CLUSTER_NAME,
    AclFilter,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
    is_known,
)
from kshare_rpc.generated.kshare.v1 import security_pb2 as pb
from kshare_runtime.machine import Decision

CHANGED_ACLS_LIMIT = 10_000
"""ACLs that one request creates or deletes, as QuorumController.MAX_RECORDS_PER_USER_OP."""
COMPARED_ACLS_LIMIT = 2_000_000
"""Comparisons of a filter with an ACL in one request; they take about a second of the active coordinator."""
TOLD_ACLS_LIMIT = 100_000
"""ACLs in one answer: several filters may match the same ones."""


@decides(AlterAcls)
def decide_alter_acls(
    state: CoordinatorState, command: AlterAcls, configs: Configs
) -> Decision[Record, pb.AlterAclsResponse, Effect]:
    request = command.request
    answer = pb.AlterAclsResponse(version=state.version)
    changed: dict[bytes, Record] = {}
    budget = CatalogBudget(state, configs)
    for acl in request.creations:
        try:
            _create(state, acl, budget, changed)
            answer.results.add()
        except KafkaError as error:
            answer.results.add(error_code=error.code, error_message=error.message)
    if request.filters:
        _delete(_AclIndex.of(state), request.filters, answer, changed)
    if len(changed) > CHANGED_ACLS_LIMIT:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    if not changed:
        return Decision((), answer)
    answer.version = state.version + 1
    return Decision([*changed.values(), next_version(state)], answer, (CatalogChanged(nodes=False),))


def filter_of(message: pb.AclFilter) -> AclFilter:
    return AclFilter(
        message.resource_type,
        message.resource_name if message.HasField("resource_name") else None,
        message.pattern_type,
        message.principal if message.HasField("principal") else None,
        message.host if message.HasField("host") else None,
        message.operation,
        message.permission_type,
    )


def _create(state: CoordinatorState, acl: pb.Acl, budget: CatalogBudget, changed: dict[bytes, Record]) -> None:
    problem = _problem(acl)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)
    key = pb.SecurityKey(acl=acl)
    encoded = security_key(key)
    if encoded in state.security or encoded in changed:
        return
    budget.take(0, len(encoded))
    changed[encoded] = records.security(key, pb.SecurityValue())


def _problem(acl: pb.Acl) -> str | None:
    """Why Kafka refuses to create the ACL, in words of AclControlManager.validateNewAcl; None if it does not."""
    if not is_known(acl):
        return "The ACL has a number that is not known"
    if acl.resource_type <= ResourceType.ANY:
        return f"Invalid resourceType {ResourceType(acl.resource_type).name}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {PatternType(acl.pattern_type).name}"
    if acl.operation <= Operation.ANY:
        return f"Invalid operation {Operation(acl.operation).name}"
    if acl.permission_type not in (PermissionType.ALLOW, PermissionType.DENY):
        return f"Invalid permissionType {PermissionType(acl.permission_type).name}"
    if not acl.resource_name:
        return "Resource name should not be empty"
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if ":" not in acl.principal:
        text = "no colon is present separating the principal type from the principal name"
        return f"Could not parse principal from `{acl.principal[:300]}` ({text})"
    return None


def _delete(
    acls: _AclIndex, filters: Iterable[pb.AclFilter], answer: pb.AlterAclsResponse, changed: dict[bytes, Record]
) -> None:
    """KafkaError INVALID_REQUEST if the filters match more than the limit (BoundedListTooLongException).

    POLICY_VIOLATION if there is more to compare than the coordinator has time for.
    """
    told = compared = 0
    for each in filters:
        wanted = filter_of(each)
        deleted = answer.results.add().deleted
        candidates = acls.candidates(wanted)
        compared += len(candidates)
        if compared > COMPARED_ACLS_LIMIT:
            text = "The filters need too many comparisons: send fewer at once, or filters with a name and a principal"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, text)
        for encoded, key in candidates:
            if not wanted.matches(key.acl):
                continue
            changed[encoded] = records.security(key, None)
            deleted.append(key.acl)
            told += 1
            if len(changed) > CHANGED_ACLS_LIMIT or told > TOLD_ACLS_LIMIT:
                text = f"The filters match more than {CHANGED_ACLS_LIMIT} ACLs, which one request may delete"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)


_Row = tuple[bytes, pb.SecurityKey]


class _AclIndex(NamedTuple):
    """All ACLs, and those of each resource name and principal: a request has many filters, mostly for one of each."""

    every: list[_Row]
    by_name: Mapping[str, list[_Row]]
    by_principal: Mapping[str, list[_Row]]

    @staticmethod
    def of(state: CoordinatorState) -> _AclIndex:
        every = [(encoded, entry.key) for encoded, entry in state.security.items() if entry.key.HasField("acl")]
        by_name: dict[str, list[_Row]] = {}
        by_principal: dict[str, list[_Row]] = {}
        for row in every:
            by_name.setdefault(row[1].acl.resource_name, []).append(row)
            by_principal.setdefault(row[1].acl.principal, []).append(row)
        return _AclIndex(every, by_name, by_principal)

    def candidates(self, wanted: AclFilter) -> list[_Row]:
        """Those that the filter may match."""
        found = self.every
        if wanted.resource_name is not None and wanted.pattern_type != PatternType.MATCH:
            found = self.by_name.get(wanted.resource_name, [])
        if wanted.principal is not None:
            found = min(found, self.by_principal.get(wanted.principal, []), key=len)
        return found
