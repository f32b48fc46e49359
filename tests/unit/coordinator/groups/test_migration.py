"""Groups between the two protocols, where kshare's own rules matter: restarts, timers, cases that Kafka leaves open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_coordinator.machine.groups.classic.consumer_protocol import (
    assignment_bytes,
    assignment_of,
    subscribed_topics,
    subscription_of,
    version_of,
)
from kshare_coordinator.machine.groups.classic.timers import ClassicTimer, TimerKind
from kshare_coordinator.machine.groups.consumer import view as consumer_groups_view
from kshare_coordinator.machine.groups.consumer.requests import EXPRESSIONS_LIMIT
from kshare_coordinator.machine.groups.consumer.settings import ConsumerGroupSettings
from kshare_core.errors import ErrorCode as E
from kshare_core.errors import KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.groups.classic_driver import GROUP, REBALANCE_MS, SESSION_MS, ClassicGroupDriver, subscription
from support.groups.classic_members import owning_subscription
from support.groups.consumer_groups import Response, assigned, join_request, request_of, send

PROTOCOLS = (("range", subscription("t")),)
ALL = [0, 1, 2, 3]


def made(**configs: str) -> ClassicGroupDriver:
    """With a topic of four partitions."""
    names = {name.replace("_", "."): value for name, value in configs.items()}
    driver = ClassicGroupDriver({"group.consumer.assignment.interval.ms": "0", **names})
    driver.coordinator.now_ms = 1_000_000
    driver.coordinator.create_topic("t", 4)
    return driver


def stable(driver: ClassicGroupDriver, *partitions: list[int], instances: tuple[str, ...] = ()) -> list[str]:
    """Members of a stable classic group in generation 1, each with its partitions."""
    names = []
    for index in range(len(partitions)):
        instance = instances[index] if instances else ""
        first = driver.join(protocols=PROTOCOLS, instance=instance, version=3)
        names.append(first)
    driver.advance(6_000)
    member_ids = [driver.joined(call).member_id for call in names]
    given = {
        member_id: assignment_bytes({"t": numbers}, 0)
        for member_id, numbers in zip(member_ids, partitions, strict=True)
    }
    for member_id in reversed(member_ids):
        driver.sync(member_id, 1, given, instance=dict(zip(member_ids, instances, strict=False)).get(member_id, ""))
    assert driver.group().state == "Stable"
    return member_ids


def heartbeat(driver: ClassicGroupDriver, request: pb.ConsumerGroupHeartbeatRequest) -> Response:
    answer = send(driver.coordinator, request)
    driver.carry_out()
    return answer


def consumer_joins(driver: ClassicGroupDriver, member_id: str = "c", **fields: object) -> Response:
    return heartbeat(driver, join_request(member_id, ["t"], **fields))


def joined(driver: ClassicGroupDriver, member_id: str, **fields: str) -> pb.JoinGroupResponse:
    return driver.joined(driver.join(member_id, protocols=PROTOCOLS, version=3, **fields))  # type: ignore[arg-type]


def synced(driver: ClassicGroupDriver, member_id: str, generation_id: int) -> list[int]:
    answer = driver.synced(driver.sync(member_id, generation_id))
    assert not answer.error_code
    found = assignment_of(answer.assignment)
    assert found is not None
    return [number for _, numbers in found.partitions for number in numbers]


def test_a_rebalance_that_a_downgrade_began_begins_again_after_a_restart() -> None:
    """Else nobody would have what the member had that left."""
    driver = made()
    (member,) = stable(driver, ALL)
    assert consumer_joins(driver).member_epoch == 2
    assert joined(driver, member).generation_id == 2
    assert len(synced(driver, member, 2)) == 2
    heartbeat(driver, request_of("c", -1))
    assert driver.group().state == "PreparingRebalance"
    driver.restart()
    assert driver.group().state == "PreparingRebalance"
    assert driver.heartbeat(member, 2) is E.REBALANCE_IN_PROGRESS
    again = joined(driver, member)
    assert (again.generation_id, again.leader) == (3, member)
    driver.sync(member, 3, {member: assignment_bytes({"t": ALL}, 0)})
    driver.restart()
    assert driver.group().state == "Stable"


def test_a_group_in_its_first_rebalance_is_upgraded() -> None:
    driver = made()
    waiting = driver.join(protocols=PROTOCOLS, version=3)
    assert driver.join_answer(waiting) is None
    assert assigned(consumer_joins(driver)) is not None
    refused = driver.joined(waiting)
    assert refused.error_code == E.REBALANCE_IN_PROGRESS and refused.member_id
    assert len(synced(driver, refused.member_id, joined(driver, refused.member_id).generation_id)) == 2
    assert not [timer for timer in driver.timers if timer.kind in (TimerKind.INITIAL_JOIN, TimerKind.SESSION)]


def test_what_a_cooperative_member_still_consumes_is_its_own_in_the_upgrade() -> None:
    """It was told to give two partitions up, and does so when it hears of it."""
    driver = made()
    owning = (("cooperative-sticky", owning_subscription(["t"], [("t", number) for number in ALL])),)
    first = driver.join(protocols=owning, version=3)
    driver.advance(6_000)
    member = driver.joined(first).member_id
    driver.sync(member, 1, {member: assignment_bytes({"t": [0, 1]}, 0)})
    assert driver.group().state == "Stable"
    assert assigned(consumer_joins(driver)) == {}
    assert driver.heartbeat(member, 1) is E.REBALANCE_IN_PROGRESS
    kept = (("cooperative-sticky", owning_subscription(["t"], [("t", 0), ("t", 1)])),)
    assert driver.joined(driver.join(member, protocols=kept, version=3)).generation_id == 2
    answer = heartbeat(driver, request_of("c", 2))
    assert [len(numbers) for numbers in (assigned(answer) or {}).values()] == [2]


def test_a_member_that_takes_over_an_instance_id_leaves_no_partition_without_an_owner() -> None:
    """It had a target of its own before."""
    driver = made()
    driver.coordinator.create_topic("u", 1)
    stable(driver, ALL, instances=("i",))
    joins = heartbeat(driver, join_request("w", ["u"]))
    assert heartbeat(driver, join_request("v", ["u"])).member_epoch == joins.member_epoch + 1
    group = driver.coordinator.state.consumer_groups[GROUP]
    (owner,) = [name for name, target in group.targets.items() if driver.coordinator.state.topic_ids["u"] in target]
    heartbeat(driver, join_request(owner, ["t"], instance_id="i"))
    group = driver.coordinator.state.consumer_groups[GROUP]
    (other,) = {"v", "w"} - {owner}
    assert driver.coordinator.state.topic_ids["u"] in group.targets[other]


def test_a_static_member_that_comes_back_with_its_own_id_changes_nothing() -> None:
    driver = made()
    before = heartbeat(driver, join_request("m", ["t"], instance_id="i"))
    heartbeat(driver, request_of("m", -2, instance_id="i"))
    after = heartbeat(driver, join_request("m", ["t"], instance_id="i"))
    assert (after.member_epoch, assigned(after)) == (before.member_epoch, assigned(before))


def test_a_group_has_a_limited_number_of_expressions() -> None:
    """Each is stored with the names of all topics that match it."""
    driver = made()
    for number in range(EXPRESSIONS_LIMIT):
        heartbeat(driver, join_request(f"m{number}", None, regex=f"t|{number}"))
    with pytest.raises(KafkaError) as refused:
        heartbeat(driver, join_request("one-more", None, regex="t|more"))
    assert refused.value.code is E.INVALID_REQUEST
    assert heartbeat(driver, join_request("another", None, regex="t|7")).member_epoch


def test_what_two_members_were_given_cannot_be_upgraded() -> None:
    driver = made()
    stable(driver, [0, 1], [1, 2])
    rows = dict(driver.coordinator.rows)
    with pytest.raises(KafkaError) as refused:
        consumer_joins(driver)
    assert refused.value.code is E.GROUP_ID_NOT_FOUND and "t-1" in refused.value.message
    assert driver.coordinator.rows == rows


def test_an_unchanged_static_member_also_gets_partitions_without_an_owner() -> None:
    """Partition 3 came after the leader assigned."""
    driver = made()
    stable(driver, [0, 1, 2], instances=("i",))
    answer = consumer_joins(driver, instance_id="i")
    assert assigned(answer) == {driver.coordinator.state.topic_ids["t"]: ALL}


def test_a_member_has_its_rebalance_timeout_to_join_from_when_it_was_first_told() -> None:
    driver = made()
    (member,) = stable(driver, ALL)
    consumer_joins(driver)
    timer = ClassicTimer(TimerKind.MEMBER_JOIN, GROUP, member)
    assert driver.heartbeat(member, 1) is E.REBALANCE_IN_PROGRESS
    ends_ms = driver.timers[timer]
    assert ends_ms == driver.now_ms + REBALANCE_MS
    driver.advance(1_000)
    assert driver.heartbeat(member, 1) is E.REBALANCE_IN_PROGRESS
    assert driver.timers[timer] == ends_ms
    driver.advance(REBALANCE_MS)
    assert driver.coordinator.state.consumer_groups[GROUP].members.keys() == {"c"}
    assert driver.heartbeat(member, 1) is E.UNKNOWN_MEMBER_ID
    assert assigned(heartbeat(driver, request_of("c", 2))) == {driver.coordinator.state.topic_ids["t"]: ALL}


def test_a_member_that_joined_has_its_rebalance_timeout_to_sync() -> None:
    driver = made()
    (member,) = stable(driver, ALL)
    consumer_joins(driver)
    assert joined(driver, member).generation_id == 2
    assert driver.sessions[member] == SESSION_MS
    driver.advance(REBALANCE_MS - 1)
    assert member in driver.coordinator.state.consumer_groups[GROUP].members
    driver.advance(1)
    assert member not in driver.coordinator.state.consumer_groups[GROUP].members


def test_a_heartbeat_of_a_classic_member_finds_what_others_left() -> None:
    """Without members of the consumer protocol nobody else would."""
    driver = made(group_consumer_migration_policy="upgrade")
    (member,) = stable(driver, ALL)
    consumer_joins(driver)
    assert joined(driver, member).generation_id == 2
    assert len(synced(driver, member, 2)) == 2
    heartbeat(driver, request_of("c", -1))
    assert driver.heartbeat(member, 2) is E.REBALANCE_IN_PROGRESS
    assert joined(driver, member).generation_id == 3
    assert synced(driver, member, 3) == ALL


def test_a_static_member_that_comes_back_while_others_hold_what_it_shall_have() -> None:
    """In Kafka it would be given those partitions at once."""
    driver = made()
    member, _ = stable(driver, ALL, [], instances=("a", "i"))
    assert assigned(consumer_joins(driver, instance_id="i")) == {}
    group = driver.coordinator.state.consumer_groups[GROUP]
    assert driver.heartbeat(member, 1, instance="a") in (E.NONE, E.REBALANCE_IN_PROGRESS)
    consumer_joins(driver, "d")  # moves two partitions to d, and d is to leave again
    heartbeat(driver, request_of("d", -1))
    heartbeat(driver, request_of("c", group.current["c"].member_epoch, instance_id="i"))
    back = joined(driver, "", instance="i")
    assert back.error_code == E.NONE
    assert driver.group().state == "PreparingRebalance"
    refused = driver.synced(driver.sync(back.member_id, back.generation_id, instance="i"))
    assert refused.error_code in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION)


def test_a_static_member_that_comes_back_while_others_have_a_step_to_take() -> None:
    driver = made()
    member, _ = stable(driver, [0, 1], [2, 3], instances=("a", "i"))
    consumer_joins(driver, instance_id="i")
    consumer_joins(driver, "d")
    heartbeat(driver, request_of("d", -1))
    group = driver.coordinator.state.consumer_groups[GROUP]
    heartbeat(driver, request_of("c", group.current["c"].member_epoch, instance_id="i"))
    assert group.current["c"].is_reconciled_to(group.epoch)
    assert not group.current[member].is_reconciled_to(group.epoch)
    assert joined(driver, "", instance="i").error_code == E.NONE
    assert driver.group().state == "PreparingRebalance"


def test_a_group_migrated_there_and_back_and_again_keeps_its_assignment() -> None:
    """The member has all partitions until it joins again, whatever it was to have meanwhile."""
    driver = made()
    (member,) = stable(driver, ALL)
    assert assigned(consumer_joins(driver)) == {}
    heartbeat(driver, request_of("c", -1))
    assert driver.group().state == "PreparingRebalance"
    assert assigned(consumer_joins(driver, "d")) == {}
    current = driver.coordinator.state.consumer_groups[GROUP].current[member]
    assert sorted(partition.partition for partition in current.assigned) == ALL


def test_descriptions_say_which_protocol_a_member_uses() -> None:
    driver = made()
    (member,) = stable(driver, ALL)
    consumer_joins(driver)
    settings = ConsumerGroupSettings(driver.coordinator.configs)
    request = pb.ConsumerGroupDescribeRequest(group_ids=[GROUP])
    (group,) = consumer_groups_view.describe(driver.coordinator.state, settings, request).groups
    assert {each.member_id: each.uses_classic_protocol for each in group.members} == {member: True, "c": False}


NAMES = st.text(max_size=10)
PARTITIONS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)


@given(st.dictionaries(NAMES, PARTITIONS, max_size=5), st.integers(0, 3))
def test_an_assignment_is_read_as_it_was_written(partitions: dict[str, list[int]], version: int) -> None:
    data = assignment_bytes(partitions, version)
    found = assignment_of(data)
    assert found is not None and not found.user_data and version_of(data) == version
    assert {name: list(numbers) for name, numbers in found.partitions} == partitions
    assert all(assignment_of(data[:length]) is None for length in range(1, len(data)))


@given(st.lists(NAMES, max_size=5), st.lists(st.tuples(NAMES, st.integers(0, 9)), max_size=5), st.integers(1, 3))
def test_a_subscription_is_read_as_it_was_written(
    topics: list[str], owned: list[tuple[str, int]], version: int
) -> None:
    data = owning_subscription(topics, owned, version)
    found = subscription_of(data)
    assert found is not None
    assert (list(found.topics), found.rack_id) == (topics, "rack" if version == 3 else "")
    assert sorted((name, number) for name, numbers in found.owned for number in numbers) == sorted(owned)
    assert all(subscription_of(data[:length]) is None for length in range(len(data)))


@given(st.binary(max_size=100))
def test_no_bytes_do_harm(data: bytes) -> None:
    found = subscription_of(data)
    assert found is None or subscribed_topics(data) == list(found.topics)
    assignment_of(data)
    assert version_of(data) >= 0
