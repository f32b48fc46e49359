"""CreatePartitions: every error, a grown topic, and where a share group starts in its new partitions."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver, assigned

Topic = pb.CreatePartitionsRequest.Topic


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver({"kshare.max.partitions": "10"})
    made.register(pb.ROLE_LEADER, 1)
    made.register(pb.ROLE_LEADER, 2)
    made.create_topic("orders", 2)
    made.create_topic("others", 1)
    return made


def grow(driver: CoordinatorDriver, *topics: Topic, validate_only: bool = False) -> list[tuple[str, E]]:
    request = pb.CreatePartitionsRequest(topics=topics, validate_only=validate_only)
    answer = driver.run(commands.CreatePartitions(request=request))
    return [(result.name, E(result.error_code)) for result in answer.results]


def topic(name: str, count: int, assigned_count: int = -1) -> Topic:
    return Topic(name=name, count=count, assigned_count=assigned_count)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (topic("no-such-topic", 3), E.UNKNOWN_TOPIC_OR_PARTITION),
        (topic("orders", 2), E.INVALID_PARTITIONS),
        (topic("orders", 1), E.INVALID_PARTITIONS),
        (topic("orders", 0), E.INVALID_PARTITIONS),
        (topic("orders", -1), E.INVALID_PARTITIONS),
        (topic("orders", 4, 1), E.INVALID_REPLICA_ASSIGNMENT),
        (topic("orders", 4, 0), E.INVALID_REPLICA_ASSIGNMENT),
        (topic("orders", 10), E.POLICY_VIOLATION),
        (topic("__share_group_state", 51), E.INVALID_REQUEST),
    ],
)
def test_refused(driver: CoordinatorDriver, wanted: Topic, code: E) -> None:
    version = driver.state.version
    assert grow(driver, wanted) == [(wanted.name, code)]
    assert driver.record_count == 0
    assert driver.state.version == version


def test_a_topic_grows_and_keeps_what_it_has(driver: CoordinatorDriver) -> None:
    before = list(driver.state.topics[driver.state.topic_ids["orders"]].placements)
    epoch = driver.state.epoch_counter
    assert grow(driver, topic("orders", 5, 3)) == [("orders", E.NONE)]
    after = driver.state.topics[driver.state.topic_ids["orders"]].placements
    assert list(after[:2]) == before
    assert [placement.partition for placement in after] == [0, 1, 2, 3, 4]
    assert {placement.leader_node_id for placement in after} == {1, 2}
    assert all(placement.placement_epoch > epoch for placement in after[2:])
    assert driver.load().state.topics == driver.state.topics


def test_one_request_for_many_topics(driver: CoordinatorDriver) -> None:
    results = grow(driver, topic("orders", 3), topic("others", 4), topic("others", 5), topic("gone", 1))
    assert dict(results) == {"orders": E.NONE, "others": E.INVALID_REQUEST, "gone": E.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(results) == 3
    assert len(driver.state.topics[driver.state.topic_ids["others"]].placements) == 1


def test_the_limit_counts_the_whole_request(driver: CoordinatorDriver) -> None:
    assert grow(driver, topic("orders", 6), topic("others", 5)) == [("orders", E.NONE), ("others", E.POLICY_VIOLATION)]


def test_validate_only_changes_nothing(driver: CoordinatorDriver) -> None:
    rows = dict(driver.rows)
    assert grow(driver, topic("orders", 3), validate_only=True) == [("orders", E.NONE)]
    assert driver.rows == rows


def test_new_partitions_of_a_known_topic_start_at_0_kafka_20742(driver: CoordinatorDriver) -> None:
    joined = driver.heartbeat("member", 0, ["orders"])
    driver.initialize_all()
    joined = driver.heartbeat("member", joined.member_epoch)
    grow(driver, topic("orders", 3))
    noticed = driver.heartbeat("member", joined.member_epoch)
    assert (noticed.member_epoch, assigned(noticed)) == (joined.member_epoch + 1, None)
    waiting = driver.state.share_groups["group"].partitions.initializing
    assert [(entry.start_offset, list(entry.partitions)) for entry in waiting] == [(0, [2])]
    driver.initialize_all()
    answer = driver.heartbeat("member", noticed.member_epoch)
    assert (answer.member_epoch, assigned(answer)) == (noticed.member_epoch + 1, {"orders": [0, 1, 2]})
