"""AlterClientQuotas, as in ClientQuotaControlManager of Kafka 4.3.1; each entity changes as a whole or not at all."""

from __future__ import annotations

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog.budget import CatalogBudget
from kshare_coordinator.machine.catalog.nodes import next_version
from kshare_coordinator.machine.commands import AlterClientQuotas, CatalogChanged, Effect
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState, security_key
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.client_quotas import INTEGER_QUOTAS, quotas_of_types
from kshare_rpc.generated.kshare.v1 import security_pb2 as pb
from kshare_runtime.machine import Decision

Entry = pb.AlterClientQuotasRequest.Entry


@decides(AlterClientQuotas)
def decide_alter_client_quotas(
    state: CoordinatorState, command: AlterClientQuotas, configs: Configs
) -> Decision[Record, pb.AlterClientQuotasResponse, Effect]:
    request = command.request
    answer = pb.AlterClientQuotasResponse(version=state.version)
    budget, changed = CatalogBudget(state, configs), list[Record]()
    seen: set[bytes] = set()
    for entry in request.entries:
        try:
            key = pb.SecurityKey(quota_entity=entry.entity)
            if security_key(key) in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "An entity may be given only once in a request")
            seen.add(security_key(key))
            changed += _altered(state, entry, key, budget)
            answer.results.add()
        except KafkaError as error:
            answer.results.add(error_code=error.code, error_message=error.message)
    if request.validate_only or not changed:
        return Decision((), answer)
    answer.version = state.version + 1
    return Decision([*changed, next_version(state)], answer, (CatalogChanged(nodes=False),))


def _altered(state: CoordinatorState, entry: Entry, key: pb.SecurityKey, budget: CatalogBudget) -> list[Record]:
    """The new row of an entity; none where nothing changes."""
    types = frozenset(field.name for field, _ in entry.entity.ListFields())
    allowed = quotas_of_types(types)
    before = state.security.get(security_key(key))
    values = dict(before.value.client_quotas.values) if before else {}
    for op in entry.ops:
        if not op.HasField("value"):
            values.pop(op.key, None)
            continue
        if op.key not in allowed:
            text = f"Invalid configuration key {op.key[:300]}; allowed are {', '.join(sorted(allowed))}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        _check(op.key, op.value)
        values[op.key] = op.value
    if not values:
        return [records.security(key, None)] if before else []
    value = pb.SecurityValue(client_quotas=pb.ClientQuotas(values=values))
    if before is not None and before.value == value:
        return []
    budget.take(before.ByteSize() if before else 0, key.ByteSize() + value.ByteSize())
    return [records.security(key, value)]


def _check(name: str, value: float) -> None:
    """ClientQuotaControlManager.validateQuotaKeyValue."""
    if not value > 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Quota {name} must be greater than 0")
    highest = INTEGER_QUOTAS.get(name)
    if highest is not None and (value > float(highest) or value % 1 > 1e-6):
        text = f"Quota {name} must be a whole number of at most {highest}, found {value}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
