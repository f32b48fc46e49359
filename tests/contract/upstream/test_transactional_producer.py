"""Transactions of kshare's own producer behave the same on simulated brokers and on Apache Kafka 3.9.1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from kshare_upstream.committed_records import read_committed_records
from kshare_upstream.partition_log import LATEST_TIMESTAMP, PartitionLog, Refused
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.topics import create_topic, durable_configs
from kshare_upstream.transactional_producer import TransactionalProducer
from kshare_wire.record_batches import patch_producer
from kshare_wire.record_writing import BatchWriter
from support.upstream.opened import opened, run_with

pytestmark = pytest.mark.parametrize("bootstrap", ["simulated", "kafka"], indirect=True)
"""The cluster in memory has no transactions."""


class Bench:
    """Two partitions of a new topic."""

    def __init__(self, upstream: Upstream, topic: str) -> None:
        self.upstream = upstream
        self.partitions = [UpstreamPartitionName(topic, number) for number in range(2)]
        self.logs = [PartitionLog(upstream, at, deadline_ms=10_000) for at in self.partitions]

    def producer(self, name: str = "one") -> TransactionalProducer:
        return TransactionalProducer(self.upstream, f"{self.partitions[0].topic}-{name}")

    def batches(self, *values: str) -> dict[UpstreamPartitionName, bytes]:
        """The same batch for both partitions."""
        return dict.fromkeys(self.partitions, batch(*values))

    async def committed(self) -> list[list[str]]:
        """The committed values by partition."""
        found = [await read_committed_records(log, lambda record: True) for log in self.logs]
        return [[(record.value or b"").decode() for record in records] for records in found]


def batch(*values: str) -> bytes:
    writer = BatchWriter(1 << 20)
    for value in values:
        assert writer.append(1_000, b"key", value.encode(), ())
    return writer.build()


def run(bootstrap: str, body: Callable[[Bench], Awaitable[None]]) -> None:
    async def with_bench() -> None:
        async with opened(bootstrap) as upstream:
            topic = f"t-{uuid4().hex}"
            assert await create_topic(upstream, topic, partitions=2, replicas=1, configs=durable_configs(1))
            await body(Bench(upstream, topic))

    run_with(bootstrap, with_bench())


def test_batches_of_one_transaction_count_together_one_transaction_after_the_other(bootstrap: str) -> None:
    async def body(bench: Bench) -> None:
        producer = bench.producer()
        await producer.begin_anew()
        for number in range(5):
            await producer.commit(bench.batches(f"a{number}", f"b{number}"))
        values = [f"{letter}{number}" for number in range(5) for letter in "ab"]
        again = bench.producer()
        await again.begin_anew()  # the markers of the last transaction are written now
        assert await bench.committed() == [values, values]

    run(bootstrap, body)


def test_a_producer_is_fenced_by_the_next_one_of_its_id_and_by_no_other(bootstrap: str) -> None:
    async def body(bench: Bench) -> None:
        first, second, other = bench.producer(), bench.producer(), bench.producer("other")
        for producer in (first, other, second):
            await producer.begin_anew()
        with pytest.raises(Refused):
            await first.commit(bench.batches("fenced"))
        assert not first.is_ready
        await second.commit(bench.batches("second"))
        await other.commit(bench.batches("other"))
        for producer in (second, other):
            await producer.begin_anew()
        assert sorted((await bench.committed())[0]) == ["other", "second"]

    run(bootstrap, body)


def test_what_is_committed_is_read_although_another_transaction_is_open_before_it(bootstrap: str) -> None:
    async def body(bench: Bench) -> None:
        stuck, producer = bench.producer("stuck"), bench.producer()
        await stuck.begin_anew()
        identity = stuck._producer
        await stuck._add_partitions(identity, bench.partitions)
        stuck_log = PartitionLog(bench.upstream, bench.partitions[0], produce=stuck._produce)
        await stuck_log.append(patch_producer(batch("open"), *identity, 0))
        await producer.begin_anew()
        await producer.commit(bench.batches("committed"))
        await producer.begin_anew()
        assert await bench.logs[0].offset_at(LATEST_TIMESTAMP, read_committed=True) == 0, "held back by the other one"
        assert await bench.committed() == [["committed"], ["committed"]]
        await bench.producer("stuck").begin_anew()  # aborts it
        assert await bench.committed() == [["committed"], ["committed"]]

    run(bootstrap, body)
