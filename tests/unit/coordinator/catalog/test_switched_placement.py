"""Placement in the kafka engine: partitions and state partitions follow the live nodes at once, by few switches."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.placement import NO_LEADER, is_spread, spread
from kshare_coordinator.machine.catalog.state_partitions import settle
from kshare_coordinator.machine.commands import MirroredTopic
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver
from support.coordinator.reassignment_commands import cancel, drain, expire, move, partition_view

KAFKA = {"kshare.engine": "kafka", "kshare.upstream.bootstrap.servers": "broker:9092"}
LEADER, SHARE_COORDINATOR = pb.ROLE_LEADER, pb.ROLE_SHARE_COORDINATOR
nodes = st.sets(st.integers(0, 5))


@given(placed=st.lists(st.integers(NO_LEADER, 5), max_size=60), takers=nodes)
def test_parts_are_spread_evenly_by_the_fewest_changes(placed: list[int], takers: set[int]) -> None:
    owners = dict(enumerate(placed))
    changed = spread(owners, sorted(takers))
    assert is_spread(Counter(placed), sorted(takers)) == (not changed)
    assert all(owners[part] != node_id and node_id in takers for part, node_id in changed.items())
    if takers:
        loads = Counter({**owners, **changed}.values())
        counts = [loads[node_id] for node_id in takers]
        assert sum(counts) == len(placed) and max(counts) - min(counts) <= 1
        before = Counter(placed)
        ordered = sorted((before[node_id] for node_id in takers), reverse=True)
        share, larger = divmod(len(placed), len(takers))
        kept = sum(min(had, share + (place < larger)) for place, had in enumerate(ordered))
        assert len(changed) == len(placed) - kept
    assert spread({**owners, **changed}, sorted(takers)) == {}


def test_a_node_gives_up_parts_of_every_topic() -> None:
    owners = {(topic, partition): 1 for topic in "abcd" for partition in range(4)}
    given_up = spread(owners, [1, 2])
    assert Counter(topic for topic, _ in given_up) == {topic: 2 for topic in "abcd"}


@given(placed=st.lists(st.integers(0, 4), max_size=40), live=nodes, draining=nodes, count=st.integers(0, 50))
def test_state_partitions_switch_at_once(placed: list[int], live: set[int], draining: set[int], count: int) -> None:
    owners = {
        number: pb.StatePartitionOwner(state_partition=number, node_id=node_id, owner_epoch=3)
        for number, node_id in enumerate(placed[:count])
    }
    changed = settle(owners, count, live, draining, 7, data_is_local=False)
    assert all(not owner.is_moving and owner.owner_epoch == 7 for owner in changed)
    after = owners | {owner.state_partition: owner for owner in changed}
    takers = (live - draining) or live
    if takers:
        loads = Counter(owner.node_id for owner in after.values())
        assert sorted(after) == list(range(count)) and set(loads) <= takers
        assert max(loads[node_id] for node_id in takers) - min(loads[node_id] for node_id in takers) <= 1
    else:
        assert after == owners


@pytest.fixture
def driver() -> CoordinatorDriver:
    """Two leaders and two share coordinators, and a topic of eight partitions."""
    made = CoordinatorDriver(KAFKA, state_partitions=10)
    for node_id in (1, 2):
        made.register(LEADER, node_id)
        made.register(SHARE_COORDINATOR, node_id)
    made.run(
        commands.MirrorTopics(
            cluster_id="c", topics=(MirroredTopic(name="orders", topic_id=b"1" * 16, partition_count=8),)
        )
    )
    return made


def leaders(driver: CoordinatorDriver) -> list[int]:
    return [placement.leader_node_id for placement in driver.state.topics[b"1" * 16].placements]


def epochs(driver: CoordinatorDriver) -> list[int]:
    topic = driver.state.topics[b"1" * 16]
    return [driver.state.leader_epoch(placement) for placement in topic.placements]


def owned(driver: CoordinatorDriver) -> dict[int, int]:
    assert not any(owner.is_moving for owner in driver.state.state_partitions.values())
    return dict(Counter(driver.state.state_partition_owners.values()))


def test_what_a_gone_leader_led_is_led_by_others_at_once(driver: CoordinatorDriver) -> None:
    before, old = leaders(driver), epochs(driver)
    assert Counter(before) == {1: 4, 2: 4}
    expire(driver, 1)
    assert leaders(driver) == [2] * 8
    grown = [new > was for new, was in zip(epochs(driver), old, strict=True)]
    assert grown == [leader == 1 for leader in before], "the leader epoch grows where the leader is another one"
    assert driver.load().state == driver.state


def test_a_leader_that_comes_gets_its_share_at_once(driver: CoordinatorDriver) -> None:
    before, old = leaders(driver), epochs(driver)
    driver.register(LEADER, 3)
    after = leaders(driver)
    assert sorted(Counter(after).values()) == [2, 3, 3]
    moved = [new != was for new, was in zip(after, before, strict=True)]
    assert moved.count(True) == after.count(3), "nothing else changes"
    assert [new > was for new, was in zip(epochs(driver), old, strict=True)] == moved


def test_the_last_leader_keeps_what_it_leads_and_has_it_when_it_is_back(driver: CoordinatorDriver) -> None:
    expire(driver, 1)
    expire(driver, 2)
    assert leaders(driver) == [2] * 8
    old = epochs(driver)
    driver.register(LEADER, 2, "two")
    assert leaders(driver) == [2] * 8
    assert all(new > was for new, was in zip(epochs(driver), old, strict=True)), "by the node's epoch"
    expire(driver, 2, "two")
    driver.register(LEADER, 5)
    assert leaders(driver) == [5] * 8


def test_draining_switches_and_undoing_it_switches_back(driver: CoordinatorDriver) -> None:
    drain(driver, 1)
    assert leaders(driver) == [2] * 8 and drain(driver, 1) == 0
    assert not any(partition_view(driver, "orders", partition).is_moving for partition in range(8))
    with pytest.raises(KafkaError, match="no other live leader can take its 8 partitions"):
        drain(driver, 2)
    drain(driver, 1, undo=True)
    assert Counter(leaders(driver)) == {1: 4, 2: 4}
    expire(driver, 1)
    with pytest.raises(KafkaError, match="it is not registered"):
        drain(driver, 1)


def test_an_administrators_move_is_a_switch(driver: CoordinatorDriver) -> None:
    mine = leaders(driver).index(1)
    old = epochs(driver)[mine]
    (result,) = move(driver, "orders", [mine], 2).results
    assert not result.error_code and leaders(driver)[mine] == 2 and epochs(driver)[mine] > old
    version = driver.state.version
    move(driver, "orders", [mine], 2)
    assert driver.state.version == version, "it is there"
    (result,) = cancel(driver, "orders", [mine]).results
    assert result.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_state_partitions_follow_share_coordinators(driver: CoordinatorDriver) -> None:
    def expire_share_coordinator(node_id: int) -> None:
        driver.run(commands.ExpireNode(role=SHARE_COORDINATOR, node_id=node_id, incarnation="one"))

    def drain_share_coordinator(node_id: int, *, undo: bool = False) -> None:
        request = pb.DrainShareCoordinatorRequest(node_id=node_id, undo=undo)
        driver.run(commands.DrainShareCoordinator(request=request))

    assert owned(driver) == {1: 5, 2: 5}
    driver.register(SHARE_COORDINATOR, 3)
    assert sorted(owned(driver).values()) == [3, 3, 4]
    before = {number: owner.owner_epoch for number, owner in driver.state.state_partitions.items()}
    lost = [number for number, node_id in driver.state.state_partition_owners.items() if node_id == 3]
    expire_share_coordinator(3)
    assert owned(driver) == {1: 5, 2: 5}
    after = {number: owner.owner_epoch for number, owner in driver.state.state_partitions.items()}
    assert [number for number in after if after[number] > before[number]] == lost
    drain_share_coordinator(1)
    assert owned(driver) == {2: 10}
    drain_share_coordinator(1, undo=True)
    assert owned(driver) == {1: 5, 2: 5}
    expire_share_coordinator(1)
    expire_share_coordinator(2)
    assert owned(driver) == {2: 10}, "nobody is there to take them"
    with pytest.raises(KafkaError, match="it is not registered"):
        drain_share_coordinator(2)
    driver.register(SHARE_COORDINATOR, 1, "two")
    assert owned(driver) == {1: 10} and driver.load().state == driver.state


def test_a_node_that_finds_a_higher_epoch_in_its_data_gets_one_above_it(driver: CoordinatorDriver) -> None:
    """The metadata were restored from an older copy: without it, claims of the state log would fence every owner."""
    node = pb.Node(role=SHARE_COORDINATOR, node_id=3, incarnation="one", rpc_address="host:3")

    def register(highest: int) -> int:
        request = pb.RegisterNodeRequest(node=node, highest_leader_epoch=highest)
        return driver.run(commands.RegisterNode(request=request)).node_epoch

    first = register(0)
    assert register(first) == first, "its own epoch is no news"
    assert register(1_000) == 1_001 and driver.state.epoch_counter == 1_001
    assert register(1_000) == 1_001, "said again, because the answer was lost"
    assert driver.register(SHARE_COORDINATOR, 4).node_epoch == 1_002
    newest = max(owner.owner_epoch for owner in driver.state.state_partitions.values())
    assert newest == 1_002, "later owners are above it, too"
