"""Limits of the catalog: its size, what one request may add, and the length of ids; what shrinks always passes."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.commands import Command
from kshare_coordinator.machine.machine import CoordinatorMachine
from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver, creatable

MIB = 1024 * 1024
SET, DELETE = 0, 1
BROKER, GROUP = 4, 32
LOCK_DURATION = "share.record.lock.duration.ms"
Resource = pb.IncrementalAlterConfigsRequest.Resource
Alterable = pb.IncrementalAlterConfigsRequest.AlterableConfig


def group(group_id: str, value: str = "20000", operation: int = SET) -> Resource:
    change = Alterable(name=LOCK_DURATION, config_operation=operation, value=value)
    return Resource(resource_type=GROUP, resource_name=group_id, configs=[change])


def alter(driver: CoordinatorDriver, *resources: Resource) -> list[E]:
    request = pb.IncrementalAlterConfigsRequest(resources=resources)
    return [E(result.error_code) for result in driver.run(commands.IncrementalAlterConfigs(request=request)).results]


def padded(number: int) -> str:
    """The same value with zeros before it, so that its row is long."""
    return str(number).zfill(1_000)


def test_the_attack_that_ended_the_cluster_is_refused() -> None:
    driver = CoordinatorDriver()
    for request in range(3):
        codes = alter(driver, *(group(f"{request}-{number}-".ljust(32_000, "g")) for number in range(1_500)))
        assert set(codes) == {E.INVALID_GROUP_ID}
    assert driver.state.catalog_bytes == 0


def test_one_request_is_as_small_as_a_batch_of_kafkas_controller() -> None:
    driver = CoordinatorDriver({"kshare.id.max.bytes": "32767"})
    codes = alter(driver, *(group(f"{number}-".ljust(32_000, "g")) for number in range(400)))
    accepted = codes.count(E.NONE)
    assert codes == [E.NONE] * accepted + [E.POLICY_VIOLATION] * (400 - accepted)
    assert 8 * MIB - 33_000 < driver.state.catalog_bytes <= 8 * MIB


def test_too_many_changed_configs_in_one_request_are_refused_as_in_kafka() -> None:
    driver = CoordinatorDriver()
    assert set(alter(driver, *(group(f"g{number}") for number in range(10_000)))) == {E.NONE}
    assert set(alter(driver, *(group(f"h{number}") for number in range(10_001)))) == {E.POLICY_VIOLATION}


def test_groups_are_counted_within_one_request() -> None:
    driver = CoordinatorDriver({"kshare.max.groups": "3"})
    assert alter(driver, *(group(f"g{number}") for number in range(5))) == [E.NONE] * 3 + [E.POLICY_VIOLATION] * 2
    assert alter(driver, group("g0", operation=DELETE), group("new")) == [E.NONE, E.NONE]
    assert alter(driver, group("nobody", operation=DELETE)) == [E.NONE]
    assert len(driver.state.group_configs) == 3


def test_brokers_are_counted_within_one_request() -> None:
    driver = CoordinatorDriver()
    change = Alterable(name="some.name", config_operation=SET, value="x")
    brokers = [Resource(resource_type=BROKER, resource_name=str(number), configs=[change]) for number in range(1_001)]
    assert alter(driver, *brokers) == [E.NONE] * 1_000 + [E.POLICY_VIOLATION]
    long = Resource(resource_type=BROKER, resource_name="1".zfill(2_000), configs=[change])
    assert alter(driver, long) == [E.INVALID_REQUEST]


def test_the_catalog_has_a_budget_and_what_shrinks_passes() -> None:
    driver = CoordinatorDriver({"kshare.catalog.max.bytes": str(MIB)})
    codes = alter(driver, *(group(f"g{number}", padded(20_000)) for number in range(1_200)))
    accepted = codes.count(E.NONE)
    assert codes[accepted:] == [E.POLICY_VIOLATION] * (1_200 - accepted)
    assert MIB - 2_000 < driver.state.catalog_bytes <= MIB
    [refused] = driver.create(creatable("t", 1_000))
    assert refused.error_code == E.POLICY_VIOLATION
    assert "kshare.catalog.max.bytes" in refused.error_message
    assert alter(driver, group("g0", "30000")) == [E.NONE], "a shorter row"
    assert alter(driver, group("g0", padded(40_000))) == [E.NONE], "the room is there again"
    assert alter(driver, group("g0", padded(40_000) + "0")) == [E.INVALID_CONFIG]
    assert set(alter(driver, *(group(f"g{number}", operation=DELETE) for number in range(accepted)))) == {E.NONE}
    assert driver.state.catalog_bytes == 0
    assert driver.create(creatable("t", 1_000))[0].error_code == E.NONE


def test_partitions_that_are_added_count() -> None:
    driver = CoordinatorDriver({"kshare.catalog.max.bytes": str(MIB)})
    driver.create_topic("t", 10_000)

    def grow(count: int) -> int:
        request = pb.CreatePartitionsRequest(
            topics=[pb.CreatePartitionsRequest.Topic(name="t", count=count, assigned_count=-1)]
        )
        return driver.run(commands.CreatePartitions(request=request)).results[0].error_code

    assert grow(99_000) == E.POLICY_VIOLATION
    assert grow(20_000) == E.NONE


def test_a_catalog_above_its_budget_from_before_is_loaded_and_may_shrink() -> None:
    driver = CoordinatorDriver({"kshare.id.max.bytes": "32767"})
    ids = [f"{number}-".ljust(20_000, "g") for number in range(200)]
    assert set(alter(driver, *map(group, ids))) == {E.NONE}
    driver.configs = Configs(PROCESS_CONFIGS, {"kshare.catalog.max.bytes": str(MIB)})
    stored = driver.state.catalog_bytes
    driver.restart()
    assert driver.state.catalog_bytes == stored > 3 * MIB
    assert sorted(driver.state.group_configs) == sorted(ids)
    assert alter(driver, group("new")) == [E.POLICY_VIOLATION]
    assert alter(driver, group(ids[0], "30000"), group(ids[1], operation=DELETE)) == [E.NONE, E.NONE]


def test_counted_bytes_are_those_of_a_load() -> None:
    driver = CoordinatorDriver()
    driver.create_topic("t", 7)
    driver.create_topic("u", 2)
    alter(driver, group("g"), group("h"))
    alter(driver, group("g", "50000"))
    driver.delete("u")
    assert driver.load().state.catalog_bytes == driver.state.catalog_bytes > 0
    driver.delete("t")
    alter(driver, group("g", operation=DELETE), group("h", operation=DELETE))
    assert driver.state.catalog_bytes == 0


LONG = "x" * 1_025


def share_join(**fields: str) -> Command[object]:
    request = pb.ShareGroupHeartbeatRequest(
        group_id="g", member_id="m", has_subscribed_topic_names=True, subscribed_topic_names=["t"]
    )
    return commands.ShareGroupHeartbeat(request=_with(request, fields))


def consumer_join(**fields: str) -> Command[object]:
    request = pb.ConsumerGroupHeartbeatRequest(
        api_version=1, group_id="g", member_id="m", rebalance_timeout_ms=1_000, has_owned_partitions=True
    )
    request.has_subscribed_topic_names = True
    return commands.ConsumerGroupHeartbeat(request=_with(request, fields), new_member_id="n")


def classic_join(protocol: str = "range", metadata: bytes = b"", **fields: str) -> Command[object]:
    request = pb.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[pb.JoinGroupRequest.Protocol(name=protocol, metadata=metadata)],
    )
    return commands.JoinGroup(request=_with(request, fields), call_id=1, new_member_suffix="s")


def commit(**fields: str) -> Command[object]:
    return commands.OffsetCommit(request=_with(pb.OffsetCommitRequest(group_id="g"), fields))


def init_producer(**fields: str) -> Command[object]:
    request = pb.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1_000, producer_id=-1)
    return commands.InitTransactionalProducer(request=_with(request, fields))


def _with(request, fields: dict[str, str]):  # type: ignore[no-untyped-def]
    for name, value in fields.items():
        setattr(request, name, value)
    return request


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (share_join(group_id=LONG), E.INVALID_GROUP_ID),
        (share_join(member_id=LONG), E.INVALID_REQUEST),
        (share_join(client_id=LONG), E.INVALID_REQUEST),
        (share_join(rack_id="é" * 513), E.INVALID_REQUEST),
        (consumer_join(group_id=LONG), E.INVALID_GROUP_ID),
        (consumer_join(instance_id=LONG), E.INVALID_REQUEST),
        (consumer_join(client_id=LONG), E.INVALID_REQUEST),
        (classic_join(group_id=LONG), E.INVALID_GROUP_ID),
        (classic_join(client_id=LONG), E.INVALID_REQUEST),
        (classic_join(group_instance_id=LONG), E.INVALID_REQUEST),
        (classic_join(protocol=LONG), E.INVALID_REQUEST),
        (classic_join(metadata=bytes(1_048_589)), E.INVALID_REQUEST),
        (commit(group_id=LONG), E.INVALID_GROUP_ID),
        (init_producer(transactional_id=LONG), E.INVALID_REQUEST),
    ],
)
def test_what_is_too_long_is_refused(command: Command[object], code: E) -> None:
    driver = CoordinatorDriver()
    driver.create_topic("t", 1)
    with pytest.raises(KafkaError) as refusal:
        driver.run(command)
    assert refusal.value.code is code
    assert len(refusal.value.message) < 300, "the error is no copy of what was sent"


def test_ids_of_the_limit_are_taken() -> None:
    driver = CoordinatorDriver()
    driver.create_topic("t", 1)
    longest = "x" * 1_024
    driver.run(share_join(group_id=longest, client_id=longest, rack_id=longest))
    driver.run(classic_join(group_id="c" * 1_024, client_id=longest))
    driver.run(init_producer(transactional_id=longest))
    assert (list(driver.state.share_groups), list(driver.state.transactions)) == ([longest], [longest])


def test_longer_ids_that_are_stored_already_stay_usable() -> None:
    driver = CoordinatorDriver({"kshare.id.max.bytes": "2000"})
    driver.create_topic("t", 1)
    driver.run(share_join(group_id=LONG))
    driver.run(init_producer(transactional_id=LONG))
    stored = driver.load().state
    driver.machine = CoordinatorMachine(Configs(PROCESS_CONFIGS, {}), broker_id=1, state=stored)
    driver.run(share_join(group_id=LONG, member_id="another"))
    driver.run(init_producer(transactional_id=LONG))
    assert set(driver.state.share_groups[LONG].members) == {"m", "another"}


def test_topic_names_of_a_share_subscription_are_bounded_together() -> None:
    driver = CoordinatorDriver()
    with pytest.raises(KafkaError) as refusal:
        driver.heartbeat("m", 0, ["t" * 250] * 1_000)
    assert refusal.value.code is E.INVALID_REQUEST
    assert driver.heartbeat("m", 0, ["t" * 249] * 1_000).error_code == 0
