"""CreateTopics and DeleteTopics: every error, placement, and the visible result."""

from __future__ import annotations

import random
import uuid

import pytest

from kshare_coordinator.handlers.catalog import random_topic_id
from kshare_core.errors import ErrorCode as E
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver, creatable


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver({"kshare.max.partitions": "20", "num.partitions": "3"})
    made.register(pb.ROLE_LEADER, 1)
    made.create_topic("taken.name", 2)
    return made


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (creatable("", 1), E.INVALID_TOPIC_EXCEPTION),
        (creatable(".", 1), E.INVALID_TOPIC_EXCEPTION),
        (creatable("..", 1), E.INVALID_TOPIC_EXCEPTION),
        (creatable("a" * 250, 1), E.INVALID_TOPIC_EXCEPTION),
        (creatable("sp ace", 1), E.INVALID_TOPIC_EXCEPTION),
        (creatable("umläut", 1), E.INVALID_TOPIC_EXCEPTION),
        (creatable("line\n", 1), E.INVALID_TOPIC_EXCEPTION),
        (creatable("taken_name", 1), E.INVALID_TOPIC_EXCEPTION),
        (creatable("taken.name", 1), E.TOPIC_ALREADY_EXISTS),
        (creatable("__share_group_state", 1), E.INVALID_REQUEST),
        (creatable("__consumer_offsets", 1), E.INVALID_REQUEST),
        (creatable("t", 0), E.INVALID_PARTITIONS),
        (creatable("t", -2), E.INVALID_PARTITIONS),
        (creatable("t", 1, 0), E.INVALID_REPLICATION_FACTOR),
        (creatable("t", 1, -2), E.INVALID_REPLICATION_FACTOR),
        (creatable("t", 1, 3), E.INVALID_REPLICATION_FACTOR),
        (creatable("t", 1, assigned=[0]), E.INVALID_REQUEST),
        (creatable("t", -1, 1, assigned=[0]), E.INVALID_REQUEST),
        (creatable("t", assigned=[0, 2]), E.INVALID_REPLICA_ASSIGNMENT),
        (creatable("t", assigned=[0, 0]), E.INVALID_REPLICA_ASSIGNMENT),
        (creatable("t", 1, configs={"no.such.config": "1"}), E.INVALID_CONFIG),
        (creatable("t", 1, configs={"retention.ms": "soon"}), E.INVALID_CONFIG),
        (creatable("t", 1, configs={"cleanup.policy": "x" * 40_000}), E.INVALID_CONFIG),
        (creatable("t", 19), E.POLICY_VIOLATION),
    ],
)
def test_refused_topics(driver: CoordinatorDriver, topic: pb.CreateTopicsRequest.CreatableTopic, code: E) -> None:
    version = driver.state.version
    result = driver.create(topic)[0]
    assert E(result.error_code) is code
    assert result.error_message
    assert result.name == topic.name
    assert driver.record_count == 0
    assert driver.state.version == version


@pytest.mark.parametrize(
    ("topic", "partitions"),
    [
        (creatable("a" * 249, 1), 1),
        (creatable("t"), 3),
        (creatable("t", 18, 1), 18),
        (creatable("t", assigned=[1, 0]), 2),
        (creatable("t", 1, configs={"retention.ms": "1000"}), 1),
    ],
)
def test_good_topics(driver: CoordinatorDriver, topic: pb.CreateTopicsRequest.CreatableTopic, partitions: int) -> None:
    result = driver.create(topic)[0]
    assert (result.error_code, result.error_message, result.num_partitions) == (0, "", partitions)
    record = driver.state.topics[result.topic_id]
    assert [placement.partition for placement in record.placements] == list(range(partitions))
    assert list(record.configs) == list(topic.configs) == list(result.configs)


def test_one_request_with_duplicates_collisions_and_good_ones(driver: CoordinatorDriver) -> None:
    results = driver.create(
        creatable("twice", 1), creatable("good", 1), creatable("twice", 1), creatable("x.y", 1), creatable("x_y", 1)
    )
    codes = {result.name: E(result.error_code) for result in results}
    assert codes == {
        "twice": E.INVALID_REQUEST,
        "good": E.NONE,
        "x.y": E.NONE,
        "x_y": E.INVALID_TOPIC_EXCEPTION,
    }
    assert set(driver.state.topic_ids) == {"taken.name", "good", "x.y"}


def test_the_partition_limit_counts_the_whole_request(driver: CoordinatorDriver) -> None:
    results = driver.create(creatable("a", 10), creatable("b", 9), creatable("c", 8))
    assert [E(result.error_code) for result in results] == [E.NONE, E.POLICY_VIOLATION, E.NONE]


def test_validate_only_checks_and_changes_nothing(driver: CoordinatorDriver) -> None:
    version, rows = driver.state.version, dict(driver.rows)
    good, bad = driver.create(creatable("t", 2), creatable("u", 0), validate_only=True)
    assert (good.error_code, good.num_partitions, good.topic_id) == (0, 2, bytes(16))
    assert E(bad.error_code) is E.INVALID_PARTITIONS
    assert (driver.state.version, driver.rows) == (version, rows)


def test_topic_ids_are_random_version_4_uuids() -> None:
    source = random.Random(7)
    ids = [random_topic_id(source) for _ in range(300)]
    assert len(set(ids)) == 300
    assert {uuid.UUID(bytes=topic_id).version for topic_id in ids} == {4}


def test_deleting_by_name_and_by_id(driver: CoordinatorDriver) -> None:
    kept, gone = driver.create_topic("kept", 1), driver.create_topic("gone", 3)
    by_name, by_id = driver.delete("taken.name", gone)
    assert (by_name.error_code, by_name.name, len(by_name.topic_id)) == (0, "taken.name", 16)
    assert (by_id.error_code, by_id.name, by_id.topic_id) == (0, "gone", gone)
    assert list(driver.state.topics) == [kept]
    assert driver.state.partition_count == 1
    assert driver.state.partitions_placed == {1: 1}
    assert driver.load().state == driver.state
    assert driver.create(creatable("taken_name", 1))[0].error_code == 0, "the name that it collided with is free"


def test_refused_deletions(driver: CoordinatorDriver) -> None:
    topic_id = driver.state.topic_ids["taken.name"]
    assert codes(driver.delete("missing")) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(driver.delete(b"?" * 16)) == [E.UNKNOWN_TOPIC_ID]
    assert codes(driver.delete("")) == [E.INVALID_REQUEST]
    assert codes(driver.delete("__consumer_offsets", "__share_group_state")) == [E.INVALID_REQUEST] * 2
    assert codes(driver.delete("taken.name", topic_id)) == [E.INVALID_REQUEST] * 2
    assert codes(driver.delete("taken.name", "taken.name")) == [E.INVALID_REQUEST], "said twice, refused once"
    assert topic_id in driver.state.topics


def codes(results: list[pb.DeleteTopicsResponse.Result]) -> list[E]:
    return [E(result.error_code) for result in results]


def test_deletion_can_be_disabled() -> None:
    driver = CoordinatorDriver({"delete.topic.enable": "false"})
    driver.create_topic("t")
    assert codes(driver.delete("t")) == [E.TOPIC_DELETION_DISABLED]


def test_partitions_go_to_the_leaders_that_have_least() -> None:
    driver = CoordinatorDriver()
    driver.register(pb.ROLE_LEADER, 1)
    driver.create_topic("a", 3)
    driver.register(pb.ROLE_LEADER, 2)
    topic = driver.state.topics[driver.create_topic("b", 5)]
    assert driver.state.partitions_placed == {1: 4, 2: 4}
    assert [placement.leader_node_id for placement in topic.placements] == [2, 2, 2, 1, 2]


def test_partitions_wait_for_the_first_leader_and_stay_where_they_are() -> None:
    driver = CoordinatorDriver()
    topic_id = driver.create_topic("a", 2)
    assert [placement.leader_node_id for placement in driver.state.topics[topic_id].placements] == [-1, -1]
    driver.register(pb.ROLE_LEADER, 4)
    assert [placement.leader_node_id for placement in driver.state.topics[topic_id].placements] == [4, 4]
    assert driver.state.partitions_placed == {4: 2}
    driver.register(pb.ROLE_LEADER, 5)
    assert driver.state.partitions_placed == {4: 2}
