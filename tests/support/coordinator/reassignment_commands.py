"""Commands and looks of tests of the catalog's moves of topic partitions."""

from __future__ import annotations

from collections.abc import Sequence

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.view import topic_view
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver

Step = pb.AdvancePartitionMoveRequest
NO_TOPIC = bytes(16)


def move(driver: CoordinatorDriver, topic: str, partitions: Sequence[int], to: int) -> pb.MovePartitionsResponse:
    named = pb.NamedPartitions(topic_name=topic, partitions=partitions)
    return driver.run(commands.MovePartitions(request=pb.MovePartitionsRequest(topics=[named], to_node_id=to)))


def cancel(driver: CoordinatorDriver, topic: str, partitions: Sequence[int]) -> pb.MovePartitionsResponse:
    named = pb.NamedPartitions(topic_name=topic, partitions=partitions)
    return driver.run(commands.MovePartitions(request=pb.MovePartitionsRequest(topics=[named], cancel=True)))


def advance(
    driver: CoordinatorDriver, topic: str, partition: int, node_id: int, epoch: int, step: Step.Step.ValueType
) -> pb.AdvancePartitionMoveResponse:
    request = pb.AdvancePartitionMoveRequest(
        topic_id=driver.state.topic_ids.get(topic, NO_TOPIC),
        partition=partition,
        node_id=node_id,
        move_epoch=epoch,
        step=step,
    )
    return driver.run(commands.AdvancePartitionMove(request=request))


def fence(driver: CoordinatorDriver, topic: str, partition: int) -> None:
    """By the node and with the epoch of the move that is under way."""
    moving = partition_view(driver, topic, partition)
    advance(driver, topic, partition, moving.moving_to_node_id, moving.move_epoch, Step.FENCE)


def complete(driver: CoordinatorDriver, topic: str, partition: int) -> None:
    moving = partition_view(driver, topic, partition)
    advance(driver, topic, partition, moving.moving_to_node_id, moving.move_epoch, Step.COMPLETE)


def drain(driver: CoordinatorDriver, node_id: int, *, undo: bool = False) -> int:
    """How many partitions are left."""
    request = pb.DrainLeaderRequest(node_id=node_id, undo=undo)
    return driver.run(commands.DrainLeader(request=request)).partitions_left


def expire(driver: CoordinatorDriver, node_id: int, incarnation: str = "one") -> None:
    driver.run(commands.ExpireNode(role=pb.ROLE_LEADER, node_id=node_id, incarnation=incarnation))


def partition_view(driver: CoordinatorDriver, topic: str, partition: int) -> pb.Topic.Partition:
    """As all roles see it."""
    found = driver.state.topic_named(topic)
    assert found is not None
    return topic_view(driver.state, found).partitions[partition]


def leaders_of(driver: CoordinatorDriver, topic: str) -> list[int]:
    found = driver.state.topic_named(topic)
    assert found is not None
    return [placement.leader_node_id for placement in found.placements]


def moves_of(driver: CoordinatorDriver, topic: str) -> dict[int, tuple[int, int]]:
    """From and to, by partition."""
    found = driver.state.topic_named(topic)
    assert found is not None
    return {
        placement.partition: (placement.leader_node_id, placement.moving_to_node_id)
        for placement in found.placements
        if placement.is_moving
    }
