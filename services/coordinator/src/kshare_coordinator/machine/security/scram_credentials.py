"""AlterUserScramCredentials: the salted credentials of users, as in ScramControlManager of Kafka 4.3.1.

The gateway checked mechanism and iterations, and derived the keys. A user who is named several times has one result,
that of the first error.
"""

from __future__ import annotations

from kshare_coordinator.machine import records
from kshare_coordinator.machine.catalog.budget import CatalogBudget
from kshare_coordinator.machine.catalog.nodes import next_version
from kshare_coordinator.machine.commands import AlterUserScramCredentials, CatalogChanged, Effect
from kshare_coordinator.machine.deciding import decides
from kshare_coordinator.machine.records import Record
from kshare_coordinator.machine.state import CoordinatorState, security_key
from kshare_core.configs import Configs
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import security_pb2 as pb
from kshare_runtime.machine import Decision

Alteration = pb.AlterUserScramCredentialsRequest.Alteration


@decides(AlterUserScramCredentials)
def decide_alter_user_scram_credentials(
    state: CoordinatorState, command: AlterUserScramCredentials, configs: Configs
) -> Decision[Record, pb.AlterUserScramCredentialsResponse, Effect]:
    answer = pb.AlterUserScramCredentialsResponse(version=state.version)
    by_user: dict[str, list[Alteration]] = {}
    for alteration in command.request.alterations:
        by_user.setdefault(alteration.user.name, []).append(alteration)
    budget, changed = CatalogBudget(state, configs), list[Record]()
    for name, alterations in by_user.items():
        try:
            changed += [_record(state, alteration, budget) for alteration in alterations]
            answer.results.add(user=name)
        except KafkaError as error:
            answer.results.add(user=name, error_code=error.code, error_message=error.message)
    if not changed:
        return Decision((), answer)
    answer.version = state.version + 1
    return Decision([*changed, next_version(state)], answer, (CatalogChanged(nodes=False),))


def _record(state: CoordinatorState, alteration: Alteration, budget: CatalogBudget) -> Record:
    key = pb.SecurityKey(scram_user=alteration.user)
    before = state.security.get(security_key(key))
    if not alteration.HasField("credential"):
        if before is None:
            text = "Attempt to delete a user credential that does not exist"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
        return records.security(key, None)
    value = pb.SecurityValue(scram_credential=alteration.credential)
    budget.take(before.ByteSize() if before else 0, key.ByteSize() + value.ByteSize())
    return records.security(key, value)
