"""Initialized share-partitions whose state is gone when a share coordinator starts, as after a restore of its store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kshare_coordinator.machine import commands
from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.cluster import CoordinatorCluster, FakeShareCoordinator, run_virtually
from support.coordinator.driver import CoordinatorDriver, assigned

PARTITIONS = range(4)
NOT_READY = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE]


async def cluster_with_state() -> tuple[CoordinatorCluster, FakeShareCoordinator, bytes]:
    """A group whose share-partitions are all initialized; also the share coordinator and the topic's id."""
    cluster = CoordinatorCluster()
    await cluster.start()
    fake = await cluster.add_share_coordinator(1)
    topic = await cluster.create_topic("t", len(PARTITIONS))
    await cluster.heartbeat("m", 0, ["t"])
    await asyncio.sleep(1)
    assert assigned(await cluster.heartbeat("m", 2)) == {"t": list(PARTITIONS)}
    for partition in PARTITIONS:
        fake.state["group", topic.topic_id, partition] = (2, 100 + partition)
    return cluster, fake, topic.topic_id


async def restart_share_coordinator(cluster: CoordinatorCluster) -> None:
    await cluster.register(pb.ROLE_SHARE_COORDINATOR, 1, "share:1", incarnation="two")


@pytest.mark.parametrize("refusals", [[], NOT_READY, [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 6])
@pytest.mark.parametrize("lost", [(0,), (1, 3), PARTITIONS])
def test_share_partitions_that_a_restored_store_lacks_begin_anew(
    lost: Sequence[int], refusals: list[ErrorCode]
) -> None:
    async def main() -> None:
        cluster, fake, topic_id = await cluster_with_state()
        for partition in lost:
            del fake.state["group", topic_id, partition]
        fake.summary_refusals = list(refusals)
        await restart_share_coordinator(cluster)
        await asyncio.sleep(9)  # the lease lasts for 10 s
        assert [[entry.partition for entry in request.partitions] for _, request in fake.initialized[1:]] == [[*lost]]
        for partition in PARTITIONS:
            expected = (3, 0) if partition in lost else (2, 100 + partition)
            assert fake.state["group", topic_id, partition] == expected, "state that is there is not replaced"
        answer = await cluster.heartbeat("m", 3, ["t"])
        assert assigned(answer) == {"t": list(PARTITIONS)}
        await cluster.node.stop(0)

    run_virtually(main)


def test_an_interrupted_search_goes_on_after_a_restart_of_the_coordinator() -> None:
    async def main() -> None:
        cluster, fake, topic_id = await cluster_with_state()
        del fake.state["group", topic_id, 2]
        fake.summary_refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 5
        await restart_share_coordinator(cluster)
        await cluster.restart()
        await asyncio.sleep(9)
        assert fake.state["group", topic_id, 2] == (3, 0)
        await cluster.node.stop(0)

    run_virtually(main)


@pytest.mark.parametrize("code", [ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR])
def test_state_that_cannot_be_read_is_not_lost(code: ErrorCode) -> None:
    async def main() -> None:
        cluster, fake, _ = await cluster_with_state()
        fake.state.clear()  # what it would answer otherwise
        fake.summary_refusals = [code]
        await restart_share_coordinator(cluster)
        await asyncio.sleep(9)
        assert len(fake.initialized) == 1 and not fake.summary_refusals
        await cluster.node.stop(0)

    run_virtually(main)


def test_groups_and_topics_that_are_deleted_meanwhile_are_left_alone() -> None:
    async def main() -> None:
        cluster, fake, _ = await cluster_with_state()
        fake.state.clear()
        fake.summary_refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3
        await restart_share_coordinator(cluster)
        await cluster.delete_topic("t")
        await asyncio.sleep(9)
        assert len(fake.initialized) == 1 and fake.state == {}
        await cluster.node.stop(0)

    run_virtually(main)


def test_only_what_is_still_initialized_with_the_same_state_epoch_begins_anew() -> None:
    driver = CoordinatorDriver()
    topic_id, other_id = driver.create_topic("t", 2), driver.create_topic("other", 1)
    driver.heartbeat("m", 0, ["t"])
    driver.initialize_all()
    epoch = driver.state.share_groups["group"].state_epoch
    lost = tuple(TopicPartition(*key) for key in ((topic_id, 1), (topic_id, 7), (other_id, 0)))

    def begin_anew(group_id: str, state_epoch: int) -> int:
        return driver.run(commands.BeginStateAnew(group_id=group_id, state_epoch=state_epoch, lost=lost))

    rows = dict(driver.rows)
    assert [begin_anew("group", epoch - 1), begin_anew("group", epoch + 1), begin_anew("none", epoch)] == [0, 0, 0]
    assert driver.rows == rows
    assert begin_anew("group", epoch) == 1
    (entry,) = driver.state.share_groups["group"].partitions.initializing
    assert (entry.topic_id, entry.partitions, entry.start_offset, entry.state_epoch) == (topic_id, (1,), 0, epoch)
    assert any(isinstance(effect, commands.GroupStatePending) for effect in driver.effects)
    assert begin_anew("group", epoch) == 0, "it is initializing now"
    driver.restart()
    driver.initialize_all()
    assert driver.state.share_groups["group"].partitions.initialized[topic_id].partitions == (0, 1)


def test_only_what_was_not_answered_is_asked_for_again() -> None:
    """A state partition may have no share coordinator that serves it for long."""

    async def main() -> None:
        cluster, fake, _ = await cluster_with_state()
        fake.summary_codes[2] = ErrorCode.COORDINATOR_NOT_AVAILABLE
        fake.summaries.clear()
        await restart_share_coordinator(cluster)
        await asyncio.sleep(5)
        asked = [[entry.partition for entry in request.partitions] for request in fake.summaries]
        assert asked[0] == list(PARTITIONS) and len(asked) > 3
        assert all(again == [2] for again in asked[1:])
        await cluster.node.stop(0)

    run_virtually(main)
