"""One budget for requests, half-received frames and responses: which connections are muted, wait, or are closed."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from typing import Any

import pytest

from kshare_gateway.connections.request_memory import (
    FIRST_ANSWER_BYTES,
    LEAST_ANSWER_BYTES,
    SMALL_HOLDING_BYTES,
    MemoryAccount,
    RequestMemory,
)
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_wire.generated.api_keys import ApiKey
from support.gateway.harness import TOPIC_ID, GatewayClient, GatewayHarness, run
from support.simulation.loop import VirtualLoop

MEBIBYTE = 1024 * 1024
LIMIT = 64 * MEBIBYTE
CHUNK = 256 * 1024
"""What a socket gives at once: a connection that may be read can get so much more than it may hold."""


class Holder:
    """A connection whose client sends a frame of `frame_bytes` as far as it is read; None: it sends for ever."""

    def __init__(self, memory: RequestMemory, frame_bytes: int = 0, *, stops_at: int | None = None) -> None:
        self.account = MemoryAccount(memory, self)
        memory.open(self.account)
        self.frame_bytes = frame_bytes
        self.stops_at = frame_bytes if stops_at is None else stops_at
        self.received = 0
        self.is_read = True
        self.unsent = 0
        self.is_closed = False

    def room_changed(self) -> None:
        self.is_read = self.account.may_receive()

    def missing_frame_bytes(self) -> int:
        return self.frame_bytes - self.received

    def unsent_bytes(self) -> int:
        return self.unsent

    def close_slow(self, held_bytes: int) -> None:
        self.is_closed = True
        self.account.close()

    def receive(self) -> bool:
        """Takes a chunk, if it is read and one comes; a whole frame is answered at once."""
        size = min(CHUNK, self.stops_at - self.received)
        if not self.is_read or not size or self.is_closed:
            return False
        self.received += size
        self.account.add_request(size)
        self.account.progressed_at = asyncio.get_running_loop().time()
        if self.received == self.frame_bytes:
            self.account.end_request(self.frame_bytes)
            self.account.frame_is_whole()
        self.is_read = self.account.may_receive()
        return True


def in_virtual_time(work: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


async def send_all(holders: list[Holder]) -> int:
    """All clients send until none is read any more; the most that was held."""
    highest = 0
    idle_turns = 0
    while idle_turns < 3:
        idle_turns = 0 if any([holder.receive() for holder in holders]) else idle_turns + 1
        highest = max(highest, sum(holder.account.held_bytes for holder in holders))
        await asyncio.sleep(0)
    return highest


def test_half_sent_frames_stay_within_the_budget_and_small_requests_pass() -> None:
    async def scenario() -> None:
        memory = RequestMemory(LIMIT)
        holders = [Holder(memory, 90 * MEBIBYTE, stops_at=45 * MEBIBYTE) for _ in range(30)]
        highest = await send_all(holders)
        assert highest <= LIMIT + 45 * MEBIBYTE + 30 * CHUNK, highest / MEBIBYTE
        assert memory.muted == 29, "one is read to the end of its frame"
        small = Holder(memory, SMALL_HOLDING_BYTES)
        assert small.receive() and small.received == SMALL_HOLDING_BYTES and memory.request_room < MEBIBYTE

    in_virtual_time(scenario())


def test_frames_that_fill_the_budget_come_to_their_ends_one_after_the_other() -> None:
    async def scenario() -> None:
        memory = RequestMemory(LIMIT)
        holders = [Holder(memory, 90 * MEBIBYTE) for _ in range(8)]
        highest = await send_all(holders)
        assert [holder.received for holder in holders] == [90 * MEBIBYTE] * 8
        assert highest <= LIMIT + 90 * MEBIBYTE
        assert memory.used_bytes == memory.request_bytes == memory.muted == 0

    in_virtual_time(scenario())


def test_queued_max_request_bytes_limits_requests_alone() -> None:
    async def scenario() -> None:
        memory = RequestMemory(LIMIT, request_limit_bytes=4 * MEBIBYTE)
        holders = [Holder(memory, 2 * MEBIBYTE, stops_at=2 * MEBIBYTE - 1) for _ in range(30)]
        assert await send_all(holders) <= 6 * MEBIBYTE + 30 * CHUNK
        assert await holders[0].account.reserve_answer(8 * MEBIBYTE, least_bytes=1) == FIRST_ANSWER_BYTES

    in_virtual_time(scenario())


def test_a_client_that_stops_in_the_middle_is_closed_while_others_wait() -> None:
    async def scenario() -> None:
        memory = RequestMemory(LIMIT, stalled_ms=5_000)
        attackers = [Holder(memory, 90 * MEBIBYTE, stops_at=45 * MEBIBYTE) for _ in range(10)]
        await send_all(attackers)
        other = Holder(memory, 20 * MEBIBYTE)
        for _ in range(20):
            await asyncio.sleep(4)
            await send_all([*attackers, other])
            if other.received == other.frame_bytes:
                break
        assert other.received == other.frame_bytes and not other.is_closed
        assert any(attacker.is_closed for attacker in attackers) and memory.closed_total >= 1

    in_virtual_time(scenario())


def test_a_client_that_stops_is_left_alone_while_there_is_room() -> None:
    async def scenario() -> None:
        memory = RequestMemory(LIMIT, stalled_ms=1_000)
        holder = Holder(memory, 20 * MEBIBYTE, stops_at=10 * MEBIBYTE)
        await send_all([holder])
        await asyncio.sleep(100)
        assert not holder.is_closed and memory.muted == 0

    in_virtual_time(scenario())


def test_unread_responses_stay_within_the_budget_and_a_small_fetch_has_room() -> None:
    async def scenario() -> None:
        memory = RequestMemory(LIMIT)
        waiting: list[asyncio.Task[int]] = []
        for _ in range(150):
            holder = Holder(memory)
            size = await asyncio.wait_for(
                holder.account.reserve_answer(50 * MEBIBYTE, least_bytes=LEAST_ANSWER_BYTES), 1
            )
            if size < MEBIBYTE:  # the leader's first batch has a megabyte
                needs = holder.account.reserve_answer(50 * MEBIBYTE, least_bytes=MEBIBYTE)
                waiting.append(asyncio.create_task(needs))
                await asyncio.sleep(0.001)
                continue
            holder.account.fetch_was_answered(size)
            holder.account.set_unsent(size)
            holder.unsent = size
        assert len([task for task in waiting if task.done()]) == 1, "one may overdraw the budget"
        assert memory.used_bytes <= LIMIT
        good = Holder(memory)
        assert await good.account.reserve_answer(50 * MEBIBYTE, least_bytes=LEAST_ANSWER_BYTES) >= LEAST_ANSWER_BYTES
        for task in waiting:
            task.cancel()

    in_virtual_time(scenario())


def test_fetches_that_wait_go_on_one_after_the_other_although_nothing_fits() -> None:
    async def scenario() -> None:
        memory = RequestMemory(MEBIBYTE)
        done: list[int] = []

        async def fetch(number: int) -> None:
            account = Holder(memory).account
            size = await account.reserve_answer(50 * MEBIBYTE, least_bytes=2 * MEBIBYTE)
            assert size == 2 * MEBIBYTE == memory.used_bytes
            await asyncio.sleep(1)
            account.fetch_was_answered(size)
            done.append(number)

        await asyncio.gather(*(fetch(number) for number in range(5)))
        assert done == [0, 1, 2, 3, 4] and memory.used_bytes == 0

    in_virtual_time(scenario())


def test_a_fetch_grows_with_what_its_connection_reads() -> None:
    async def scenario() -> None:
        account = Holder(RequestMemory(LIMIT)).account
        sizes = []
        for _ in range(5):
            size = await account.reserve_answer(50 * MEBIBYTE, least_bytes=LEAST_ANSWER_BYTES)
            account.fetch_was_answered(size)
            sizes.append(size // MEBIBYTE)
        assert sizes == [1, 2, 4, 6, 6]
        account.fetch_was_answered(0)
        assert await account.reserve_answer(50 * MEBIBYTE, least_bytes=LEAST_ANSWER_BYTES) == FIRST_ANSWER_BYTES

    in_virtual_time(scenario())


def test_a_fetch_whose_connection_has_closed_reserves_nothing() -> None:
    """No one would end its reservation: the budget would shrink for good."""

    async def scenario() -> None:
        memory = RequestMemory(LIMIT)
        account = Holder(memory).account
        account.close()
        assert await account.reserve_answer(50 * MEBIBYTE, least_bytes=LEAST_ANSWER_BYTES) == 0
        assert memory.used_bytes == 0

    in_virtual_time(scenario())


def half_a_produce(harness: GatewayHarness) -> GatewayClient:
    client = harness.client()
    client.connection.data_received(struct.pack(">i", 90 * MEBIBYTE) + struct.pack(">hhih", 0, 9, 1, 1) + b"t\0")
    return client


def test_a_gateway_stops_reading_half_sent_frames() -> None:
    """30 clients send half of 90 MB each: what the gateway takes of them stays within its budget."""

    async def scenario(harness: GatewayHarness) -> None:
        clients = [half_a_produce(harness) for _ in range(30)]
        taken = 0
        for _ in range(45 * 4):
            for client in clients:
                if client.transport.reading:
                    client.connection.data_received(bytes(CHUNK))
                    taken += CHUNK
            await asyncio.sleep(0)
        assert taken <= 96 * MEBIBYTE + 45 * MEBIBYTE + 30 * CHUNK, taken / MEBIBYTE
        good = harness.client()
        answer = await good.ask(ApiKey.METADATA, 12, topics=())
        assert answer.brokers
        for client in clients:
            client.lose()
        assert harness.node._gateway.memory.used_bytes == 0

    run(scenario, {"kshare.queued.max.bytes": str(96 * MEBIBYTE)})


def test_a_fetch_asks_for_no_more_than_there_is_room_for() -> None:
    asked: list[Any] = []

    def answer(request: Any, payload: memoryview) -> Any:
        asked.append(request)
        partition = leader_pb2.FetchResponse.Partition(topic_id=TOPIC_ID, partition=0, high_watermark=1)
        if len(asked) == 1:
            return leader_pb2.FetchResponse(partitions=[partition], least_bytes=2 * MEBIBYTE)
        partition.records_length = 2 * MEBIBYTE
        return leader_pb2.FetchResponse(partitions=[partition]), [bytes(2 * MEBIBYTE)]

    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Fetch"] = answer
        partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50 * MEBIBYTE}]
        topics = [{"topic": "orders", "partitions": partitions}]
        client = harness.client()
        got = await client.ask(
            ApiKey.FETCH, 11, max_wait=500, min_bytes=1, max_bytes=50 * MEBIBYTE, session_epoch=-1, topics=topics
        )
        assert len(got.responses[0].partitions[0].records) == 2 * MEBIBYTE
        assert [request.max_bytes for request in asked] == [MEBIBYTE, 2 * MEBIBYTE]
        assert [request.longest_batch_bytes for request in asked] == [MEBIBYTE, 2 * MEBIBYTE]
        assert harness.node._gateway.memory.used_bytes == 0

    run(scenario, {"kshare.queued.max.bytes": str(96 * MEBIBYTE)})


LARGE, SMALL = 2 * MEBIBYTE, 100


def fetched_in_order(request: Any, payload: memoryview) -> Any:
    """As a leader: partition 0 has a large batch, partition 1 always a small one; the first with records has room."""
    response = leader_pb2.FetchResponse()
    data: list[bytes] = []
    for wanted in request.partitions:
        answer = response.partitions.add(topic_id=TOPIC_ID, partition=wanted.partition, high_watermark=9)
        size = LARGE if wanted.partition == 0 else SMALL
        if not data and request.longest_batch_bytes < size:
            response.least_bytes, answer.is_left_out = size, True
        elif not data or sum(map(len, data)) + size <= request.max_bytes:
            answer.records_length = size
            data.append(bytes(size))
    return response, data


@pytest.mark.parametrize("rotates", [False, True])
def test_a_batch_that_was_left_out_beside_others_is_in_the_next_fetch(rotates: bool) -> None:
    """A consumer with a busy partition would else never get beyond the batch; librdkafka rotates its partitions."""

    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Fetch"] = fetched_in_order
        partitions = [
            {"partition": index, "fetch_offset": 0, "partition_max_bytes": 50 * MEBIBYTE} for index in range(2)
        ]
        client = harness.client()
        found = []
        for _ in range(4):
            got = await client.ask(
                *(ApiKey.FETCH, 11),
                max_wait=500,
                min_bytes=1,
                max_bytes=50 * MEBIBYTE,
                session_epoch=-1,
                topics=[{"topic": "orders", "partitions": partitions}],
            )
            by_partition = {each.partition_index: len(each.records or b"") for each in got.responses[0].partitions}
            assert list(by_partition) == [each["partition"] for each in partitions]
            found.append(by_partition[0])
            if rotates:
                partitions.reverse()
        assert found[:2] == [0, LARGE] and LARGE in found[2:]
        assert harness.node._gateway.memory.used_bytes == 0

    run(scenario, {"kshare.queued.max.bytes": str(96 * MEBIBYTE)})


def test_of_several_batches_that_were_left_out_each_has_its_turn() -> None:
    """Two partitions have large batches and a third one is always busy; the client rotates them."""
    sizes = {0: LARGE, 1: LARGE, 2: SMALL}

    def answer(request: Any, payload: memoryview) -> Any:
        response = leader_pb2.FetchResponse()
        data: list[bytes] = []
        for wanted in request.partitions:
            entry = response.partitions.add(topic_id=TOPIC_ID, partition=wanted.partition, high_watermark=9)
            size = sizes[wanted.partition]
            if not data and request.longest_batch_bytes < size:
                response.least_bytes, entry.is_left_out = max(response.least_bytes, size), True
            elif not data or sum(map(len, data)) + size <= request.max_bytes:
                entry.records_length = size
                data.append(bytes(size))
        return response, data

    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Fetch"] = answer
        partitions = [{"partition": at, "fetch_offset": 0, "partition_max_bytes": LARGE} for at in range(3)]
        client = harness.client()
        found = [0, 0, 0]
        for _ in range(12):
            got = await client.ask(
                *(ApiKey.FETCH, 11),
                max_wait=50,
                min_bytes=1,
                max_bytes=50 * MEBIBYTE,
                session_epoch=-1,
                topics=[{"topic": "orders", "partitions": partitions}],
            )
            for each in got.responses[0].partitions:
                found[each.partition_index] += bool(each.records)
            partitions = [*partitions[1:], partitions[0]]
        assert min(found) >= 3, found
        assert harness.node._gateway.memory.used_bytes == 0

    run(scenario, {"kshare.queued.max.bytes": str(16 * MEBIBYTE)})


def test_room_for_a_batch_that_was_left_out_is_not_held_while_a_fetch_waits() -> None:
    asked: list[Any] = []

    def answer(request: Any, payload: memoryview) -> Any:
        asked.append(request)
        if len(asked) == 1:
            return fetched_in_order(request, payload)
        response = leader_pb2.FetchResponse()
        response.partitions.add(topic_id=TOPIC_ID, partition=0, high_watermark=9)
        return response

    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Fetch"] = answer
        client = harness.client()
        for indexes in ((0, 1), (0,)):
            partitions = [{"partition": at, "fetch_offset": 0, "partition_max_bytes": LARGE} for at in indexes]
            topics = [{"topic": "orders", "partitions": partitions}]
            await client.ask(
                ApiKey.FETCH, 11, max_wait=50, min_bytes=1, max_bytes=50 * MEBIBYTE, session_epoch=-1, topics=topics
            )
        assert [(request.max_wait_ms, request.longest_batch_bytes) for request in asked] == [
            (50, MEBIBYTE),
            (0, LARGE),
            (50, MEBIBYTE),
        ]

    run(scenario, {"kshare.queued.max.bytes": str(96 * MEBIBYTE)})


def test_a_partition_that_a_fetch_names_again_has_its_records_once() -> None:
    def answer(request: Any, payload: memoryview) -> Any:
        response = leader_pb2.FetchResponse()
        response.partitions.add(topic_id=TOPIC_ID, partition=0, high_watermark=9, records_length=1000)
        return response, [bytes(1000)]

    async def scenario(harness: GatewayHarness) -> None:
        harness.leaders[1].answers["Fetch"] = answer
        partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}] * 100
        topics = [{"topic": "orders", "partitions": partitions}] * 2
        got = await harness.client().ask(
            ApiKey.FETCH, 11, max_wait=500, min_bytes=1, max_bytes=MEBIBYTE, session_epoch=-1, topics=topics
        )
        assert [[len(each.records) for each in topic.partitions] for topic in got.responses] == [[1000], []]

    run(scenario)


def test_a_connection_whose_member_waits_for_others_is_not_read_without_limit() -> None:
    """It is read on to see its end; what it pipelines behind a second JoinGroup must not take the whole budget."""
    limit = 8 * MEBIBYTE
    protocols = [{"name": "range", "metadata": b"\0\1"}]
    join = {"group_id": "group", "session_timeout": 7_000, "rebalance_timeout": 300_000, "protocol_type": "consumer"}

    async def scenario(harness: GatewayHarness) -> None:
        async def joined(request: Any, payload: memoryview) -> Any:
            await asyncio.Event().wait()

        harness.catalog.answers["JoinGroup"] = joined
        client = harness.client()
        for _ in range(2):
            client.send(ApiKey.JOIN_GROUP, 3, **join, protocols=protocols)
        await harness.settle()
        sent = 0
        data = (struct.pack(">i", 4 * CHUNK - 5) + bytes(4 * CHUNK - 5)) * 2  # chunks never end with a frame
        while client.transport.reading and sent < 4 * limit:
            position = sent % len(data)
            client.connection.data_received((data + data)[position : position + CHUNK])
            sent += CHUNK
            await harness.settle()
        assert sent <= 2 * CHUNK

    run(scenario, {"kshare.queued.max.bytes": str(limit)})
