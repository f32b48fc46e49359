"""A partition's log behaves the same over the cluster in memory and over Apache Kafka 3.9.1."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from kshare_core.errors import ErrorCode
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, OutcomeUnknown, PartitionLog, Refused
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.producer_ids import ProducerId, fresh_producer_id
from kshare_upstream.topics import create_topic, delete_topic, durable_configs
from kshare_wire.record_batches import read_headers
from kshare_wire.record_writing import BatchWriter, ProducerSequence
from support.upstream.opened import opened, run_with

DEADLINE_MS = 10_000


def run(bootstrap: str, body: Callable[[Upstream, PartitionLog], Awaitable[None]]) -> None:
    """Runs the body with the log of a new partition."""

    async def with_log() -> None:
        async with opened(bootstrap) as upstream:
            topic = f"t-{uuid4().hex}"
            assert await create_topic(upstream, topic, partitions=1, replicas=1, configs=durable_configs(1))
            await body(upstream, PartitionLog(upstream, UpstreamPartitionName(topic, 0), deadline_ms=DEADLINE_MS))

    run_with(bootstrap, with_log())


def batch(producer: ProducerId, sequence: int, values: int = 1, size: int = 10) -> bytes:
    """A batch of `values` records, the first with this sequence number."""
    writer = BatchWriter(1 << 20, producer=ProducerSequence(*producer, sequence))
    for number in range(values):
        writer.append(0, b"key", bytes([number]) * size, ())
    return writer.build()


def test_batches_are_appended_in_order_and_read_as_they_were(bootstrap: str) -> None:
    async def body(upstream: Upstream, log: PartitionLog) -> None:
        producer = await fresh_producer_id(upstream)
        written = [batch(producer, 0, 3), batch(producer, 3, 2), batch(producer, 5)]
        assert [await log.append(each) for each in written] == [0, 3, 5]
        records = await log.read(0)
        headers = read_headers(records.data)
        assert [(header.base_offset, header.record_count) for header in headers] == [(0, 3), (3, 2), (5, 1)]
        assert {header.producer_id for header in headers} == {producer.producer_id}
        assert (records.high_watermark, records.log_start_offset) == (6, 0)
        assert not (await log.read(6)).data
        assert [await log.offset_at(each) for each in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)] == [0, 6]

    run(bootstrap, body)


def test_a_repeated_batch_is_stored_once(bootstrap: str) -> None:
    async def body(upstream: Upstream, log: PartitionLog) -> None:
        producer = await fresh_producer_id(upstream)
        assert [await log.append(batch(producer, sequence)) for sequence in (0, 1, 2, 1, 2, 3)] == [0, 1, 2, 1, 2, 3]
        assert await log.offset_at(LATEST_TIMESTAMP) == 4
        with pytest.raises(Refused) as refused:
            await log.append(batch(producer, 9))
        assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    run(bootstrap, body)


def test_producer_ids_are_fresh(bootstrap: str) -> None:
    async def body(upstream: Upstream, log: PartitionLog) -> None:
        found = [await fresh_producer_id(upstream) for _ in range(5)]
        assert len({each.producer_id for each in found}) == 5 and {each.producer_epoch for each in found} == {0}

    run(bootstrap, body)


def test_the_beginning_is_removed_for_good(bootstrap: str) -> None:
    async def body(upstream: Upstream, log: PartitionLog) -> None:
        producer = await fresh_producer_id(upstream)
        for sequence in range(4):
            await log.append(batch(producer, sequence))
        assert await log.delete_before(2) == 2
        assert await log.delete_before(1) == 2, "a late request changes nothing"
        assert await log.offset_at(EARLIEST_TIMESTAMP) == 2
        assert [header.base_offset for header in read_headers((await log.read(2)).data)] == [2, 3]
        for offset in (1, 5):
            with pytest.raises(Refused) as refused:
                await log.read(offset)
            assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(bootstrap, body)


def test_a_read_is_limited(bootstrap: str) -> None:
    """The first batch is whole, however long it is; what follows is cut where the limit is."""

    async def body(upstream: Upstream, log: PartitionLog) -> None:
        producer = await fresh_producer_id(upstream)
        for sequence in range(3):
            await log.append(batch(producer, sequence, size=100_000))
        (header,) = read_headers((await log.read(1, max_bytes=1000)).data)
        assert header.base_offset == 1

    run(bootstrap, body)


def test_a_partition_that_is_gone_is_given_up(bootstrap: str) -> None:
    async def body(upstream: Upstream, log: PartitionLog) -> None:
        await delete_topic(upstream, log.at.topic)
        while not (await upstream.describe([log.at.topic])).topics[log.at.topic].error_code:
            await asyncio.sleep(0.01)  # Kafka's broker hears of it after the controller has answered
        upstream.forget_leader(log.at)
        with pytest.raises(OutcomeUnknown, match="given up after 300 ms"):
            await PartitionLog(upstream, log.at, deadline_ms=300).offset_at(LATEST_TIMESTAMP)
        with pytest.raises(Refused, match=f"DeleteTopics of {log.at.topic}"):
            await delete_topic(upstream, log.at.topic)

    run(bootstrap, body)


def test_a_topic_is_created_once(bootstrap: str) -> None:
    async def body(upstream: Upstream, log: PartitionLog) -> None:
        assert not await create_topic(upstream, log.at.topic, partitions=1, replicas=1, configs={})
        while (await upstream.describe([log.at.topic])).topics[log.at.topic].error_code:
            await asyncio.sleep(0.01)  # a broker hears of it after the controller has answered
        view = await upstream.describe([log.at.topic, "no-such-topic"])
        assert set(view.topics[log.at.topic].leaders) == {0}
        assert view.topics["no-such-topic"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(bootstrap, body)
