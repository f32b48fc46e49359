"""FetchStateTopic and ListStateTopicOffsets of real share coordinators: waiting, limits, owners, moves."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from kshare_core.errors import ErrorCode
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as messages
from kshare_rpc.generated.methods import DELETE_SHARE_GROUP_STATE, FETCH_STATE_TOPIC, LIST_STATE_TOPIC_OFFSETS
from kshare_share_coordinator.handlers.state_topic import PARTITIONS_PER_REQUEST_LIMIT
from kshare_share_coordinator.machine.share_group_offset import ShareGroupOffset
from kshare_share_coordinator.state_log.embedded import EmbeddedStates
from kshare_wire.record_batches import read_headers
from kshare_wire.record_reading import OpenedRecord, open_records
from support.share_coordinator.peers import (
    GROUP,
    SHARE_PARTITIONS,
    TIMEOUT_MS,
    TOPIC_ID,
    Owner,
    Peer,
    Peers,
    place,
    run_peers,
    until,
)
from support.share_coordinator.state_topic import replayed

STATE_TOPIC_ID = b"any 16 bytes are"
FIRST = [partition for partition in range(SHARE_PARTITIONS) if place(partition) == 0]
"""Share-partitions of state partition 0."""
DAY_S = 86_400


async def fetch(
    peer: Peer,
    *wanted: tuple[int, int],
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
    waiter: str = "",
) -> tuple[leader_pb2.FetchResponse, list[list[OpenedRecord]]]:
    """The answer, and the records of each partition; `wanted` are state partitions and offsets."""
    request = leader_pb2.FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, waiter=waiter)
    for state_partition, offset in wanted:
        request.partitions.add(
            topic_id=STATE_TOPIC_ID,
            partition=state_partition,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=leader_epoch,
        )
    answer, payload = await peer.channel.call(FETCH_STATE_TOPIC, request, timeout_ms=TIMEOUT_MS)
    records: list[list[OpenedRecord]] = []
    position = 0
    for found in answer.partitions:
        assert found.topic_id == STATE_TOPIC_ID
        part = payload[position : position + found.records_length]
        position += found.records_length
        batches = [part[header.position : header.position + header.size] for header in read_headers(part)]
        records.append([record for batch in batches for record in open_records(batch)])
    assert position == len(payload)
    return answer, records


async def listed(peer: Peer, state_partition: int, timestamp_ms: int) -> tuple[int, int, int]:
    """Error code, offset and timestamp."""
    request = leader_pb2.ListOffsetsRequest()
    request.partitions.add(
        topic_id=STATE_TOPIC_ID, partition=state_partition, timestamp=timestamp_ms, current_leader_epoch=-1
    )
    answer, _ = await peer.channel.call(LIST_STATE_TOPIC_OFFSETS, request, timeout_ms=TIMEOUT_MS)
    (found,) = answer.partitions
    return found.error_code, found.offset, found.timestamp


def is_copied(peers: Peers, owner_epoch: int) -> bool:
    return any(each.owner_epoch == owner_epoch for each in peers.catalog.completed)


def start_offsets(records: list[OpenedRecord]) -> dict[int, int]:
    states: dict[Any, ShareGroupOffset] = replayed((record.key or b"", record.value) for record in records)
    return {key.partition: state.start_offset for key, state in states.items()}


def test_both_state_partitions_have_what_was_written() -> None:
    async def test(peers: Peers) -> None:
        answer, records = await fetch(peers.one, (0, 0), (1, 0))
        assert [(found.partition, found.error_code) for found in answer.partitions] == [(0, 0), (1, 0)]
        assert {**start_offsets(records[0]), **start_offsets(records[1])} == {
            partition: partition for partition in range(SHARE_PARTITIONS)
        }
        assert set(start_offsets(records[0])) == set(FIRST)
        for found, partition_records in zip(answer.partitions, records, strict=True):
            end_offset = partition_records[-1].offset + 1
            assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (
                end_offset,
                end_offset,
                0,
            )

    run_peers(test)


def test_offsets_are_listed_by_time() -> None:
    async def test(peers: Peers) -> None:
        _, (records, _) = await fetch(peers.one, (0, 0), (1, 0))
        assert await listed(peers.one, 0, -2) == (0, 0, -1)
        assert await listed(peers.one, 0, -1) == (0, records[-1].offset + 1, -1)
        last = records[-1]
        first_of_last_time = next(each for each in records if each.timestamp_ms == last.timestamp_ms)
        assert await listed(peers.one, 0, -3) == (0, first_of_last_time.offset, last.timestamp_ms)
        assert await listed(peers.one, 0, 0) == (0, records[0].offset, records[0].timestamp_ms)
        assert await listed(peers.one, 0, last.timestamp_ms + 1) == (0, -1, -1)

    run_peers(test)


def test_a_fetch_at_the_end_waits_for_the_next_write_of_its_state_partitions() -> None:
    async def test(peers: Peers) -> None:
        _, end_offset, _ = await listed(peers.one, 0, -1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting = loop.create_task(fetch(peers.one, (0, end_offset), max_wait_ms=30_000))
        await asyncio.sleep(1)
        elsewhere = next(partition for partition in range(SHARE_PARTITIONS) if partition not in FIRST)
        assert await peers.one.write(elsewhere, start_offset=500) == [0]
        await asyncio.sleep(1)
        assert not waiting.done()
        assert await peers.one.write(FIRST[0], start_offset=500) == [0]
        _, (records,) = await waiting
        assert start_offsets(records) == {FIRST[0]: 500}
        assert records[0].offset == end_offset
        assert loop.time() - began < 3

        began = loop.time()
        answer, (records,) = await fetch(peers.one, (0, end_offset + 1), max_wait_ms=2_000)
        assert (records, answer.partitions[0].error_code) == ([], 0)
        assert 2 <= loop.time() - began < 3

    run_peers(test)


def test_a_later_fetch_of_the_same_waiter_ends_the_wait() -> None:
    async def test(peers: Peers) -> None:
        _, end_offset, _ = await listed(peers.one, 0, -1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        wanted = (0, end_offset)
        waiting = [
            loop.create_task(fetch(peers.one, wanted, max_wait_ms=30_000, waiter=waiter)) for waiter in ("a", "b", "")
        ]
        await asyncio.sleep(1)
        answer, _ = await fetch(peers.one, max_wait_ms=30_000, min_bytes=0, waiter="a")
        assert not answer.partitions
        ended, _ = await waiting[0]
        assert not ended.partitions
        assert loop.time() - began < 3
        assert not waiting[1].done() and not waiting[2].done()
        assert await peers.one.write(FIRST[0], start_offset=500) == [0]
        for _, (records,) in await asyncio.gather(*waiting[1:]):
            assert start_offsets(records) == {FIRST[0]: 500}

    run_peers(test)


def test_offsets_that_are_not_there_are_out_of_range() -> None:
    async def test(peers: Peers) -> None:
        _, end_offset, _ = await listed(peers.one, 0, -1)
        for offset in (-1, end_offset + 1):
            answer, _ = await fetch(peers.one, (0, offset), max_wait_ms=30_000)
            (found,) = answer.partitions
            assert (found.error_code, found.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, end_offset)

    run_peers(test)


def test_limits_of_bytes_are_kept_but_for_the_first_record() -> None:
    async def test(peers: Peers) -> None:
        _, everything = await fetch(peers.one, (0, 0), (1, 0))
        _, records = await fetch(peers.one, (0, 0), (1, 0), max_bytes=1)
        assert records == [everything[0][:1], []]
        _, records = await fetch(peers.one, (0, 0), (1, 0), partition_max_bytes=1)
        assert records == [everything[0][:1], []]
        answer, records = await fetch(peers.one, (0, 0), (1, 0), partition_max_bytes=400)
        assert all(found.records_length <= 400 for found in answer.partitions)
        assert all(0 < len(part) < len(whole) for part, whole in zip(records, everything, strict=True))

    run_peers(test)


def test_what_is_asked_wrongly_is_told() -> None:
    async def test(peers: Peers) -> None:
        answer, _ = await fetch(peers.one, (2, 0), (-1, 0), max_wait_ms=30_000)
        assert [found.error_code for found in answer.partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
        answer, _ = await fetch(peers.one, (0, 0), leader_epoch=1)
        assert answer.partitions[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        answer, records = await fetch(peers.one, (0, 0), leader_epoch=0)
        assert answer.partitions[0].error_code == 0 and records[0]
        answer, _ = await fetch(peers.one, *[(0, 0)] * (PARTITIONS_PER_REQUEST_LIMIT + 1))
        assert {found.error_code for found in answer.partitions} == {ErrorCode.INVALID_REQUEST}
        assert (await listed(peers.one, 7, -1))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_peers(test)


def test_the_topic_moves_with_its_state_partition() -> None:
    """Where it moves nobody answers; then the new owner goes on with the next offset, and back again."""

    async def test(peers: Peers) -> None:
        _, (before,) = await fetch(peers.one, (0, 0))
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await listed(peers.two, 0, -1))[0] == refused
        for epoch, (source, target) in ((10, (peers.one, peers.two)), (20, (peers.two, peers.one))):
            peers.move(0, epoch, source=source.node_id, target=target.node_id)
            await until(partial(is_copied, peers, epoch))
            for peer in (source, target):
                answer, _ = await fetch(peer, (0, 0))
                assert answer.partitions[0].error_code == refused
            peers.give(0, epoch + 1, target.node_id)
            await asyncio.sleep(5)
            _, (after,) = await fetch(target, (0, 0))
            assert after == before
            assert (await listed(source, 0, -1))[0] == refused
            assert await target.write(FIRST[0], start_offset=epoch) == [0]
            _, (before,) = await fetch(target, (0, 0))
            assert before[-1].offset == after[-1].offset + 1
            assert start_offsets(before)[FIRST[0]] == epoch

    run_peers(test)


def test_a_fetch_that_waits_is_refused_when_its_state_partition_has_gone() -> None:
    async def test(peers: Peers) -> None:
        _, end_offset, _ = await listed(peers.one, 0, -1)
        waiting = asyncio.get_running_loop().create_task(fetch(peers.one, (0, end_offset), max_wait_ms=2_000))
        await asyncio.sleep(0.5)
        peers.catalog.change(Owner(state_partition=0, node_id=2, owner_epoch=10))
        answer, records = await waiting
        assert (answer.partitions[0].error_code, records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [[]])

    run_peers(test)


def test_offsets_outlast_a_restart() -> None:
    async def test(peers: Peers) -> None:
        _, before = await fetch(peers.one, (0, 0), (1, 0))
        await peers.one.restart()
        await asyncio.sleep(1)
        _, after = await fetch(peers.one, (0, 0), (1, 0))
        assert after == before

    run_peers(test)


def test_tombstones_go_a_day_later() -> None:
    async def test(peers: Peers) -> None:
        request = messages.DeleteShareGroupStateRequest(group_id=GROUP)
        for partition in FIRST[:2]:
            request.partitions.add(topic_id=TOPIC_ID, partition=partition)
        await peers.one.channel.call(DELETE_SHARE_GROUP_STATE, request, timeout_ms=TIMEOUT_MS)
        assert await peers.one.write(FIRST[2], start_offset=600) == [0]

        async def tombstones() -> int:
            _, (records,) = await fetch(peers.one, (0, 0))
            return sum(record.value is None for record in records)

        assert await tombstones() == 2
        engine = peers.one.node.engine
        assert isinstance(engine, EmbeddedStates)
        state_topic = engine.state_topic
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        assert not state_topic.prune(0, now_ms + DAY_S * 1000 - 1_000)
        assert await tombstones() == 2
        assert not state_topic.prune(0, now_ms + DAY_S * 1000 + 1_000)
        assert await tombstones() == 0

    run_peers(test)
