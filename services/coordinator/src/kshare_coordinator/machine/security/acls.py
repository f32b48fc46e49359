"""CreateAcls and DeleteAcls, validated as in AclControlManager of Kafka 4.3.1.

An ACL that exists already is created once more without an error. A filter of several may match ACLs that an earlier one
deleted; each is told for the first filter only.
"""

from __future__ import annotations

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
    for each in request.filters:
        answer.results.add(deleted=_delete(state, filter_of(each), changed))
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


def _delete(state: CoordinatorState, wanted: AclFilter, changed: dict[bytes, Record]) -> list[pb.Acl]:
    found = []
    for encoded, entry in state.security.items():
        if entry.key.HasField("acl") and encoded not in changed and wanted.matches(entry.key.acl):
            changed[encoded] = records.security(entry.key, None)
            found.append(entry.key.acl)
    return found
