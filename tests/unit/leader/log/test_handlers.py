"""Produce, Fetch and ListOffsets of the leader, from message to message."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import TopicPartition
from kshare_core.work_slices import SLICE_ELEMENTS
from kshare_leader.handlers import fetch
from kshare_leader.handlers.fetch import FetchHandler
from kshare_leader.handlers.list_offsets import ListOffsetsHandler
from kshare_leader.handlers.produce import PARTITIONS_LIMIT, ProduceHandler
from kshare_leader.log import keys
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.tail import TailCache
from kshare_rpc.generated.kshare.v1 import leader_pb2
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Write
from kshare_wire.record_batches import read_headers
from support.leader.log.leader_logs import KEY, TOPIC, open_logs, topic, view_of
from support.leader.log.transactional_logs import verifier_of
from support.simulation.loop import VirtualLoop
from support.wire.record_building import build_batch

UNKNOWN_TOPIC = b"no-such-topic-id"
SECOND = TopicPartition(TOPIC, 1)
NOWHERE = memoryview(b"")


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def run_virtually(test: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(test)
    finally:
        loop.close()


def new_logs(**options: Any) -> PartitionLogs:
    return open_logs(MemoryDisk().open_store("leader"), topic(leaders=(1, 1, 2)), **options)


async def produce(logs: PartitionLogs, *batches: tuple[TopicPartition, bytes], acks: int = -1) -> list[Any]:
    request = leader_pb2.ProduceRequest(
        acks=acks,
        partitions=[
            leader_pb2.ProduceRequest.Partition(
                topic_id=key.topic_id, partition=key.partition, records_length=len(records)
            )
            for key, records in batches
        ],
    )
    response = await ProduceHandler(logs, verifier_of(logs))(
        request, memoryview(b"".join(records for _, records in batches))
    )
    return list(response.partitions)


def test_produce_answers_each_partition_for_itself() -> None:
    async def test() -> None:
        batch = build_batch([b"a", b"b"])
        keys = [KEY, SECOND, KEY, TopicPartition(TOPIC, 2), TopicPartition(TOPIC, 9), TopicPartition(UNKNOWN_TOPIC, 0)]
        answers = await produce(new_logs(), *[(key, batch) for key in keys])
        assert [(answer.topic_id, answer.partition) for answer in answers] == keys
        assert [(answer.error_code, answer.base_offset, answer.log_start_offset) for answer in answers] == [
            (0, 0, 0),
            (0, 0, 0),
            (0, 2, 0),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1),
            (ErrorCode.UNKNOWN_TOPIC_ID, -1, -1),
        ]
        leaders = [(answer.current_leader.leader_id, answer.current_leader.leader_epoch) for answer in answers]
        assert leaders == [(-1, -1)] * 3 + [(2, 3)] + [(-1, -1)] * 2
        assert {answer.log_append_time_ms for answer in answers} == {-1}

    run(test())


def test_a_bad_batch_does_not_hurt_its_neighbours() -> None:
    async def test() -> None:
        batch = build_batch()
        answers = await produce(new_logs(), (KEY, batch), (KEY, batch[:-1]), (KEY, b""), (KEY, batch))
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [
            (0, 0),
            (ErrorCode.INVALID_RECORD, -1),
            (ErrorCode.INVALID_RECORD, -1),
            (0, 1),
        ]

    run(test())


@pytest.mark.parametrize("acks", [-2, 2, 1 << 20])
def test_other_acks_are_refused(acks: int) -> None:
    async def test() -> None:
        logs = new_logs()
        (answer,) = await produce(logs, (KEY, build_batch()), acks=acks)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_REQUIRED_ACKS, -1)
        log = logs.find(KEY)
        assert log is not None and log.high_watermark == 0

    run(test())


@pytest.mark.parametrize("lengths", [[10], [100, -28], [1 << 62, 1 << 62], []])
def test_lengths_must_be_those_of_the_payload(lengths: list[int]) -> None:
    async def test() -> None:
        request = leader_pb2.ProduceRequest(
            acks=1,
            partitions=[
                leader_pb2.ProduceRequest.Partition(topic_id=TOPIC, partition=0, records_length=length)
                for length in lengths
            ],
        )
        logs = new_logs()
        response = await ProduceHandler(logs, verifier_of(logs))(request, memoryview(build_batch()))
        assert [answer.error_code for answer in response.partitions] == [ErrorCode.INVALID_REQUEST] * len(lengths)

    run(test())


def test_too_many_partitions_are_refused() -> None:
    async def test() -> None:
        request = leader_pb2.ProduceRequest(acks=1)
        for _ in range(PARTITIONS_LIMIT + 1):
            request.partitions.add(topic_id=TOPIC, partition=0)
        logs = new_logs()
        response = await ProduceHandler(logs, verifier_of(logs))(request, NOWHERE)
        assert {answer.error_code for answer in response.partitions} == {ErrorCode.INVALID_REQUEST}

    run(test())


def fetch_request(*offsets: tuple[TopicPartition, int], waiter: str = "", **options: int) -> leader_pb2.FetchRequest:
    epoch = options.pop("epoch", -1)
    partition_max_bytes = options.pop("partition_max_bytes", 1 << 20)
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **options}
    return leader_pb2.FetchRequest(
        partitions=[
            leader_pb2.FetchRequest.Partition(
                topic_id=key.topic_id,
                partition=key.partition,
                fetch_offset=offset,
                current_leader_epoch=epoch,
                partition_max_bytes=partition_max_bytes,
            )
            for key, offset in offsets
        ],
        waiter=waiter,
        **fields,
    )


BATCH = build_batch([b"x" * 100, b"y" * 100])


async def filled_logs(*, tail_bytes: int = 1 << 20) -> PartitionLogs:
    """Three batches of two records in each of the two partitions that are led here, in memory up to `tail_bytes`."""
    logs = new_logs(tails=TailCache(partition_limit_bytes=tail_bytes))
    for _ in range(3):
        await produce(logs, (KEY, BATCH), (SECOND, BATCH))
    return logs


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20], ids=["disk", "memory"])
@pytest.mark.parametrize(
    ("offset", "max_bytes", "partition_max_bytes", "expected"),
    [
        (0, 1 << 20, 1 << 20, ([0, 2, 4], [0, 2, 4])),
        (3, 1 << 20, 1 << 20, ([2, 4], [2, 4])),
        (0, 0, 0, ([0], [])),
        (0, 1, 1 << 20, ([0], [])),
        (0, 1 << 20, 1, ([0], [])),
        (0, 1 << 20, len(BATCH), ([0], [0])),
        (0, 3 * len(BATCH) - 1, 1 << 20, ([0, 2], [])),
        (0, 4 * len(BATCH), 1 << 20, ([0, 2, 4], [0])),
        (0, -1, -1, ([0], [])),
        (6, 1 << 20, 1 << 20, ([], [])),
    ],
)
def test_partitions_share_the_bytes_and_the_first_always_gets_on(
    offset: int, max_bytes: int, partition_max_bytes: int, expected: tuple[list[int], list[int]], tail_bytes: int
) -> None:
    async def test() -> None:
        handler = FetchHandler(await filled_logs(tail_bytes=tail_bytes))
        request = fetch_request(
            (KEY, offset), (SECOND, offset), max_bytes=max_bytes, partition_max_bytes=partition_max_bytes
        )
        response, payload = await handler(request, NOWHERE)
        whole, position, found = b"".join(payload), 0, []
        for answer in response.partitions:
            records = whole[position : position + answer.records_length]
            position += answer.records_length
            found.append([header.base_offset for header in read_headers(records)])
            assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 6, 6)
        assert tuple(found) == expected and position == len(whole)

    run(test())


def test_the_first_partition_with_records_gets_on_though_others_are_empty() -> None:
    async def test() -> None:
        handler = FetchHandler(await filled_logs())
        response, _ = await handler(fetch_request((KEY, 6), (SECOND, 0), max_bytes=1), NOWHERE)
        assert [answer.records_length for answer in response.partitions] == [0, len(BATCH)]

    run(test())


def test_a_batch_that_is_too_long_for_the_gateway_is_told_although_others_are_read() -> None:
    async def test() -> None:
        logs = new_logs()
        long = build_batch([b"x" * 5_000])
        await produce(logs, (KEY, long), (SECOND, BATCH))
        handler = FetchHandler(logs)
        response, _ = await handler(fetch_request((KEY, 0), (SECOND, 0), longest_batch_bytes=1_000), NOWHERE)
        assert [answer.records_length for answer in response.partitions] == [0, len(BATCH)]
        assert response.least_bytes == len(long)
        assert [answer.is_left_out for answer in response.partitions] == [True, False]

    run(test())


@pytest.mark.parametrize(
    ("key", "offset", "epoch", "code", "leader"),
    [
        (KEY, 7, -1, ErrorCode.OFFSET_OUT_OF_RANGE, (-1, -1)),
        (KEY, -1, -1, ErrorCode.OFFSET_OUT_OF_RANGE, (-1, -1)),
        (KEY, (1 << 63) - 1, -1, ErrorCode.OFFSET_OUT_OF_RANGE, (-1, -1)),
        (KEY, 0, 2, ErrorCode.FENCED_LEADER_EPOCH, (1, 3)),
        (KEY, 0, 4, ErrorCode.UNKNOWN_LEADER_EPOCH, (1, 3)),
        (TopicPartition(TOPIC, 2), 0, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER, (2, 3)),
        (TopicPartition(UNKNOWN_TOPIC, 0), 0, -1, ErrorCode.UNKNOWN_TOPIC_ID, (-1, -1)),
        (TopicPartition(b"", 0), 0, -1, ErrorCode.UNKNOWN_TOPIC_ID, (-1, -1)),
    ],
)
def test_fetch_errors_are_answered_at_once(
    key: TopicPartition, offset: int, epoch: int, code: ErrorCode, leader: tuple[int, int]
) -> None:
    async def test() -> None:
        request = fetch_request((key, offset), epoch=epoch, max_wait_ms=60_000)
        response, payload = await FetchHandler(await filled_logs())(request, NOWHERE)
        (answer,) = response.partitions
        assert answer.error_code == code and not payload
        assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (-1, -1, -1)
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == leader

    run(test())


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_fetch_waits_for_min_bytes_over_all_its_partitions() -> None:
    async def test() -> None:
        logs = await filled_logs()
        request = fetch_request((KEY, 6), (SECOND, 6), min_bytes=2 * len(BATCH), max_wait_ms=60_000)
        waiting = asyncio.ensure_future(FetchHandler(logs)(request, NOWHERE))
        await turns()
        await produce(logs, (KEY, BATCH))
        await turns()
        assert not waiting.done()
        await produce(logs, (SECOND, BATCH))
        response, payload = await asyncio.wait_for(waiting, 5)
        assert [answer.records_length for answer in response.partitions] == [len(BATCH)] * 2
        assert [answer.high_watermark for answer in response.partitions] == [8, 8]
        assert sum(len(piece) for piece in payload) == 2 * len(BATCH)

    run(test())


def test_fetch_answers_what_there_is_when_its_time_is_over() -> None:
    async def test() -> None:
        logs = await filled_logs()
        loop = asyncio.get_running_loop()
        start = loop.time()
        response, _ = await FetchHandler(logs)(fetch_request((KEY, 4), min_bytes=5000, max_wait_ms=30), NOWHERE)
        assert loop.time() - start >= 0.029
        assert [answer.records_length for answer in response.partitions] == [len(BATCH)]

    run(test())


def test_a_deleted_topic_ends_waiting_fetches() -> None:
    async def test() -> None:
        logs = await filled_logs()
        waiting = asyncio.ensure_future(FetchHandler(logs)(fetch_request((KEY, 6), max_wait_ms=60_000), NOWHERE))
        await turns()
        logs.on_view(view_of(topic()), view_of(version=2))
        response, _ = await asyncio.wait_for(waiting, 5)
        assert [answer.error_code for answer in response.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID]

    run(test())


def test_waiting_fetches_leave_nothing_behind_and_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(fetch, "WAITING_LIMIT", 2)
        logs = await filled_logs()
        log = logs.find(KEY)
        assert log is not None
        handler = FetchHandler(logs)
        waiting = [
            asyncio.ensure_future(handler(fetch_request((KEY, 6), max_wait_ms=60_000), NOWHERE)) for _ in range(2)
        ]
        await turns()
        response, _ = await asyncio.wait_for(handler(fetch_request((KEY, 6), max_wait_ms=60_000), NOWHERE), 5)
        assert [answer.records_length for answer in response.partitions] == [0]
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not log._listeners
        again = asyncio.ensure_future(handler(fetch_request((KEY, 6), max_wait_ms=60_000), NOWHERE))
        await turns()
        assert not again.done()
        await produce(logs, (KEY, BATCH))
        await asyncio.wait_for(again, 5)
        assert not log._listeners

    run(test())


def test_one_fetch_more_than_the_limit_pauses_and_reads_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer at once would let its client fetch without a pause."""
    monkeypatch.setattr(fetch, "WAITING_LIMIT", 0)

    async def test() -> None:
        logs = await filled_logs()
        log = logs.find(KEY)
        assert log is not None
        handler, loop = FetchHandler(logs), asyncio.get_running_loop()
        began_at = loop.time()
        late = asyncio.ensure_future(handler(fetch_request((KEY, 6), max_wait_ms=60_000), NOWHERE))
        await turns()
        assert not late.done() and not log._listeners
        await produce(logs, (KEY, BATCH))
        response, _ = await late
        assert [answer.records_length for answer in response.partitions] == [len(BATCH)]
        assert loop.time() - began_at == pytest.approx(0.2)
        began_at = loop.time()
        await handler(fetch_request((KEY, log.high_watermark), max_wait_ms=50), NOWHERE)
        assert loop.time() - began_at == pytest.approx(0.05)
        request = fetch_request((KEY, log.high_watermark), max_wait_ms=60_000, waiter="a")
        began_at = loop.time()
        earlier, later = [asyncio.ensure_future(handler(request, NOWHERE)) for _ in range(2)]
        await earlier
        assert loop.time() == began_at and not later.done(), "the later fetch of the connection ends the pause"
        await later

    run_virtually(test())


@pytest.mark.parametrize(
    ("waiters", "waits"),
    [
        (["a", "a"], [False, True]),
        (["a", "b"], [True, True]),
        (["a", "b", "a"], [False, True, True]),
        (["", ""], [True, True]),
    ],
)
def test_a_later_fetch_of_the_same_waiter_ends_the_wait(waiters: list[str], waits: list[bool]) -> None:
    async def test() -> None:
        logs = await filled_logs()
        handler = FetchHandler(logs)
        fetches = []
        for waiter in waiters:
            request = fetch_request((KEY, 6), max_wait_ms=60_000, waiter=waiter)
            fetches.append(asyncio.ensure_future(handler(request, NOWHERE)))
            await turns()
        assert [not fetching.done() for fetching in fetches] == waits
        await produce(logs, (KEY, BATCH))
        answers = await asyncio.wait_for(asyncio.gather(*fetches), 5)
        assert [len(b"".join(payload)) for _, payload in answers] == [len(BATCH) * waited for waited in waits]
        assert not handler._waits

    run(test())


@pytest.mark.parametrize("asked", [((KEY, 0),), ()], ids=["with records", "no partition"])
def test_a_fetch_that_does_not_wait_ends_the_wait_of_the_one_before(asked: tuple[tuple[TopicPartition, int]]) -> None:
    async def test() -> None:
        handler = FetchHandler(await filled_logs())
        waiting = asyncio.ensure_future(handler(fetch_request((KEY, 6), max_wait_ms=60_000, waiter="a"), NOWHERE))
        await turns()
        await handler(fetch_request(*asked, waiter="a"), NOWHERE)
        _, payload = await asyncio.wait_for(waiting, 5)
        assert not payload and not handler._waits

    run(test())


def list_request(timestamp: int, key: TopicPartition = KEY, epoch: int = -1) -> leader_pb2.ListOffsetsRequest:
    return leader_pb2.ListOffsetsRequest(
        partitions=[
            leader_pb2.ListOffsetsRequest.Partition(
                topic_id=key.topic_id, partition=key.partition, current_leader_epoch=epoch, timestamp=timestamp
            )
        ]
    )


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (0, -1, 5, 3)),
        (-2, (0, -1, 0, 3)),
        (-3, (0, 900, 1, 3)),
        (-4, (0, -1, 0, 3)),
        (-5, (0, -1, -1, -1)),
        (-6, (ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)),
        (0, (0, 100, 0, 3)),
        (101, (0, 900, 1, 3)),
        (900, (0, 900, 1, 3)),
        (901, (0, -1, -1, -1)),
        ((1 << 63) - 1, (0, -1, -1, -1)),
    ],
)
def test_list_offsets(timestamp: int, expected: tuple[int, int, int, int]) -> None:
    async def test() -> None:
        logs = new_logs()
        await produce(logs, (KEY, build_batch([b"a", b"b", b"c"], timestamps_ms=[100, 900, 300])))
        await produce(logs, (KEY, build_batch([b"d", b"e"], timestamps_ms=[400, 900])))
        response = await ListOffsetsHandler(logs)(list_request(timestamp), NOWHERE)
        (answer,) = response.partitions
        assert (answer.error_code, answer.timestamp, answer.offset, answer.leader_epoch) == expected

    run(test())


@pytest.mark.parametrize("start_offset", [0, 1, 3])
def test_list_offsets_reads_no_batch_for_the_start_and_the_end_of_a_log(start_offset: int) -> None:
    """A damaged first batch hides neither, and the epochs are those of the history, as in Kafka."""

    async def test() -> None:
        disk = MemoryDisk()
        store = disk.open_store("leader")
        logs = open_logs(store, topic(leader_epoch=3), tails=TailCache(partition_limit_bytes=0, node_limit_bytes=0))
        await produce(logs, (KEY, build_batch([b"a", b"b"])), (KEY, build_batch([b"c"])))
        logs.on_view(view_of(topic(leader_epoch=3)), view_of(topic(leader_epoch=7), version=2))
        await produce(logs, (KEY, build_batch([b"d", b"e"])))
        logs.move_starts([(logs.lookup(KEY), start_offset)])
        for base_offset in (0, 2, 3):
            store.write([Write(keys.LOG, keys.long_key(keys.partition_prefix(KEY), base_offset), b"damaged")])
        epoch_of_start = 3 if start_offset < 3 else 7
        for timestamp, offset, epoch in (
            (-2, start_offset, epoch_of_start),
            (-4, start_offset, epoch_of_start),
            (-1, 5, 7),
        ):
            (answer,) = (await ListOffsetsHandler(logs)(list_request(timestamp), NOWHERE)).partitions
            assert (answer.error_code, answer.offset, answer.leader_epoch) == (ErrorCode.NONE, offset, epoch)

    run(test())


@pytest.mark.parametrize(
    ("key", "epoch", "code"),
    [
        (KEY, 2, ErrorCode.FENCED_LEADER_EPOCH),
        (KEY, 4, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (TopicPartition(UNKNOWN_TOPIC, 0), -1, ErrorCode.UNKNOWN_TOPIC_ID),
        (TopicPartition(TOPIC, 2), -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_list_offsets_errors(key: TopicPartition, epoch: int, code: ErrorCode) -> None:
    async def test() -> None:
        response = await ListOffsetsHandler(new_logs())(list_request(-1, key, epoch), NOWHERE)
        (answer,) = response.partitions
        assert (answer.error_code, answer.offset, answer.timestamp) == (code, -1, -1)

    run(test())


def test_offsets_of_an_empty_log() -> None:
    async def test() -> None:
        handler = ListOffsetsHandler(new_logs())
        found = [(await handler(list_request(time), NOWHERE)).partitions[0].offset for time in (-1, -2, -3, 0)]
        assert found == [0, 0, -1, -1]

    run(test())


MANY = 5_000


def of_many_partitions(max_wait_ms: int) -> leader_pb2.FetchRequest:
    return leader_pb2.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1_000_000,
        longest_batch_bytes=1_000_000,
        partitions=[
            leader_pb2.FetchRequest.Partition(
                topic_id=TOPIC, partition=index, current_leader_epoch=-1, partition_max_bytes=1_000
            )
            for index in range(MANY)
        ],
    )


def test_a_fetch_of_many_partitions_is_read_in_slices() -> None:
    async def test() -> None:
        logs = open_logs(MemoryDisk().open_store("leader"), topic(leaders=(1,) * MANY))
        fetching = asyncio.ensure_future(FetchHandler(logs)(of_many_partitions(0), NOWHERE))
        turns = 0
        while not fetching.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= MANY // SLICE_ELEMENTS
        response, _ = await fetching
        assert [answer.partition for answer in response.partitions] == list(range(MANY))
        assert {answer.error_code for answer in response.partitions} == {ErrorCode.NONE}

    run(test())


def test_a_fetch_that_is_still_read_when_a_later_one_comes_does_not_wait() -> None:
    async def test() -> None:
        logs = open_logs(MemoryDisk().open_store("leader"), topic(leaders=(1,) * MANY))
        handler = FetchHandler(logs)
        request = of_many_partitions(60_000)
        request.waiter = "a"
        fetching = asyncio.ensure_future(handler(request, NOWHERE))
        await asyncio.sleep(0)
        await handler(fetch_request(waiter="a"), NOWHERE)
        assert not fetching.done()
        await asyncio.wait_for(fetching, 10)

    run(test())


def test_what_is_appended_while_a_long_fetch_is_read_ends_its_wait() -> None:
    """Its partition was read in an earlier slice, and its listener is not there yet."""

    async def test() -> None:
        logs = open_logs(MemoryDisk().open_store("leader"), topic(leaders=(1,) * MANY))
        handler = FetchHandler(logs)
        fetching = asyncio.ensure_future(handler(of_many_partitions(60_000), NOWHERE))
        await asyncio.sleep(0)
        batch = build_batch([b"a"])
        await logs.append(KEY, memoryview(batch))
        assert handler._waiting == 0, "the first pass over the partitions is under way"
        response, payload = await asyncio.wait_for(fetching, 10)
        assert len(b"".join(payload)) == len(batch)
        assert response.partitions[0].records_length == len(batch)

    run(test())
