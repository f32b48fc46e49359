"""Owners of state partitions: balance by the fewest moves, draining, and moves that end or are taken back."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_coordinator.machine import commands
from kshare_coordinator.machine.catalog.state_partitions import MOVES_AT_ONCE, describe, settle
from kshare_core.errors import ErrorCode, KafkaError
from kshare_rpc.generated.kshare.v1 import coordinator_pb2 as pb
from support.coordinator.driver import CoordinatorDriver

Owner = pb.StatePartitionOwner
SHARE_COORDINATOR = pb.ROLE_SHARE_COORDINATOR


def complete(driver: CoordinatorDriver, owner: Owner) -> None:
    request = pb.CompleteStatePartitionMoveRequest(
        state_partition=owner.state_partition, node_id=owner.moving_to_node_id, owner_epoch=owner.owner_epoch
    )
    driver.run(commands.CompleteStatePartitionMove(request=request))


def moving(driver: CoordinatorDriver) -> list[Owner]:
    return [owner for _, owner in sorted(driver.state.state_partitions.items()) if owner.is_moving]


def finish_moves(driver: CoordinatorDriver) -> int:
    """Completes moves until there are none; returns how many there were."""
    count = 0
    while moves := moving(driver):
        assert len(moves) <= MOVES_AT_ONCE
        complete(driver, moves[0])
        count += 1
    return count


def drain(driver: CoordinatorDriver, node_id: int, *, undo: bool = False) -> int:
    request = pb.DrainShareCoordinatorRequest(node_id=node_id, undo=undo)
    return driver.run(commands.DrainShareCoordinator(request=request)).state_partitions_left


def expire(driver: CoordinatorDriver, node_id: int, incarnation: str = "one") -> None:
    driver.run(commands.ExpireNode(role=SHARE_COORDINATOR, node_id=node_id, incarnation=incarnation))


def loads(driver: CoordinatorDriver) -> dict[int, int]:
    return dict(Counter(driver.state.state_partition_owners.values()))


@pytest.fixture
def driver() -> CoordinatorDriver:
    made = CoordinatorDriver(state_partitions=50)
    made.register(SHARE_COORDINATOR, 1)
    return made


def test_from_one_to_three_and_back_moves_no_more_than_it_must(driver: CoordinatorDriver) -> None:
    assert loads(driver) == {1: 50}
    driver.register(SHARE_COORDINATOR, 2)
    assert finish_moves(driver) == 25
    assert loads(driver) == {1: 25, 2: 25}
    driver.register(SHARE_COORDINATOR, 3)
    assert finish_moves(driver) == 16
    assert sorted(loads(driver).values()) == [16, 17, 17]
    had = loads(driver)[3]
    assert drain(driver, 3) == had
    assert finish_moves(driver) == had
    assert drain(driver, 3) == 0
    assert loads(driver) == {1: 25, 2: 25}
    drain(driver, 2)
    assert finish_moves(driver) == 25
    assert loads(driver) == {1: 50}
    assert driver.load().state == driver.state


def test_the_owner_stays_the_owner_until_the_move_is_complete(driver: CoordinatorDriver) -> None:
    driver.register(SHARE_COORDINATOR, 2)
    owner = moving(driver)[0]
    assert (owner.node_id, owner.moving_to_node_id) == (1, 2)
    assert driver.state.state_partition_owners[owner.state_partition] == 1
    complete(driver, owner)
    after = driver.state.state_partitions[owner.state_partition]
    assert (after.node_id, after.is_moving) == (2, False)
    assert after.owner_epoch > owner.owner_epoch
    complete(driver, owner)  # the answer was lost, and it is said again
    assert driver.record_count == 0


@pytest.mark.parametrize(
    "change",
    [{"owner_epoch": 1}, {"node_id": 7}, {"state_partition": 0}, {"state_partition": 99}],
    ids=lambda change: next(iter(change)),
)
def test_a_move_that_is_not_under_way_cannot_be_completed(driver: CoordinatorDriver, change: dict[str, int]) -> None:
    driver.register(SHARE_COORDINATOR, 2)
    owner = moving(driver)[0]
    fields = {
        "state_partition": owner.state_partition,
        "node_id": owner.moving_to_node_id,
        "owner_epoch": owner.owner_epoch,
    }
    request = pb.CompleteStatePartitionMoveRequest(**{**fields, **change})
    with pytest.raises(KafkaError) as refused:
        driver.run(commands.CompleteStatePartitionMove(request=request))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_move_to_a_node_that_is_gone_is_taken_back(driver: CoordinatorDriver) -> None:
    driver.register(SHARE_COORDINATOR, 2)
    late = moving(driver)[0]
    expire(driver, 2)
    assert moving(driver) == []
    assert loads(driver) == {1: 50}
    with pytest.raises(KafkaError):
        complete(driver, late)
    assert driver.load().state == driver.state


def test_what_a_gone_node_owns_stays_with_it(driver: CoordinatorDriver) -> None:
    driver.register(SHARE_COORDINATOR, 2)
    finish_moves(driver)
    expire(driver, 2)
    assert moving(driver) == []
    assert loads(driver) == {1: 25, 2: 25}
    driver.register(SHARE_COORDINATOR, 3)
    finish_moves(driver)
    assert loads(driver) == {1: 13, 2: 25, 3: 12}


def test_a_move_whose_source_is_gone_waits_for_it(driver: CoordinatorDriver) -> None:
    driver.register(SHARE_COORDINATOR, 2)
    before = moving(driver)
    expire(driver, 1)
    assert moving(driver) == before
    driver.register(SHARE_COORDINATOR, 1, "two")
    assert moving(driver) == before


def test_draining_ends_with_a_new_process_or_by_hand(driver: CoordinatorDriver) -> None:
    driver.register(SHARE_COORDINATOR, 2)
    finish_moves(driver)
    drain(driver, 2)
    finish_moves(driver)
    expire(driver, 2)
    driver.register(SHARE_COORDINATOR, 2)  # the same process after a long pause: still to be empty
    assert finish_moves(driver) == 0
    driver.restart()
    driver.register(SHARE_COORDINATOR, 2, "two")
    assert finish_moves(driver) == 25
    drain(driver, 2)
    assert drain(driver, 2, undo=True) > 0
    finish_moves(driver)
    assert loads(driver) == {1: 25, 2: 25}


@pytest.mark.parametrize("node_id", [1, 9])
def test_a_node_that_cannot_be_drained(driver: CoordinatorDriver, node_id: int) -> None:
    with pytest.raises(KafkaError) as refused:
        drain(driver, node_id)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_gone_node_cannot_be_drained(driver: CoordinatorDriver) -> None:
    driver.register(SHARE_COORDINATOR, 2)
    finish_moves(driver)
    expire(driver, 2)
    with pytest.raises(KafkaError, match="not live"):
        drain(driver, 2)


def test_description(driver: CoordinatorDriver) -> None:
    driver.register(SHARE_COORDINATOR, 2)
    finish_moves(driver)
    drain(driver, 2)
    expire(driver, 1)
    described = describe(driver.state)
    assert [owner.state_partition for owner in described.state_partitions] == list(range(50))
    nodes = [(node.node_id, node.is_live, node.is_draining) for node in described.share_coordinators]
    assert nodes == [(1, False, False), (2, True, True)]


@given(
    placed=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    live=st.sets(st.integers(0, 4)),
    draining=st.sets(st.integers(0, 4)),
)
def test_any_state_becomes_balanced_by_the_fewest_moves(placed: list[int], live: set[int], draining: set[int]) -> None:
    owners = {number: Owner(state_partition=number, node_id=node_id) for number, node_id in enumerate(placed)}
    moves = 0
    for _ in range(200):
        changed = {owner.state_partition: owner for owner in settle(owners, len(placed), live, draining, 7)}
        assert all(owner.is_moving and owner.node_id in live for owner in changed.values())
        owners |= changed
        under_way = [owner for owner in owners.values() if owner.is_moving]
        assert len(under_way) <= MOVES_AT_ONCE
        if not under_way:
            break
        done = under_way[0]
        owners[done.state_partition] = Owner(state_partition=done.state_partition, node_id=done.moving_to_node_id)
        moves += 1
    takers = live - draining
    counts = Counter(owner.node_id for owner in owners.values())
    if takers:
        shares = [counts[node_id] for node_id in takers]
        assert max(shares) - min(shares) <= 1
        assert not any(counts[node_id] for node_id in live & draining)
        before = Counter(placed)
        assert moves == sum(max(0, counts[node_id] - before[node_id]) for node_id in takers)
        assert moves <= _fewest(before, takers, live & draining)
    else:
        assert moves == 0


def _fewest(before: Counter[int], takers: set[int], emptied: set[int]) -> int:
    """Each taker above its share gives what is above; the largest takers keep the remainders."""
    total = sum(before[node_id] for node_id in takers | emptied)
    share, larger = divmod(total, len(takers))
    ordered = sorted((before[node_id] for node_id in takers), reverse=True)
    wanted = [share + (index < larger) for index in range(len(takers))]
    return sum(max(0, target - had) for had, target in zip(ordered, wanted, strict=True))
