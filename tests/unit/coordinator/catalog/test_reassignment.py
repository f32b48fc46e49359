"""Moves of topic partitions as the catalog decides them: begin, fence, complete, take back, drain; and each refusal."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.partition_moves import PARTITIONS_LIMIT
from kshare_coordinator.machine.catalog.view import catalog_answer, describe_partitions
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver
from support.coordinator.reassignment_commands import (
    advance,
    cancel,
    complete,
    drain,
    expire,
    fence,
    leaders_of,
    move,
    moves_of,
    partition_view,
)

LEADER = pb.ROLE_LEADER
Step = pb.AdvancePartitionMoveRequest


@pytest.fixture
def driver() -> CoordinatorDriver:
    """Two leaders; topic "t" has four partitions, two at each."""
    made = CoordinatorDriver()
    made.register(LEADER, 1)
    made.register(LEADER, 2)
    made.create_topic("t", 4)
    return made


def test_new_topics_go_to_the_leader_that_has_least(driver: CoordinatorDriver) -> None:
    assert leaders_of(driver, "t") == [1, 2, 1, 2]
    driver.register(LEADER, 3)
    driver.create_topic("u", 3)
    assert leaders_of(driver, "u") == [3, 3, 1]


def test_a_move_from_its_begin_to_the_switch(driver: CoordinatorDriver) -> None:
    before = partition_view(driver, "t", 0)
    version = driver.state.version
    assert [result.error_code for result in move(driver, "t", [0], 2).results] == [ErrorCode.NONE]
    begun = partition_view(driver, "t", 0)
    assert (begun.leader_node_id, begun.is_moving, begun.moving_to_node_id, begun.is_fenced) == (1, True, 2, False)
    assert begun.move_epoch == driver.state.epoch_counter
    assert begun.leader_epoch == before.leader_epoch, "it is served as before"
    assert driver.state.version == version + 1
    assert driver.effects == [commands.CatalogChanged(nodes=False)]

    fence(driver, "t", 0)
    fenced = partition_view(driver, "t", 0)
    assert fenced.is_fenced and fenced.move_epoch == begun.move_epoch and fenced.leader_node_id == 1

    complete(driver, "t", 0)
    switched = partition_view(driver, "t", 0)
    assert (switched.leader_node_id, switched.is_moving, switched.is_fenced) == (2, False, False)
    assert switched.placement_epoch > begun.move_epoch
    assert switched.leader_epoch > before.leader_epoch
    assert driver.state.partitions_placed == {1: 1, 2: 3} and driver.state.moving_partitions == 0


def test_watchers_hear_of_each_step(driver: CoordinatorDriver) -> None:
    for step in (
        lambda: move(driver, "t", [0], 2),
        lambda: fence(driver, "t", 0),
        lambda: complete(driver, "t", 0),
    ):
        version = driver.state.version
        step()
        answer = catalog_answer(driver.state, version)
        assert [topic.name for topic in answer.topics] == ["t"] and not answer.full


def test_each_step_may_be_said_again(driver: CoordinatorDriver) -> None:
    move(driver, "t", [0], 2)
    epoch = partition_view(driver, "t", 0).move_epoch
    version = driver.state.version
    assert [result.error_code for result in move(driver, "t", [0], 2).results] == [ErrorCode.NONE]
    assert driver.state.version == version and partition_view(driver, "t", 0).move_epoch == epoch
    fence(driver, "t", 0)
    version = driver.state.version
    fence(driver, "t", 0)
    assert driver.state.version == version
    complete(driver, "t", 0)
    version = driver.state.version
    advance(driver, "t", 0, 2, epoch, Step.COMPLETE)
    assert driver.state.version == version
    assert [result.error_code for result in move(driver, "t", [0], 2).results] == [ErrorCode.NONE], "it is there"
    assert driver.state.version == version


@pytest.mark.parametrize("step", [Step.FENCE, Step.COMPLETE, Step.GIVE_UP])
@pytest.mark.parametrize("what", ["another node", "an older epoch", "another partition", "no such topic", "not moving"])
def test_a_step_of_a_move_that_is_not(driver: CoordinatorDriver, step: Step.Step.ValueType, what: str) -> None:
    move(driver, "t", [0], 2)
    fence(driver, "t", 0)
    epoch = partition_view(driver, "t", 0).move_epoch
    topic, partition, node_id = "t", 0, 2
    if what == "another node":
        node_id = 1
    elif what == "an older epoch":
        epoch -= 1
    elif what == "another partition":
        partition = 9
    elif what == "no such topic":
        topic = "gone"
    else:
        cancel(driver, "t", [0])
    version = driver.state.version
    with pytest.raises(KafkaError) as refusal:
        advance(driver, topic, partition, node_id, epoch, step)
    assert refusal.value.code == ErrorCode.INVALID_REQUEST
    assert driver.state.version == version


def test_what_is_not_fenced_cannot_be_completed(driver: CoordinatorDriver) -> None:
    move(driver, "t", [0], 2)
    with pytest.raises(KafkaError, match="still served by leader 1; fence it first"):
        complete(driver, "t", 0)
    with pytest.raises(KafkaError, match="Step 0"):
        advance(driver, "t", 0, 2, partition_view(driver, "t", 0).move_epoch, Step.STEP_UNSPECIFIED)


@pytest.mark.parametrize("is_fenced", [False, True])
@pytest.mark.parametrize("how", ["cancelled", "given up", "target gone", "target drained", "target registers anew"])
def test_a_move_that_is_taken_back(driver: CoordinatorDriver, how: str, is_fenced: bool) -> None:
    driver.register(LEADER, 3)
    before = partition_view(driver, "t", 0)
    move(driver, "t", [0], 3)
    if is_fenced:
        fence(driver, "t", 0)
    epoch = partition_view(driver, "t", 0).move_epoch
    if how == "cancelled":
        cancel(driver, "t", [0])
    elif how == "given up":
        advance(driver, "t", 0, 3, epoch, Step.GIVE_UP)
    elif how == "target gone":
        expire(driver, 3)
    elif how == "target drained":
        drain(driver, 3)
    else:
        driver.register(LEADER, 3, "two")
        assert partition_view(driver, "t", 0).is_moving, "a process that starts again goes on with the move"
        return
    after = partition_view(driver, "t", 0)
    assert (after.leader_node_id, after.is_moving, after.is_fenced) == (1, False, False)
    assert after.placement_epoch > epoch, "every copy that was begun is older than the placement"
    assert after.leader_epoch > before.leader_epoch
    with pytest.raises(KafkaError):
        advance(driver, "t", 0, 3, epoch, Step.COMPLETE)


def test_a_source_that_is_gone_keeps_its_partitions_and_their_moves(driver: CoordinatorDriver) -> None:
    move(driver, "t", [0, 2], 2)
    fence(driver, "t", 0)
    expire(driver, 1)
    assert moves_of(driver, "t") == {0: (1, 2), 2: (1, 2)}
    complete(driver, "t", 0)
    assert leaders_of(driver, "t") == [2, 2, 1, 2], "all of its rows were copied"


REFUSALS = [
    ("t", 4, 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it has 4 partitions"),
    ("gone", 0, 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it does not exist"),
    ("t", 1, 3, ErrorCode.REASSIGNMENT_IN_PROGRESS, "is already moving to leader 1"),
]


@pytest.mark.parametrize(("topic", "partition", "to", "code", "text"), REFUSALS)
def test_a_partition_that_cannot_move(
    driver: CoordinatorDriver, topic: str, partition: int, to: int, code: ErrorCode, text: str
) -> None:
    driver.register(LEADER, 3)
    move(driver, "t", [1], 1)
    result = move(driver, topic, [partition], to).results[0]
    assert result.error_code == code and text in result.error_message


def test_a_partition_of_a_leader_that_is_gone_cannot_move(driver: CoordinatorDriver) -> None:
    expire(driver, 1)
    result = move(driver, "t", [0], 2).results[0]
    assert result.error_code == ErrorCode.INVALID_REQUEST and "disk of leader 1" in result.error_message
    assert result.leader_node_id == 1


def test_targets_that_cannot_take_anything(driver: CoordinatorDriver) -> None:
    with pytest.raises(KafkaError, match="live leaders: 1, 2"):
        move(driver, "t", [0], 9)
    drain(driver, 2)
    with pytest.raises(KafkaError, match="being drained"):
        move(driver, "t", [0], 2)
    with pytest.raises(KafkaError, match=str(PARTITIONS_LIMIT)):
        move(driver, "t", list(range(PARTITIONS_LIMIT + 1)), 1)


def test_nothing_to_take_back(driver: CoordinatorDriver) -> None:
    result = cancel(driver, "t", [0]).results[0]
    assert result.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_those_that_are_right_move_whatever_the_others_are(driver: CoordinatorDriver) -> None:
    answer = move(driver, "t", [0, 7, 2], 2)
    assert [result.error_code for result in answer.results] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert moves_of(driver, "t") == {0: (1, 2), 2: (1, 2)}
    assert answer.version == driver.state.version


def test_a_deleted_topic_takes_its_moves_along(driver: CoordinatorDriver) -> None:
    move(driver, "t", [0], 2)
    driver.delete("t")
    assert driver.state.moving_partitions == 0


def test_new_partitions_leave_moves_alone(driver: CoordinatorDriver) -> None:
    move(driver, "t", [0], 2)
    topic = pb.CreatePartitionsRequest.Topic(name="t", count=6, assigned_count=-1)
    driver.run(commands.CreatePartitions(request=pb.CreatePartitionsRequest(topics=[topic])))
    assert moves_of(driver, "t") == {0: (1, 2)} and leaders_of(driver, "t") == [1, 2, 1, 2, 1, 2]


# Emptying a leader


def test_a_leader_is_emptied(driver: CoordinatorDriver) -> None:
    driver.register(LEADER, 3)
    assert drain(driver, 2) == 2
    assert moves_of(driver, "t") == {1: (2, 3), 3: (2, 3)}, "to the leader that has least"
    version = driver.state.version
    assert drain(driver, 2) == 2 and driver.state.version == version, "asking again tells how many are left"
    driver.create_topic("u", 4)
    assert 2 not in leaders_of(driver, "u")
    for partition in (1, 3):
        fence(driver, "t", partition)
        complete(driver, "t", partition)
    assert drain(driver, 2) == 0 and leaders_of(driver, "t") == [1, 3, 1, 3]
    described = describe_partitions(driver.state, [])
    assert [(leader.node_id, leader.is_draining, leader.partition_count) for leader in described.leaders] == [
        (1, False, leaders_of(driver, "u").count(1) + 2),
        (2, True, 0),
        (3, False, leaders_of(driver, "u").count(3) + 2),
    ]


def test_a_drain_that_is_taken_back(driver: CoordinatorDriver) -> None:
    drain(driver, 2)
    assert moves_of(driver, "t") == {1: (2, 1), 3: (2, 1)}
    fence(driver, "t", 1)
    complete(driver, "t", 1)
    drain(driver, 2, undo=True)
    assert moves_of(driver, "t") == {} and leaders_of(driver, "t") == [1, 1, 1, 2]
    version = driver.state.version
    drain(driver, 2, undo=True)
    assert driver.state.version == version
    driver.create_topic("u", 2)
    assert leaders_of(driver, "u") == [2, 2]


def test_a_drain_goes_on_to_another_leader_when_the_first_is_lost(driver: CoordinatorDriver) -> None:
    driver.register(LEADER, 3)
    drain(driver, 2)
    expire(driver, 3)
    assert moves_of(driver, "t") == {1: (2, 1), 3: (2, 1)}


def test_a_drained_leader_that_starts_again_may_have_partitions(driver: CoordinatorDriver) -> None:
    drain(driver, 2)
    driver.register(LEADER, 2, "two")
    driver.create_topic("u", 2)
    assert 2 in leaders_of(driver, "u")
    assert moves_of(driver, "t") == {1: (2, 1), 3: (2, 1)}, "what moves already goes on"


def test_drains_that_cannot_be(driver: CoordinatorDriver) -> None:
    with pytest.raises(KafkaError, match="not registered"):
        drain(driver, 9)
    drain(driver, 2)
    with pytest.raises(KafkaError, match="no other live leader can take its 2 partitions"):
        drain(driver, 1)
    expire(driver, 1)
    with pytest.raises(KafkaError, match="not live, and its 2 partitions"):
        drain(driver, 1)


def test_partitions_that_wait_are_placed_where_they_may_stay() -> None:
    driver = CoordinatorDriver()
    driver.create_topic("t", 2)
    assert leaders_of(driver, "t") == [-1, -1]
    driver.register(LEADER, 1)
    assert leaders_of(driver, "t") == [1, 1]
    assert partition_view(driver, "t", 0).placement_epoch == driver.state.epoch_counter


def test_everything_comes_back_from_the_rows(driver: CoordinatorDriver) -> None:
    move(driver, "t", [0, 2], 2)
    fence(driver, "t", 0)
    drain(driver, 1)
    assert driver.load().state == driver.state


def test_describing_a_topic_that_does_not_exist(driver: CoordinatorDriver) -> None:
    with pytest.raises(KafkaError) as refusal:
        describe_partitions(driver.state, ["gone"])
    assert refusal.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
