"""A fenced log over the cluster in memory and over Apache Kafka 3.9.1: who owns it, what counts, what is pruned."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from kshare_upstream.fenced_log.claim import Claim
from kshare_upstream.fenced_log.fold import CountedBatch, Fold, NotAFencedLog, whole_batches
from kshare_upstream.fenced_log.owner import (
    FencedLog,
    LogRecord,
    LogTruncated,
    MustClaimAgain,
    Superseded,
    TooLarge,
)
from kshare_upstream.partition_log import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, PartitionLog
from kshare_upstream.port import Upstream, UpstreamPartitionName
from kshare_upstream.producer_ids import fresh_producer_id
from kshare_upstream.topics import create_topic, durable_configs
from kshare_wire.record_reading import open_records
from kshare_wire.record_writing import BatchWriter, ProducerSequence
from support.upstream.fighting_owners import Account, Owner, broken_rules, referee
from support.upstream.memory_upstream import MemoryUpstream
from support.upstream.opened import opened, run_with

MAX_BATCH_BYTES = 10_000
FIGHT_S = 4.0


class Log:
    """One partition, and owners of it as several nodes would make them."""

    def __init__(self, upstream: Upstream, at: UpstreamPartitionName) -> None:
        self.upstream = upstream
        self.partition = PartitionLog(upstream, at, deadline_ms=10_000)
        self.found: dict[FencedLog, list[bytes | None]] = {}

    def owner(self, max_batch_bytes: int = MAX_BATCH_BYTES) -> FencedLog:
        return FencedLog(
            self.upstream, self.partition, max_batch_bytes=max_batch_bytes, now_ms=lambda: int(time.time() * 1000)
        )

    async def claimed(self, epoch: int, attempt: int = 0) -> FencedLog:
        """A new owner; `found` has the values that it read."""
        owner = self.owner()
        await self.claim(owner, epoch, attempt)
        return owner

    async def claim(self, owner: FencedLog, epoch: int, attempt: int = 0) -> None:
        values = self.found[owner] = []

        def take(batch: CountedBatch) -> None:
            values.extend(record.value for record in open_records(batch.data))

        await owner.claim(Claim(epoch, attempt, 1, bytes(16)), take)

    async def batches(self) -> list[CountedBatch]:
        """All batches of the log."""
        found: list[CountedBatch] = []
        offset, end = [await self.partition.offset_at(each) for each in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)]
        while offset < end:
            batches = list(whole_batches((await self.partition.read(offset)).data))
            found += batches
            offset = batches[-1].header.base_offset + batches[-1].header.last_offset_delta + 1
        return found


def run(bootstrap: str, body: Callable[[Log], Awaitable[None]]) -> None:
    async def with_log() -> None:
        async with opened(bootstrap) as upstream:
            topic = f"state-{uuid4().hex}"
            assert await create_topic(upstream, topic, partitions=1, replicas=1, configs=durable_configs(1))
            await body(Log(upstream, UpstreamPartitionName(topic, 0)))

    run_with(bootstrap, with_log())


def records(*values: bytes) -> list[LogRecord]:
    return [LogRecord(b"key", value) for value in values]


def test_an_owner_appends_and_its_successor_finds_what_was_confirmed(bootstrap: str) -> None:
    async def body(log: Log) -> None:
        first = await log.claimed(1)
        assert [await first.append(records(b"a")), await first.append(records(b"b", b"c"))] == [1, 2]
        assert (log.found[first], first.end_offset) == ([], 4)
        second = await log.claimed(2)
        assert log.found[second] == [b"a", b"b", b"c"]
        assert await second.append(records(b"d")) == 5

    run(bootstrap, body)


def test_an_owner_that_was_replaced_is_told_by_whom_and_what_it_wrote_does_not_count(bootstrap: str) -> None:
    async def body(log: Log) -> None:
        first = await log.claimed(1)
        second = await log.claimed(2)
        with pytest.raises(Superseded) as superseded:
            await first.append(records(b"void"))
        assert superseded.value.claim.epoch == 2
        with pytest.raises(MustClaimAgain):
            await first.append(records(b"void"))
        await second.append(records(b"counts"))
        third = await log.claimed(3)
        assert log.found[third] == [b"counts"]

    run(bootstrap, body)


@pytest.mark.parametrize(("epoch", "attempt"), [(4, 9), (5, 0), (5, 1)])
def test_a_claim_that_is_not_higher_changes_nothing(bootstrap: str, epoch: int, attempt: int) -> None:
    async def body(log: Log) -> None:
        owner = await log.claimed(5, 1)
        with pytest.raises(Superseded) as superseded:
            await log.claimed(epoch, attempt)
        assert superseded.value.claim.rank == (5, 1)
        await owner.append(records(b"a"))
        next_owner = await log.claimed(5, 2)
        assert log.found[next_owner] == [b"a"]

    run(bootstrap, body)


def test_batches_of_strangers_between_are_skipped(bootstrap: str) -> None:
    """A former owner whose requests arrive late, or any client that may write to the topic."""

    async def body(log: Log) -> None:
        owner = await log.claimed(1)
        stranger = await fresh_producer_id(log.upstream)
        for sequence in range(3):
            writer = BatchWriter(MAX_BATCH_BYTES, producer=ProducerSequence(*stranger, sequence))
            writer.append(0, b"key", b"stranger", ())
            await log.partition.append(writer.build())
        assert await owner.append(records(b"a")) == 4
        successor = await log.claimed(2)
        assert log.found[successor] == [b"a"]

    run(bootstrap, body)


def test_what_is_before_a_mark_can_be_pruned(bootstrap: str) -> None:
    async def body(log: Log) -> None:
        owner = await log.claimed(1)
        for number in range(5):
            await owner.append(records(bytes([number])))
        assert await owner.mark() == 6
        await owner.append(records(b"after"))
        assert await owner.prune() == 6
        successor = await log.claimed(2)
        assert log.found[successor] == [b"after"]
        assert await successor.prune() == successor.mark_offset == 8
        assert await successor.append(records(b"goes on")) == 9
        assert [batch.header.base_offset for batch in await log.batches()] == [8, 9]

    run(bootstrap, body)


def test_an_owner_hears_of_a_successor_that_has_pruned(bootstrap: str) -> None:
    async def body(log: Log) -> None:
        first = await log.claimed(1)
        second = await log.claimed(2)
        await second.append(records(b"a"))
        await second.mark()
        await second.prune()
        with pytest.raises(MustClaimAgain, match="pruned"):
            await first.append(records(b"void"))

    run(bootstrap, body)


def test_a_resignation_can_be_read(bootstrap: str) -> None:
    async def body(log: Log) -> None:
        owner = await log.claimed(1)
        await owner.append(records(b"a"))
        folds = []
        for step in (owner.resign, None):
            fold = Fold()
            for batch in await log.batches():
                fold.take(batch)
            folds.append(fold.has_resigned)
            if step is not None:
                await step()
        assert folds == [False, True]
        with pytest.raises(MustClaimAgain):
            await owner.append(records(b"b"))
        successor = await log.claimed(2)
        assert log.found[successor] == [b"a"]

    run(bootstrap, body)


def test_records_that_do_not_fit_are_refused_before_anything_is_written(bootstrap: str) -> None:
    async def body(log: Log) -> None:
        owner = await log.claimed(1)
        for values in ([b"x" * 20_000], [b"x" * 6_000, b"x" * 6_000]):
            with pytest.raises(TooLarge, match="10000 bytes"):
                await owner.append(records(*values))
        assert await owner.append(records(b"a")) == 1

    run(bootstrap, body)


def test_appends_at_once_wait_for_each_other(bootstrap: str) -> None:
    async def body(log: Log) -> None:
        owner = await log.claimed(1)
        offsets = await asyncio.gather(*(owner.append(records(bytes([number]))) for number in range(50)))
        assert sorted(offsets) == list(range(1, 51))

    run(bootstrap, body)


def test_a_log_of_something_else_is_refused(bootstrap: str) -> None:
    async def body(log: Log) -> None:
        writer = BatchWriter(MAX_BATCH_BYTES)
        writer.append(0, b"key", b"value", ())
        await log.partition.append(writer.build())
        with pytest.raises(NotAFencedLog, match="offset 0 is before every claim"):
            await log.claimed(1)

    run(bootstrap, body)


def test_owners_that_take_over_at_random(bootstrap: str) -> None:
    """Seconds of real time; tests/model/upstream does it for many seeds, with an unreliable network."""

    async def body(log: Log) -> None:
        account = Account()
        owners = [
            asyncio.create_task(
                Owner(log.owner(1 << 20), node_id, account, random.Random(node_id), longest_rest_s=0.3).live()
            )
            for node_id in range(4)
        ]
        done, under_way = await asyncio.wait(owners, timeout=FIGHT_S, return_when=asyncio.FIRST_EXCEPTION)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for task in done:
            task.result()
        history = [batch.data for batch in await log.batches()]
        assert broken_rules(account, referee(history), since=history_start(history)) == []

    def history_start(history: list[memoryview]) -> int:
        return next(whole_batches(history[0])).header.base_offset

    run(bootstrap, body)


def test_a_log_that_lost_what_was_confirmed_is_noticed() -> None:
    async def body() -> None:
        upstream = MemoryUpstream()
        at = UpstreamPartitionName("state", 0)
        await create_topic(upstream, at.topic, partitions=1, replicas=1, configs={})
        log = Log(upstream, at)
        owner = await log.claimed(1)
        await owner.append(records(b"a"))
        await owner.append(records(b"b"))
        lossy = upstream.logs[at]
        lossy.batches.pop()
        lossy.end -= 1
        lossy.sequences.clear()
        with pytest.raises(LogTruncated, match="lost acknowledged records"):
            await owner.append(records(b"c"))

    asyncio.run(body())
