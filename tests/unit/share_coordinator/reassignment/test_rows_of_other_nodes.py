"""Rows of state partitions that other nodes own: a wrong node id or an old catalog costs none, and none is served."""

from __future__ import annotations

import asyncio

import pytest

from kshare_core.errors import ErrorCode
from kshare_runtime.ports import Write
from kshare_share_coordinator.state_store import METADATA_FAMILY
from support.share_coordinator.peers import (
    SHARE_PARTITIONS,
    STATE_PARTITIONS,
    Owner,
    Peer,
    Peers,
    place,
    run_peers,
    until,
)

MOVED = 0
MOVING = [partition for partition in range(SHARE_PARTITIONS) if place(partition) == MOVED]
EVERYTHING = range(SHARE_PARTITIONS)
NO_STATE = (int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 0)


def contents(peer: Peer) -> list[dict[bytes, bytes]]:
    return [peer.content(number) for number in range(STATE_PARTITIONS)]


def forget_node_id(peer: Peer) -> None:
    """Makes the store one of an older version."""
    assert peer.store is not None
    peer.store.write([Write(METADATA_FAMILY, b"node-id", None)])


def give_up(peers: Peers, state_partition: int, epoch: int, node_id: int) -> None:
    owner = Owner(state_partition=state_partition, node_id=node_id, owner_epoch=epoch, given_up_epoch=epoch)
    peers.catalog.change(owner)


@pytest.mark.parametrize("is_older_store", [False, True])
def test_a_wrong_node_id_costs_no_rows_and_is_told(is_older_store: bool) -> None:
    async def test(peers: Peers) -> None:
        one = peers.one
        before = contents(one)
        if is_older_store:
            forget_node_id(one)
        one.node_id = 3
        await one.restart()
        await asyncio.sleep(20)
        assert contents(one) == before
        (problem, *_) = one.node.problems()
        assert "share coordinator" in problem and "but this is share coordinator 3: nothing is served" in problem
        assert (await one.read(MOVING[0]))[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        one.node_id = 1
        await one.restart()
        assert [await one.read(partition) for partition in EVERYTHING] == [(0, number) for number in EVERYTHING]
        assert one.node.problems() == [] and contents(one) == before

    run_peers(test)


def test_swapped_disks_cost_no_rows() -> None:
    async def test(peers: Peers) -> None:
        one, two = peers.one, peers.two
        peers.move(MOVED, 5)
        await until(lambda: two.rows.copied_epoch(MOVED) == 5)
        peers.give(MOVED, 6, 2)
        await until(lambda: not one.content(MOVED))
        before = contents(one), contents(two)
        one.node_id, two.node_id = 2, 1
        await one.node.stop(0)
        await two.restart()
        await one.restart()
        peers.move(1, 7)
        await asyncio.sleep(20)
        assert (contents(one), contents(two)) == before
        assert "belong to share coordinator 1, but this is share coordinator 2" in one.node.problems()[0]
        assert "belong to share coordinator 2, but this is share coordinator 1" in two.node.problems()[0]

    run_peers(test)


def test_a_reassignment_to_a_wrong_node_id_replaces_nothing_and_asks_for_a_drain() -> None:
    async def test(peers: Peers) -> None:
        one, two = peers.one, peers.two
        peers.move(MOVED, 5)
        await until(lambda: two.rows.copied_epoch(MOVED) == 5)
        peers.give(MOVED, 6, 2)
        await until(lambda: not one.content(MOVED))
        before = contents(one)
        one.node_id = 3
        await one.restart()
        for number in range(STATE_PARTITIONS):
            peers.move(number, 7, source=2, target=3)
        await until(lambda: peers.catalog.drained != [])
        await asyncio.sleep(5)
        assert set(peers.catalog.drained) == {3}
        assert contents(one) == before

    run_peers(test)


def test_a_store_of_an_older_version_takes_the_node_id_of_the_owner_of_its_states() -> None:
    async def test(peers: Peers) -> None:
        forget_node_id(peers.one)
        await peers.one.restart()
        assert await peers.one.read(MOVING[0]) == (0, MOVING[0])
        await peers.two.node.stop(0)
        peers.one.node_id = 2
        await peers.one.restart()
        await asyncio.sleep(1)
        assert "belong to share coordinator 1, but this is share coordinator 2" in peers.one.node.problems()[0]

    run_peers(test)


def test_a_store_of_an_older_version_on_a_full_disk_can_be_read() -> None:
    async def test(peers: Peers) -> None:
        forget_node_id(peers.one)
        peers.one.disk.is_full = True
        await peers.one.restart()
        assert [await peers.one.read(partition) for partition in EVERYTHING] == [(0, number) for number in EVERYTHING]
        peers.one.disk.is_full = False

    run_peers(test)


def test_rows_that_never_moved_are_kept_and_a_later_reassignment_replaces_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(peers: Peers) -> None:
        one, two = peers.one, peers.two
        before = one.content(MOVED)
        peers.give(MOVED, 20, 2)
        await asyncio.sleep(20)
        assert one.content(MOVED) == before
        assert caplog.text.count("without a mark that they moved: they are kept") == 1
        assert (await one.read(MOVING[0]))[0] == ErrorCode.NOT_COORDINATOR
        assert await two.initialize(*MOVING) == [0] * len(MOVING)
        assert await two.write(*MOVING, start_offset=70) == [0] * len(MOVING)
        peers.move(MOVED, 21, source=2, target=1)
        await until(lambda: one.rows.copied_epoch(MOVED) == 21)
        assert one.content(MOVED) == two.content(MOVED)
        peers.give(MOVED, 22, 1)
        await until(lambda: not two.content(MOVED))
        assert await one.read(MOVING[0]) == (0, 70)

    run_peers(test)


def test_rows_stay_until_the_owner_has_sent_the_first_piece() -> None:
    async def test(peers: Peers) -> None:
        before = peers.one.content(MOVED)
        await peers.two.node.stop(0)
        peers.give(MOVED, 20, 2)
        peers.move(MOVED, 21, source=2, target=1)
        await asyncio.sleep(20)
        assert peers.one.content(MOVED) == before

    run_peers(test)


def test_the_sender_removes_the_rows_that_it_sent_also_after_a_restart() -> None:
    async def test(peers: Peers) -> None:
        peers.move(MOVED, 5)
        await until(lambda: peers.two.rows.copied_epoch(MOVED) == 5)
        assert peers.one.rows.moved_epoch(MOVED) == peers.two.rows.moved_epoch(MOVED) == 5
        await peers.one.node.stop(0)
        peers.give(MOVED, 6, 2)
        await peers.one.restart()
        await until(lambda: not peers.one.content(MOVED))
        await until(lambda: peers.two.rows.moved_epoch(MOVED) is None)
        assert peers.one.rows.moved_epoch(MOVED) is None and peers.two.rows.copied_epoch(MOVED) == 5

    run_peers(test)


def test_a_reassignment_that_was_taken_back_leaves_no_mark_at_the_owner() -> None:
    async def test(peers: Peers) -> None:
        before = peers.one.content(MOVED)
        peers.move(MOVED, 5)
        await until(lambda: peers.two.rows.copied_epoch(MOVED) == 5)
        peers.give(MOVED, 6, 1)
        await until(lambda: peers.one.rows.moved_epoch(MOVED) is None)
        peers.give(MOVED, 20, 2)
        await asyncio.sleep(20)
        assert peers.one.content(MOVED) == before

    run_peers(test)


def test_an_owner_begins_without_the_rows_here_after_another_owner_was_given_up() -> None:
    """One that was up meanwhile, and then one that was down after it had sent its rows."""

    async def test(peers: Peers) -> None:
        one, two = peers.one, peers.two
        peers.give(MOVED, 20, 2)  # the rows of node 1 have no mark
        await asyncio.sleep(1)
        give_up(peers, MOVED, 21, 1)
        await asyncio.sleep(1)
        assert await one.read(MOVING[0]) == NO_STATE
        assert await one.initialize(*MOVING) == [0] * len(MOVING)
        peers.move(MOVED, 22)
        await until(lambda: two.rows.copied_epoch(MOVED) == 22)
        assert one.content(MOVED)
        await one.node.stop(0)
        give_up(peers, MOVED, 24, 1)  # after node 2 owned it at epoch 23
        await one.restart()
        assert await one.read(MOVING[0]) == NO_STATE
        assert one.content(MOVED) == {} and one.node.problems() == []

    run_peers(test)


def test_rows_that_are_stale_are_not_served_while_the_disk_refuses_their_removal() -> None:
    async def test(peers: Peers) -> None:
        one = peers.one
        peers.give(MOVED, 20, 2)
        await asyncio.sleep(1)
        one.disk.fail_next_writes(4)
        give_up(peers, MOVED, 21, 1)
        await until(lambda: one.node.engine.ownership.view.state_partition_owners[MOVED] == 1)
        assert (await one.read(MOVING[0]))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: not one.content(MOVED))
        assert await one.read(MOVING[0]) == NO_STATE

    run_peers(test)


def test_rows_are_stale_too_where_one_view_has_the_switch_and_the_give_up_of_the_new_owner() -> None:
    """As after a node was cut off for a while: it never saw that another node owned the state partition."""

    async def test(peers: Peers) -> None:
        one, two = peers.one, peers.two
        peers.move(MOVED, 5)
        await until(lambda: two.rows.copied_epoch(MOVED) == 5)
        peers.give(MOVED, 6, 2)
        give_up(peers, MOVED, 8, 1)  # before node 1 has asked for the version before
        await until(lambda: one.node.engine.ownership.view.state_partition_owner_epochs[MOVED] == 8)
        assert await one.read(MOVING[0]) == NO_STATE
        await asyncio.sleep(6)
        assert one.content(MOVED) == {} and one.node.problems() == []

    run_peers(test)
