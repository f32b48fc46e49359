"""ACLs, SCRAM credentials and client quotas as rows of the catalog: decisions, and the views that gateways get."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.view import CatalogPieces
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.security.acls import Operation, PatternType, PermissionType, ResourceType
from kshare_rpc.catalog import CatalogView, next_view
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.generated.kshare.v1 import security_pb2 as pb
from support.coordinator.driver import CoordinatorDriver

READ_T: dict[str, Any] = {
    "resource_type": ResourceType.TOPIC,
    "resource_name": "t",
    "pattern_type": PatternType.LITERAL,
    "principal": "User:alice",
    "host": "*",
    "operation": Operation.READ,
    "permission_type": PermissionType.ALLOW,
}
EVERYTHING: dict[str, Any] = {
    "resource_type": ResourceType.ANY,
    "pattern_type": PatternType.ANY,
    "operation": Operation.ANY,
    "permission_type": PermissionType.ANY,
}


def alter(driver: CoordinatorDriver, *acls: dict[str, Any], filters: Any = ()) -> pb.AlterAclsResponse:
    request = pb.AlterAclsRequest(
        creations=[pb.Acl(**acl) for acl in acls], filters=[pb.AclFilter(**each) for each in filters]
    )
    return driver.run(commands.AlterAcls(request=request))


def acl_names(driver: CoordinatorDriver) -> list[str]:
    return sorted(entry.key.acl.resource_name for entry in driver.state.security.values())


def test_acls_survive_a_restart_and_are_created_once() -> None:
    driver = CoordinatorDriver()
    before = driver.state.catalog_bytes
    first = alter(driver, READ_T, {**READ_T, "resource_name": "u"})
    assert [result.error_code for result in first.results] == [0, 0]
    again = alter(driver, READ_T)
    assert again.version == first.version and driver.record_count == 0
    driver.restart()
    assert acl_names(driver) == ["t", "u"]
    alter(driver, filters=[EVERYTHING])
    driver.restart()
    assert driver.state.security == {} and driver.state.catalog_bytes == before


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"resource_type": ResourceType.ANY}, "resourceType ANY"),
        ({"pattern_type": PatternType.MATCH}, "patternType MATCH"),
        ({"operation": Operation.ANY}, "operation ANY"),
        ({"permission_type": PermissionType.ANY}, "permissionType ANY"),
        ({"resource_type": 2**31 - 1}, "a number that is not known"),
        ({"pattern_type": -(2**31)}, "a number that is not known"),
        ({"resource_name": ""}, "should not be empty"),
        ({"resource_type": ResourceType.CLUSTER}, "kafka-cluster"),
        ({"principal": "alice"}, "no colon"),
    ],
)
def test_an_acl_that_cannot_be_is_refused_and_the_others_are_created(wrong: dict[str, Any], text: str) -> None:
    driver = CoordinatorDriver()
    answer = alter(driver, {**READ_T, **wrong}, {**READ_T, "resource_name": "u"})
    assert [result.error_code for result in answer.results] == [ErrorCode.INVALID_REQUEST, 0]
    assert text in answer.results[0].error_message and acl_names(driver) == ["u"]


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({"resource_name": "t"}, ["*", "o", "t"]),
        ({"resource_name": "t", "pattern_type": PatternType.MATCH}, ["o"]),
        ({"resource_name": "t", "pattern_type": PatternType.PREFIXED}, ["*", "o", "t"]),
        ({"pattern_type": PatternType.PREFIXED}, ["*", "o", "t"]),
        ({"principal": "User:bob"}, ["*", "o", "t", "t"]),
        ({"operation": Operation.READ}, []),
        ({"host": "10.0.0.1"}, ["*", "o", "t", "t"]),
        ({"permission_type": PermissionType.DENY}, ["*", "o", "t", "t"]),
        ({"resource_type": ResourceType.GROUP}, ["*", "o", "t", "t"]),
    ],
)
def test_a_filter_deletes_what_it_matches(wanted: dict[str, Any], left: list[str]) -> None:
    """Of a literal and a prefixed t, another topic and all topics."""
    driver = CoordinatorDriver()
    names = [{"resource_name": name} for name in ("t", "o", "*")]
    prefixed = {"pattern_type": PatternType.PREFIXED}
    alter(driver, *({**READ_T, **name} for name in names), {**READ_T, **prefixed})
    if wanted == {"resource_name": "t"}:
        left = ["*", "o"]
    if wanted.get("pattern_type") == PatternType.MATCH:
        left = ["o"]
    answer = alter(driver, filters=[{**EVERYTHING, **wanted}])
    assert acl_names(driver) == left
    assert len(answer.results[0].deleted) == 4 - len(left)


def test_each_filter_is_told_all_that_it_matches() -> None:
    driver = CoordinatorDriver()
    alter(driver, READ_T, {**READ_T, "principal": "User:carol"}, {**READ_T, "resource_name": "u"})
    filters = [
        {**EVERYTHING, "resource_name": "t"},
        {**EVERYTHING, "principal": READ_T["principal"]},
        {**EVERYTHING, "resource_name": "t", "pattern_type": PatternType.MATCH},
        {**EVERYTHING, "resource_name": "unknown"},
    ]
    answer = alter(driver, filters=filters)
    assert [len(result.deleted) for result in answer.results] == [2, 2, 2, 0]
    assert not acl_names(driver)


def test_filters_delete_no_more_than_one_request_may() -> None:
    driver = CoordinatorDriver()
    for first in (0, 6_000):
        alter(driver, *({**READ_T, "resource_name": f"t{first + number}"} for number in range(6_000)))
    with pytest.raises(KafkaError) as refused:
        alter(driver, filters=[EVERYTHING])
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert len(acl_names(driver)) == 12_000
    with pytest.raises(KafkaError) as refused:
        alter(driver, filters=[{**EVERYTHING, "principal": None, "host": "10.9.9.9"}] * 200)
    assert refused.value.code == ErrorCode.POLICY_VIOLATION, "filters that match nothing take time, too"
    answer = alter(driver, filters=[{**EVERYTHING, "resource_name": f"t{number}"} for number in range(9_000)])
    assert all(len(result.deleted) == 1 for result in answer.results)


def test_many_principals_of_one_topic_are_deleted_at_once() -> None:
    driver = CoordinatorDriver()
    names = [f"User:{number}" for number in range(9_000)]
    alter(driver, *({**READ_T, "principal": name} for name in names))
    answer = alter(driver, filters=[{**EVERYTHING, "resource_name": "t", "principal": name} for name in names])
    assert all(len(result.deleted) == 1 for result in answer.results)


def test_only_gateways_get_the_rows_and_changes_come_alone() -> None:
    driver = CoordinatorDriver()
    alter(driver, READ_T)
    view = next_view(CatalogView(), CatalogPieces(driver.state, 0, with_security=True).piece(0))
    assert len(view.security) == 1
    assert not CatalogPieces(driver.state, 0).piece(0).security
    after = view.version
    alter(driver, {**READ_T, "resource_name": "u"}, filters=[{**EVERYTHING, "resource_name": "t"}])
    changes = CatalogPieces(driver.state, after, with_security=True).piece(0)
    assert not changes.full and len(changes.security) == 2
    assert [entry.key.acl.resource_name for entry in next_view(view, changes).security.values()] == ["u"]


def test_only_gateways_get_private_keys_and_passwords() -> None:
    of_listener = "listener.name.sasl_ssl"
    secrets = {
        f"{of_listener}.ssl.keystore.key": "planted",
        f"{of_listener}.ssl.key.password": "planted",
        f"{of_listener}.ssl.keystore.password": "planted",
    }
    public = {f"{of_listener}.ssl.client.auth": "required", f"{of_listener}.ssl.keystore.type": "PEM"}
    driver = CoordinatorDriver()
    alterable = coordinator_pb2.IncrementalAlterConfigsRequest.AlterableConfig
    resource = coordinator_pb2.IncrementalAlterConfigsRequest.Resource(
        resource_type=4,
        resource_name="7",
        configs=[alterable(name=name, value=text) for name, text in {**secrets, **public}.items()],
    )
    request = coordinator_pb2.IncrementalAlterConfigsRequest(resources=[resource])
    assert not driver.run(commands.IncrementalAlterConfigs(request=request)).results[0].error_code
    for with_security, expected in ((True, {**secrets, **public}), (False, public)):
        answer = CatalogPieces(driver.state, 0, with_security=with_security).piece(0)
        assert next_view(CatalogView(), answer).broker_configs == {"7": expected}
        assert (b"planted" in answer.SerializeToString()) is with_security


def test_scram_credentials_are_replaced_and_deleted() -> None:
    driver = CoordinatorDriver()
    user = pb.ScramUser(name="alice", mechanism=1)

    def change(iterations: int | None) -> int:
        credential = None if iterations is None else pb.ScramCredential(salt=b"s", iterations=iterations)
        alteration = pb.AlterUserScramCredentialsRequest.Alteration(user=user, credential=credential)
        request = pb.AlterUserScramCredentialsRequest(alterations=[alteration])
        return driver.run(commands.AlterUserScramCredentials(request=request)).results[0].error_code

    assert change(None) == ErrorCode.RESOURCE_NOT_FOUND
    assert (change(4096), change(8192)) == (0, 0)
    driver.restart()
    assert [entry.value.scram_credential.iterations for entry in driver.state.security.values()] == [8192]
    assert change(None) == 0 and driver.state.security == {}


def test_client_quotas_are_changed_one_by_one() -> None:
    driver = CoordinatorDriver()
    Entry = pb.AlterClientQuotasRequest.Entry

    def change(entity: pb.QuotaEntity, *, validate_only: bool = False, **values: float | None) -> int:
        ops = [Entry.Op(key=key, value=value) for key, value in values.items()]
        request = pb.AlterClientQuotasRequest(entries=[Entry(entity=entity, ops=ops)], validate_only=validate_only)
        return driver.run(commands.AlterClientQuotas(request=request)).results[0].error_code

    alice = pb.QuotaEntity(user="alice")
    assert change(alice, producer_byte_rate=1000, request_percentage=12.5) == 0
    assert change(alice, producer_byte_rate=None, consumer_byte_rate=7) == 0
    assert change(alice, consumer_byte_rate=9, validate_only=True) == 0
    driver.restart()
    (entry,) = driver.state.security.values()
    assert dict(entry.value.client_quotas.values) == {"request_percentage": 12.5, "consumer_byte_rate": 7.0}
    for name, value in (("producer_byte_rate", 0.0), ("producer_byte_rate", 1.5), ("no_rate", 1.0)):
        assert change(alice, **{name: value}) == ErrorCode.INVALID_REQUEST  # type: ignore[arg-type]
    assert change(alice, connection_creation_rate=1) == ErrorCode.INVALID_REQUEST
    assert change(alice, connection_creation_rate=None, no_rate=None, consumer_byte_rate=8) == 0
    assert change(pb.QuotaEntity(ip="10.0.0.1"), connection_creation_rate=5) == 0
    assert change(pb.QuotaEntity(ip="10.0.0.1"), producer_byte_rate=5) == ErrorCode.INVALID_REQUEST
    assert change(alice, request_percentage=None, consumer_byte_rate=None) == 0
    assert len(driver.state.security) == 1


def test_a_quota_that_is_no_number_is_refused_and_other_entries_are_altered() -> None:
    driver = CoordinatorDriver()
    Entry = pb.AlterClientQuotasRequest.Entry
    cases = [
        ("producer_byte_rate", math.inf, ErrorCode.INVALID_REQUEST),
        ("producer_byte_rate", math.nan, ErrorCode.INVALID_REQUEST),
        ("producer_byte_rate", 1e300, ErrorCode.INVALID_REQUEST),
        ("producer_byte_rate", float(2**63 - 1), ErrorCode.NONE),
        ("consumer_byte_rate", 7.0, ErrorCode.NONE),
        ("request_percentage", math.nan, ErrorCode.INVALID_REQUEST),
        ("request_percentage", math.inf, ErrorCode.NONE),
        ("controller_mutation_rate", -math.inf, ErrorCode.INVALID_REQUEST),
    ]
    entries = [
        Entry(entity=pb.QuotaEntity(user=f"user-{number}"), ops=[Entry.Op(key=name, value=value)])
        for number, (name, value, _) in enumerate(cases)
    ]
    address = pb.QuotaEntity(ip="10.0.0.1")
    entries.append(Entry(entity=address, ops=[Entry.Op(key="connection_creation_rate", value=math.inf)]))
    answer = driver.run(commands.AlterClientQuotas(request=pb.AlterClientQuotasRequest(entries=entries)))
    codes = [ErrorCode(result.error_code) for result in answer.results]
    assert codes == [*(code for _, _, code in cases), ErrorCode.INVALID_REQUEST]
    assert len(driver.state.security) == codes.count(ErrorCode.NONE)


def test_the_catalog_has_a_limit_for_acls_too() -> None:
    driver = CoordinatorDriver({"kshare.catalog.max.bytes": "1048576"})
    answer = alter(driver, *({**READ_T, "resource_name": f"{number}" * 20_000} for number in range(100)))
    assert {result.error_code for result in answer.results} == {0, ErrorCode.POLICY_VIOLATION}
    assert driver.state.catalog_bytes <= 1048576
    with pytest.raises(KafkaError, match="excessively large"):
        big = CoordinatorDriver()
        alter(big, *({**READ_T, "resource_name": f"t{number}"} for number in range(10_001)))
