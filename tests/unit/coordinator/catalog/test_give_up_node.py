"""GiveUpNode: what a node that will not return loses, which nodes take over, and that a live node is refused."""

from __future__ import annotations

import pytest

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.view import catalog_answer
from kshare_coordinator.machine.groups.share.group import PartitionMetadata
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey, state_partition_of
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver
from support.coordinator.reassignment_commands import (
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
SHARE_COORDINATOR = pb.ROLE_SHARE_COORDINATOR


def give_up(
    driver: CoordinatorDriver, role: pb.Role.ValueType, node_id: int, *, unsafe: bool = True
) -> pb.GiveUpNodeResponse:
    request = pb.GiveUpNodeRequest(role=role, node_id=node_id, unsafe=unsafe)
    return driver.run(commands.GiveUpNode(request=request))


def refusal(driver: CoordinatorDriver, role: pb.Role.ValueType, node_id: int, *, unsafe: bool = True) -> str:
    rows = dict(driver.rows)
    with pytest.raises(KafkaError) as refused:
        give_up(driver, role, node_id, unsafe=unsafe)
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert driver.rows == rows
    return refused.value.message


def expire_share_coordinator(driver: CoordinatorDriver, node_id: int) -> None:
    driver.run(commands.ExpireNode(role=SHARE_COORDINATOR, node_id=node_id, incarnation="one"))


@pytest.fixture
def driver() -> CoordinatorDriver:
    """Two leaders; topic "t" has four partitions, two at each. Two share coordinators; the first has everything."""
    made = CoordinatorDriver()
    for node_id in (1, 2):
        made.register(LEADER, node_id)
    made.register(SHARE_COORDINATOR, 1)
    made.create_topic("t", 4)
    return made


# Leaders


def test_partitions_of_a_leader_that_is_given_up_begin_anew_at_a_live_one(driver: CoordinatorDriver) -> None:
    before = partition_view(driver, "t", 0)
    expire(driver, 1)
    assert leaders_of(driver, "t") == [1, 2, 1, 2], "what it has waits for it"
    loss = give_up(driver, LEADER, 1)
    assert [(lost.topic_name, lost.partition) for lost in loss.partitions] == [("t", 0), ("t", 2)]
    assert leaders_of(driver, "t") == [2, 2, 2, 2]
    after = partition_view(driver, "t", 0)
    assert after.given_up_epoch == driver.state.epoch_counter
    assert after.leader_epoch > before.leader_epoch, "the former leader is fenced"
    assert partition_view(driver, "t", 1).given_up_epoch == 0
    driver.restart()
    assert partition_view(driver, "t", 0) == after


def test_watchers_see_the_new_leaders(driver: CoordinatorDriver) -> None:
    expire(driver, 1)
    version = driver.state.version
    give_up(driver, LEADER, 1)
    answer = catalog_answer(driver.state, version)
    assert [topic.name for topic in answer.topics] == ["t"] and not answer.full
    assert driver.effects[0] == commands.CatalogChanged(nodes=True)


def test_without_unsafe_nothing_changes_and_the_loss_is_named(driver: CoordinatorDriver) -> None:
    request = pb.OffsetCommitRequest(group_id="readers", generation_id_or_member_epoch=-1)
    request.offsets.add(topic_id=driver.state.topic_ids["t"], topic_name="t", partition=2, committed_offset=17)
    driver.run(commands.OffsetCommit(request=request))
    expire(driver, 1)
    rows = dict(driver.rows)
    loss = give_up(driver, LEADER, 1, unsafe=False)
    assert [(lost.partition, lost.highest_committed_offset) for lost in loss.partitions] == [(0, -1), (2, 17)]
    assert driver.rows == rows


def test_a_live_leader_one_without_partitions_and_the_last_one_are_refused(driver: CoordinatorDriver) -> None:
    assert "it is live; kshare partitions drain 1" in refusal(driver, LEADER, 1)
    assert "it has no partitions" in refusal(driver, LEADER, 7)
    expire(driver, 1)
    expire(driver, 2)
    assert "no live leader can take over its 2 partitions" in refusal(driver, LEADER, 1, unsafe=False)
    assert "Only leaders and share coordinators" in refusal(driver, pb.ROLE_GATEWAY, 1)


def test_a_move_away_from_a_leader_that_is_given_up_ends(driver: CoordinatorDriver) -> None:
    move(driver, "t", [0], 2)
    fence(driver, "t", 0)
    begun = partition_view(driver, "t", 0)
    expire(driver, 1)
    give_up(driver, LEADER, 1)
    placed = partition_view(driver, "t", 0)
    assert (placed.leader_node_id, placed.is_moving, placed.is_fenced) == (2, False, False)
    assert placed.given_up_epoch > begun.move_epoch, "the new leader removes the unfinished copy"
    assert moves_of(driver, "t") == {}


def test_a_drain_of_a_leader_that_is_given_up_is_over(driver: CoordinatorDriver) -> None:
    drain(driver, 1)
    expire(driver, 1)
    give_up(driver, LEADER, 1)
    driver.register(LEADER, 1, "one")
    driver.create_topic("u", 1)
    assert leaders_of(driver, "u") == [1]


def test_the_epoch_of_giving_up_stays_when_the_partition_moves_on(driver: CoordinatorDriver) -> None:
    expire(driver, 1)
    give_up(driver, LEADER, 1)
    given_up_epoch = partition_view(driver, "t", 0).given_up_epoch
    driver.register(LEADER, 3)
    move(driver, "t", [0], 3)
    fence(driver, "t", 0)
    complete(driver, "t", 0)
    assert partition_view(driver, "t", 0).given_up_epoch == given_up_epoch


# Share coordinators


def group_of_two(driver: CoordinatorDriver, group_id: str = "group") -> dict[str, list[int]]:
    """A group with a member that has all partitions of "t"; the partitions by the share coordinator of their state."""
    driver.heartbeat("m", 0, ["t"], group_id)
    driver.initialize_all(group_id)
    driver.heartbeat("m", driver.state.share_groups[group_id].members["m"].member_epoch, None, group_id)
    topic_id = driver.state.topic_ids["t"]
    found: dict[str, list[int]] = {}
    for partition in range(4):
        key = SharePartitionKey(group_id, topic_id, partition)
        owner = driver.state.state_partition_owners[state_partition_of(key, driver.state.state_partition_count)]
        found.setdefault(str(owner), []).append(partition)
    return found


def partitions(driver: CoordinatorDriver, group_id: str = "group") -> PartitionMetadata:
    return driver.state.share_groups[group_id].partitions


def balanced(driver: CoordinatorDriver) -> None:
    """The second share coordinator joins and gets its part."""
    driver.register(SHARE_COORDINATOR, 2)
    while moving := [owner for owner in driver.state.state_partitions.values() if owner.is_moving]:
        request = pb.CompleteStatePartitionMoveRequest(
            state_partition=moving[0].state_partition,
            node_id=moving[0].moving_to_node_id,
            owner_epoch=moving[0].owner_epoch,
        )
        driver.run(commands.CompleteStatePartitionMove(request=request))


def test_share_partitions_of_lost_state_start_again_at_the_first_record(driver: CoordinatorDriver) -> None:
    balanced(driver)
    lost = group_of_two(driver)["1"]
    kept = [partition for partition in range(4) if partition not in lost]
    assert lost and kept, "the group has state at both"
    epoch, state_epoch = driver.state.share_groups["group"].epoch, driver.state.share_groups["group"].state_epoch
    expire_share_coordinator(driver, 1)
    loss = give_up(driver, SHARE_COORDINATOR, 1)
    assert set(driver.state.state_partition_owners.values()) == {2}
    assert len(loss.state_partitions) == 25
    assert [(state.group_id, state.topic_name, list(state.partitions)) for state in loss.states] == [
        ("group", "t", lost)
    ]
    pending = partitions(driver).initializing
    assert [(entry.partitions, entry.start_offset, entry.is_alteration) for entry in pending] == [
        (tuple(lost), 0, True)
    ]
    assert pending[0].state_epoch > state_epoch, "who has the former state is fenced"
    assert driver.state.share_groups["group"].epoch == epoch
    assert partitions(driver).initialized[driver.state.topic_ids["t"]].partitions == tuple(kept)
    assert any(isinstance(effect, commands.GroupStatePending) for effect in driver.effects)
    driver.restart()
    driver.initialize_all()
    assert partitions(driver).initialized[driver.state.topic_ids["t"]].partitions == (0, 1, 2, 3)
    driver.now_ms += 60_000
    driver.heartbeat("m", driver.state.share_groups["group"].members["m"].member_epoch)
    assert driver.state.share_groups["group"].targets["m"] == {driver.state.topic_ids["t"]: (0, 1, 2, 3)}


def test_state_is_begun_anew_once_and_what_comes_later_is_not(driver: CoordinatorDriver) -> None:
    group_of_two(driver)
    driver.register(SHARE_COORDINATOR, 3)
    expire_share_coordinator(driver, 1)
    give_up(driver, SHARE_COORDINATOR, 1)
    driver.initialize_all()
    group_of_two(driver, "later")
    for group_id in ("group", "later"):
        before = driver.state.share_groups[group_id].epoch
        assert not partitions(driver, group_id).is_pending
        driver.run(commands.ReconcileTopics())
        driver.heartbeat("n", 0, ["t"], group_id)
        assert not partitions(driver, group_id).is_pending
        assert driver.state.share_groups[group_id].epoch == before + 1, "only for the new member"


def test_groups_of_other_coordinators_are_brought_in_line_when_they_see_it(driver: CoordinatorDriver) -> None:
    """The active coordinator changes the owners; the group's rows are another one's."""
    group_of_two(driver)
    driver.register(SHARE_COORDINATOR, 3)
    expire_share_coordinator(driver, 1)
    elsewhere = dict(driver.state.share_groups)
    driver.state.share_groups.clear()
    give_up(driver, SHARE_COORDINATOR, 1)
    driver.state.share_groups.update(elsewhere)
    assert not partitions(driver).is_pending
    assert driver.run(commands.ReconcileTopics()) > 0
    assert [entry.partitions for entry in partitions(driver).initializing] == [(0, 1, 2, 3)]
    assert driver.run(commands.ReconcileTopics()) == 0


def test_a_live_share_coordinator_one_without_state_and_the_last_one_are_refused(driver: CoordinatorDriver) -> None:
    assert "it is live; kshare state drain 1" in refusal(driver, SHARE_COORDINATOR, 1)
    assert "it has no state partitions" in refusal(driver, SHARE_COORDINATOR, 9)
    expire_share_coordinator(driver, 1)
    assert "no live share coordinator can take over its 50" in refusal(driver, SHARE_COORDINATOR, 1)


def test_the_epoch_of_giving_up_stays_when_a_state_partition_moves_on(driver: CoordinatorDriver) -> None:
    driver.register(SHARE_COORDINATOR, 2)
    expire_share_coordinator(driver, 1)
    give_up(driver, SHARE_COORDINATOR, 1)
    given_up = {owner.given_up_epoch for owner in driver.state.state_partitions.values()}
    driver.register(SHARE_COORDINATOR, 3)
    balanced(driver)
    assert {owner.given_up_epoch for owner in driver.state.state_partitions.values()} == given_up
    assert set(driver.state.state_partition_owners.values()) == {2, 3}
