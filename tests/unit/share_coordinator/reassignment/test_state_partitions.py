"""One state partition moves between two whole share coordinators, as the catalog of the test says."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import SHARE_COORDINATOR, TRANSFER_STATE_PARTITION
from kshare_rpc.network import Service
from kshare_runtime.machine import MachineRunner
from kshare_runtime.memory_store import DiskEvents, MemoryDisk, MemoryDiskFailure
from kshare_runtime.ports import Write
from kshare_share_coordinator.checksummed_store import ChecksummedStore
from kshare_share_coordinator.machine.operations import InitializeState, Operation, Result
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine
from kshare_share_coordinator.machine.share_group_offset import Record
from kshare_share_coordinator.ownership import Ownership
from kshare_share_coordinator.reassignment.metrics import MoveMetrics
from kshare_share_coordinator.reassignment.rows import StatePartitionRows
from kshare_share_coordinator.reassignment.sender import PIECE_BYTES_LIMIT, StatePartitionSender
from kshare_share_coordinator.state_store import StateStore, family_of
from kshare_share_coordinator.state_topic import is_state_topic_key
from support.share_coordinator.peers import (
    CLUSTER,
    GROUP,
    SHARE_PARTITIONS,
    STATE_PARTITIONS,
    TOPIC_ID,
    Owner,
    Peer,
    Peers,
    place,
    run_peers,
    until,
)
from support.simulation.loop import VirtualLoop

MOVED = 0
MOVING = [partition for partition in range(SHARE_PARTITIONS) if place(partition) == MOVED]
STAYING = [partition for partition in range(SHARE_PARTITIONS) if place(partition) != MOVED]


async def states(peer: Peer, partitions: list[int]) -> list[tuple[int, int]]:
    return [await peer.read(partition) for partition in partitions]


def known(partitions: list[int]) -> list[tuple[int, int]]:
    return [(0, partition) for partition in partitions]


def test_a_state_partition_moves_with_all_of_its_rows_and_the_others_stay_where_they_are() -> None:
    async def test(peers: Peers) -> None:
        one, two = peers.one, peers.two
        before = one.content(MOVED)
        assert len(before) > len(MOVING) and len(MOVING) > 2 and STAYING
        peers.move(MOVED, 5)
        await until(lambda: len(peers.catalog.completed) > 0)
        (request, *_) = peers.catalog.completed
        assert (request.state_partition, request.node_id, request.owner_epoch) == (MOVED, 2, 5)
        assert two.content(MOVED) == before == one.content(MOVED)
        assert two.rows.copied_epoch(MOVED) == 5
        peers.give(MOVED, 6, 2)
        await until(lambda: not one.content(MOVED))
        assert await states(two, MOVING) == known(MOVING)
        assert await two.write(*MOVING, start_offset=100) == [0] * len(MOVING)
        assert set(await one.write(*MOVING, start_offset=100)) == {ErrorCode.NOT_COORDINATOR}
        assert await states(one, STAYING) == known(STAYING)
        completions = len(peers.catalog.completed)
        await asyncio.sleep(5)
        assert len(peers.catalog.completed) == completions, "it goes on asking after the switch"

    run_peers(test)


def test_while_it_moves_both_sides_say_that_it_loads() -> None:
    async def test(peers: Peers) -> None:
        peers.move(MOVED, 5)
        await until(lambda: len(peers.catalog.completed) > 0)
        for peer in (peers.one, peers.two):
            assert set(await peer.write(*MOVING, start_offset=50)) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            assert (await peer.read(MOVING[0]))[0] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert set(await peers.one.write(*STAYING, start_offset=50)) == {0}
        assert set(await peers.two.write(*STAYING, start_offset=50)) == {ErrorCode.NOT_COORDINATOR}

    run_peers(test)


def test_a_move_that_is_taken_back_leaves_nothing_and_the_owner_goes_on() -> None:
    async def test(peers: Peers) -> None:
        peers.move(MOVED, 5)
        await until(lambda: len(peers.catalog.completed) > 0)
        peers.give(MOVED, 6, 1)
        await until(lambda: not peers.two.content(MOVED))
        assert peers.two.rows.copied_epoch(MOVED) is None
        assert await states(peers.one, MOVING) == known(MOVING)
        assert set(await peers.one.write(*MOVING, start_offset=70)) == {0}
        peers.move(MOVED, 7)
        await until(lambda: peers.two.rows.copied_epoch(MOVED) == 7)
        peers.give(MOVED, 8, 2)
        await asyncio.sleep(1)
        assert await states(peers.two, MOVING) == [(0, 70)] * len(MOVING)
        assert peers.two.measure("moves_total", "in", step="started") == 2
        assert peers.two.measure("moves_total", "in", step="completed") == 1
        assert peers.two.measure("moves_total", "in", step="taken_back") == 1

    run_peers(test)


def test_a_copy_of_an_earlier_move_is_worth_nothing_even_if_its_end_was_not_seen() -> None:
    async def test(peers: Peers) -> None:
        peers.move(MOVED, 5)
        await until(lambda: peers.two.rows.copied_epoch(MOVED) == 5)
        await peers.two.node.stop(0)
        peers.give(MOVED, 6, 1)
        await asyncio.sleep(1)
        assert set(await peers.one.write(*MOVING, start_offset=80)) == {0}
        peers.move(MOVED, 7)
        await peers.two.restart()
        await until(lambda: peers.two.rows.copied_epoch(MOVED) == 7)
        assert peers.two.content(MOVED) == peers.one.content(MOVED)

    run_peers(test)


def test_a_receiver_that_has_all_rows_only_completes_after_its_restart() -> None:
    async def test(peers: Peers) -> None:
        peers.move(MOVED, 5)
        await until(lambda: peers.two.rows.copied_epoch(MOVED) == 5)
        await peers.two.node.stop(0)
        await peers.one.node.stop(0)
        peers.catalog.completed.clear()
        await peers.two.restart()
        await until(lambda: len(peers.catalog.completed) > 0)
        assert peers.two.measure("move_bytes_total", "in") == 0

    run_peers(test)


def test_it_goes_there_and_back_with_what_was_written_in_between() -> None:
    async def test(peers: Peers) -> None:
        one, two = peers.one, peers.two
        await states(one, MOVING)  # remembered, and old when it comes back
        peers.move(MOVED, 5)
        await until(lambda: two.rows.copied_epoch(MOVED) == 5)
        peers.give(MOVED, 6, 2)
        await asyncio.sleep(0.1)
        assert set(await two.write(*MOVING, start_offset=90)) == {0}
        peers.move(MOVED, 7, source=2, target=1)
        await until(lambda: one.rows.copied_epoch(MOVED) == 7)
        peers.give(MOVED, 8, 1)
        await until(lambda: not two.content(MOVED))
        assert await states(one, MOVING) == [(0, 90)] * len(MOVING)

    run_peers(test)


class Lease:
    """A view in which state partition 0 moves from node 1 to node 2, for ever."""

    lease_renewed_at: float | None = 0.0
    lease_ms = 1_000_000
    view = CatalogView(
        version=1,
        cluster_id=CLUSTER,
        state_partition_count=STATE_PARTITIONS,
        state_partition_owners={MOVED: 1},
        state_partition_owner_epochs={MOVED: 5},
        state_partition_moves={
            MOVED: Owner(state_partition=MOVED, node_id=1, owner_epoch=5, is_moving=True, moving_to_node_id=2)
        },
    )


def test_what_was_accepted_before_the_fence_is_written_before_the_first_piece_is_read() -> None:
    async def test() -> None:
        store = ChecksummedStore(MemoryDisk().open_store("store"))
        key = SharePartitionKey(GROUP, TOPIC_ID, MOVING[0])
        state_store = StateStore(store=store, state_partition_of=lambda _: MOVED)
        ownership = Ownership(node_id=1, lease=Lease(), identity=state_store, now=lambda: 0.0)
        runner: MachineRunner[Operation, Record, Result, None] = MachineRunner(
            load=lambda: ShareCoordinatorMachine(load=state_store.load, snapshot_update_records_per_snapshot=500),
            append=state_store.append,
            act=lambda effects: None,
            now_ms=lambda: 0,
        )
        rows = StatePartitionRows(store)
        sender = StatePartitionSender(
            ownership=ownership, rows=rows, barrier=runner.barrier, metrics=MoveMetrics(lambda: 0)
        )
        accepted = runner.submit(InitializeState(key, 1, 0))
        piece = await sender.piece(MOVED, 5, b"", 1 << 20)
        assert (piece.error_code, piece.is_last) == (ErrorCode.NONE, True)
        assert piece.rows == rows.piece(MOVED, b"", 1 << 20)[0] != []
        assert (await accepted).error_code == ErrorCode.NONE

    asyncio.run(test())


def test_the_sender_gives_rows_only_for_the_move_that_it_sees() -> None:
    async def test(peers: Peers) -> None:
        one = peers.one
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await one.transfer(MOVED, 5))[0].error_code == loading
        peers.move(MOVED, 5)
        await asyncio.sleep(1)
        for epoch in (4, 6):
            assert (await one.transfer(MOVED, epoch))[0].error_code == loading
        assert (await one.transfer(1, 5))[0].error_code == loading
        assert (await peers.two.transfer(MOVED, 5))[0].error_code == loading
        assert (await one.transfer(MOVED, 5))[0].error_code == 0
        peers.give(MOVED, 6, 1)
        await asyncio.sleep(1)
        assert (await one.transfer(MOVED, 5))[0].error_code == loading

    run_peers(test)


@pytest.mark.parametrize("max_bytes", [-1, 0, 1, 150, 10_000, (1 << 31) - 1])
def test_pieces_together_are_all_rows_and_none_is_larger_than_asked_for(max_bytes: int) -> None:
    async def test(peers: Peers) -> None:
        peers.move(MOVED, 5)
        await asyncio.sleep(1)
        rows: dict[bytes, bytes] = {}
        after_key, is_last = b"", False
        while not is_last:
            answer, payload = await peers.one.transfer(MOVED, 5, after_key=after_key, max_bytes=max_bytes)
            assert len(answer.rows) == 1 or len(payload) <= min(max_bytes, PIECE_BYTES_LIMIT)
            position = 0
            for row in answer.rows:
                after_key = payload[position : position + row.key_length]
                rows[after_key] = payload[position + row.key_length : position + row.key_length + row.value_length]
                position += row.key_length + row.value_length
            is_last = answer.is_last
        assert rows == peers.one.content(MOVED)

    run_peers(test)


def test_an_empty_state_partition_moves_too() -> None:
    async def test(peers: Peers) -> None:
        peers.move(MOVED, 5, source=1)
        await until(lambda: peers.two.rows.copied_epoch(MOVED) == 5)
        peers.give(MOVED, 6, 2)
        await until(lambda: not peers.one.content(MOVED))
        peers.two.rows.remove(MOVED)
        peers.move(MOVED, 7, source=2, target=1)
        await until(lambda: peers.one.rows.copied_epoch(MOVED) == 7)
        assert peers.one.content(MOVED) == {}

    run_peers(test)


# What stands in the way


class NoStateTopicRows(DiskEvents):
    """A disk that fails the reads which a write needs."""

    def value_read(self, family: str, key: bytes, value: bytes) -> bytes:
        if is_state_topic_key(key):
            raise MemoryDiskFailure("Input/output error")
        return value


@pytest.mark.parametrize(("written", "is_healthy"), [(MOVING, True), (STAYING, False), ([*MOVING, *STAYING], False)])
def test_a_failed_write_is_a_problem_until_its_state_partition_moves_away(written: list[int], is_healthy: bool) -> None:
    """The disk fails only reads, so the store accepts writes and no mending follows (seed 561965518)."""

    async def test(peers: Peers) -> None:
        one = peers.one
        await one.restart()
        one.disk.events = NoStateTopicRows()
        assert set(await one.write(*written, start_offset=50)) == {ErrorCode.KAFKA_STORAGE_ERROR}
        one.disk.events = DiskEvents()
        await asyncio.sleep(10)
        (problem,) = one.node.problems()
        assert "the newest write failed" in problem and "Input/output error" in problem
        peers.move(MOVED, 5)  # and node 1 writes it no more
        await until(lambda: peers.two.rows.copied_epoch(MOVED) == 5)
        assert one.node.problems() == ([] if is_healthy else [problem])
        assert set(await one.write(*STAYING, start_offset=60)) == {0}
        assert one.node.problems() == []

    run_peers(test)


def test_a_full_disk_at_the_receiver_ends_with_the_request_to_be_drained() -> None:
    async def test(peers: Peers) -> None:
        peers.two.disk.fail_next_writes(10_000)
        peers.move(MOVED, 5)
        await until(lambda: peers.catalog.drained != [])
        assert set(peers.catalog.drained) == {2}
        await asyncio.sleep(10)
        assert any("No space left on device" in problem for problem in peers.two.node.problems())
        assert peers.catalog.completed == []
        peers.two.disk.fail_next_writes(0)
        await until(lambda: peers.catalog.completed != [])
        assert peers.two.content(MOVED) == peers.one.content(MOVED)
        assert peers.two.node.problems() == []

    run_peers(test)


def test_one_failed_write_is_only_tried_again() -> None:
    async def test(peers: Peers) -> None:
        peers.move(MOVED, 5)
        await until(lambda: peers.two.content(MOVED) != {})
        peers.two.disk.fail_next_writes(1)
        await until(lambda: peers.catalog.completed != [])
        assert peers.catalog.drained == []
        assert peers.two.content(MOVED) == peers.one.content(MOVED)

    run_peers(test)


def test_the_answer_that_a_move_is_over_removes_nothing_until_the_view_says_so() -> None:
    """The switch may have happened already, and the state partition may be on its way to somebody else."""

    async def test(peers: Peers) -> None:
        peers.catalog.completion_error = ErrorCode.INVALID_REQUEST
        peers.move(MOVED, 5)
        await until(lambda: len(peers.catalog.completed) > 3)
        rows = peers.one.content(MOVED)
        assert peers.two.content(MOVED) == rows
        peers.move(MOVED, 9, source=2, target=1)
        await until(lambda: peers.one.rows.copied_epoch(MOVED) == 9)
        assert peers.two.content(MOVED) == rows == peers.one.content(MOVED)

    run_peers(test)


BAD_PIECES = {
    "a row that is longer than the payload": ([(3, 9)], b"abcdef", False),
    "bytes that belong to no row": ([(3, 1)], b"abcdef", False),
    "a row without a key": ([(0, 6)], b"abcdef", False),
    "a negative length": ([(6, -3), (3, 0)], b"abcdef", False),
    "rows out of order": ([(1, 1), (1, 1)], b"b1a2", False),
    "one row twice": ([(1, 1), (1, 1)], b"a1a2", False),
    "nothing, and more to come": ([], b"", False),
}


@pytest.mark.parametrize("name", sorted(BAD_PIECES))
def test_a_sender_that_sends_nonsense_changes_nothing(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rows, payload, is_last = BAD_PIECES[name]

    async def test(peers: Peers) -> None:
        asked: list[bytes] = []

        async def transfer(
            request: messages.TransferStatePartitionRequest, _: memoryview
        ) -> tuple[messages.TransferStatePartitionResponse, list[bytes]]:
            asked.append(request.after_key)
            answer = messages.TransferStatePartitionResponse(is_last=is_last)
            for key_length, value_length in rows:
                answer.rows.add(key_length=key_length, value_length=value_length)
            return answer, [payload]

        address = peers.one.node.address
        await peers.one.node.stop(0)
        await peers.network.serve(address, [Service(SHARE_COORDINATOR, {TRANSFER_STATE_PARTITION: transfer})])
        peers.move(MOVED, 5)
        await asyncio.sleep(20)
        assert len(asked) > 5 and set(asked) == {b""}
        assert peers.two.content(MOVED) == {} and peers.catalog.completed == []
        assert any("cannot be copied from node 1: it sent" in problem for problem in peers.two.node.problems())

    run_peers(test)


def test_a_corrupt_row_moves_as_it_is_and_harms_its_share_partition_only() -> None:
    async def test(peers: Peers) -> None:
        family = family_of(MOVED)
        assert peers.one.store is not None
        victim = next(key for key, _ in peers.one.store.scan(family, b""))
        peers.one.store.write([Write(family, victim, b"not what was written")])
        await peers.one.restart()
        peers.move(MOVED, 5)
        await until(lambda: peers.two.rows.copied_epoch(MOVED) == 5)
        assert peers.two.content(MOVED) == peers.one.content(MOVED)
        peers.give(MOVED, 6, 2)
        await until(lambda: not peers.one.content(MOVED))
        codes = [code for code, _ in await states(peers.two, MOVING)]
        assert sorted(codes)[:-1] == [0] * (len(MOVING) - 1) and max(codes) != 0

    run_peers(test)


def test_rows_that_are_broken_on_the_way_are_asked_for_again() -> None:
    async def test(peers: Peers) -> None:
        address = peers.one.node.address
        rows = sorted(peers.one.content(MOVED).items())
        await peers.one.node.stop(0)
        answers = 0

        async def transfer(
            request: messages.TransferStatePartitionRequest, _: memoryview
        ) -> tuple[messages.TransferStatePartitionResponse, list[bytes]]:
            nonlocal answers
            answers += 1
            answer = messages.TransferStatePartitionResponse(is_last=True)
            for key, value in rows:
                answer.rows.add(key_length=len(key), value_length=len(value))
            payload = bytearray(b"".join(key + value for key, value in rows))
            if answers <= 3:
                payload[-answers] ^= 1
            return answer, [bytes(payload)]

        await peers.network.serve(address, [Service(SHARE_COORDINATOR, {TRANSFER_STATE_PARTITION: transfer})])
        peers.move(MOVED, 5)
        await until(lambda: peers.catalog.completed != [])
        assert answers == 4 and peers.two.content(MOVED) == dict(rows)

    run_peers(test)


# Whose rows are removed


def test_rows_that_a_crash_left_behind_are_removed_once_the_catalog_is_known() -> None:
    async def test(peers: Peers) -> None:
        rows, _ = peers.one.rows.piece(MOVED, b"", 1 << 30)
        peers.give(MOVED, 2, 1)
        for number, mark in ((MOVED, 1), (1, 0)):
            peers.two.rows.begin_copy(number, mark)
            peers.two.rows.write_piece(number, rows, None)
        await peers.two.restart()
        await until(lambda: not peers.two.content(MOVED))
        await asyncio.sleep(1)
        assert peers.two.rows.state_partitions() == [1], "a copy of the same epoch is not older than the catalog"
        peers.give(1, 3, 1)
        await until(lambda: peers.two.rows.state_partitions() == [])
        assert await states(peers.one, [*MOVING, *STAYING]) == known([*MOVING, *STAYING])

    run_peers(test)


def test_a_removal_that_the_disk_refuses_is_tried_again() -> None:
    async def test(peers: Peers) -> None:
        rows, _ = peers.one.rows.piece(MOVED, b"", 1 << 30)
        peers.two.rows.begin_copy(MOVED, 1)
        peers.two.rows.write_piece(MOVED, rows, None)
        peers.two.disk.fail_next_writes(3)
        peers.give(MOVED, 2, 1)
        await until(lambda: not peers.two.content(MOVED))

    run_peers(test)


class FailsOnce(DiskEvents):
    """A bug: the first write raises what no code expects."""

    has_failed = False

    def write_begins(self) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise KeyError("planted")


def test_a_removal_that_fails_unexpectedly_is_reported_and_tried_again() -> None:
    async def test(peers: Peers) -> None:
        rows, _ = peers.one.rows.piece(MOVED, b"", 1 << 30)
        peers.two.rows.begin_copy(MOVED, 1)
        peers.two.rows.write_piece(MOVED, rows, None)
        peers.two.disk.events = FailsOnce()
        peers.give(MOVED, 2, 1)
        await until(lambda: not peers.two.content(MOVED))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        (problem,) = loop.problems
        assert "failed unexpectedly: KeyError('planted')" in problem
        loop.problems.clear()

    run_peers(test)


def test_the_catalog_of_another_cluster_removes_copies_and_serves_nothing() -> None:
    async def test(peers: Peers) -> None:
        one, two = peers.one, peers.two
        before = {number: one.content(number) for number in (0, 1)}
        await one.node.stop(0)
        peers.catalog.cluster_id = "cluster-two"
        peers.give(MOVED, 20, 2)
        peers.move(1, 21, source=2, target=1)
        await one.restart()
        await asyncio.sleep(20)
        assert {number: one.content(number) for number in (0, 1)} == before
        code, _ = await one.read(STAYING[0])
        assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        (problem, *_) = one.node.problems()
        assert "'cluster-one'" in problem and "'cluster-two'" in problem
        assert (await two.transfer(1, 21))[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        peers.catalog.cluster_id = "cluster-one"
        peers.give(MOVED, 30, 1)
        peers.give(1, 31, 1)
        await asyncio.sleep(20)
        assert await states(one, [*MOVING, *STAYING]) == known([*MOVING, *STAYING])
        assert one.node.problems() == []

    run_peers(test)


def test_a_catalog_older_than_the_copy_here_neither_removes_nor_replaces_it() -> None:
    """As after the catalog was brought back from a copy of its disk."""

    async def test(peers: Peers) -> None:
        peers.move(MOVED, 50)
        await until(lambda: peers.two.rows.copied_epoch(MOVED) == 50)
        peers.give(MOVED, 51, 2)
        await until(lambda: not peers.one.content(MOVED))
        kept = peers.two.content(MOVED)
        assert kept
        peers.give(MOVED, 10, 1)
        await asyncio.sleep(5)
        assert peers.two.content(MOVED) == kept
        peers.move(MOVED, 11)
        await asyncio.sleep(20)
        assert peers.two.content(MOVED) == kept
        assert any("older than what this node has seen" in problem for problem in peers.two.node.problems())

    run_peers(test)


# What is counted


def test_moves_are_counted_on_both_sides() -> None:
    async def test(peers: Peers) -> None:
        one, two = peers.one, peers.two
        size = sum(len(key) + len(value) for key, value in one.content(MOVED).items())
        for peer, owned in ((one, 2), (two, 0)):
            assert peer.node.move_metrics.value("state_partitions") == owned
        peers.move(MOVED, 5)
        await until(lambda: len(peers.catalog.completed) > 0)
        await asyncio.sleep(1)
        assert one.measure("moves_total", "out", step="started") == 1
        peers.give(MOVED, 6, 2)
        await asyncio.sleep(1)
        for peer, direction, owned in ((one, "out", 1), (two, "in", 1)):
            assert peer.node.move_metrics.value("state_partitions") == owned
            assert peer.measure("moves_total", direction, step="completed") == 1
            assert peer.measure("moves_total", direction, step="taken_back") == 0
            assert peer.measure("move_bytes_total", direction) == size
            assert peer.measure("move_seconds_count", direction) == 1
            assert 1 <= peer.measure("move_seconds_sum", direction) < 3

    run_peers(test)


def test_writes_of_other_state_partitions_are_answered_while_a_large_one_is_copied() -> None:
    async def test(peers: Peers) -> None:
        one, two = peers.one, peers.two
        peers.move(1, 2)
        await until(lambda: two.rows.copied_epoch(1) == 2)
        peers.give(1, 3, 2)
        await until(lambda: not one.content(1))
        peers.move(MOVED, 5)
        answered = 0
        while peers.catalog.completed[-1].state_partition != MOVED:
            assert set(await two.write(*STAYING, start_offset=200 + answered)) == {0}
            answered += 1
            await asyncio.sleep(1e-7)
        assert answered >= 5

    run_peers(test, piece_bytes=1)
