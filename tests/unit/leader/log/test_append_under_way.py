"""Appends whose write is not durable yet: what others see of them, and what waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers.pending_appends import Appended
from kshare_leader.log.tail import TailCache
from kshare_leader.reassignment.rows import FAMILIES, PartitionRows
from kshare_runtime.memory_store import MemoryDisk
from support.leader.log.leader_logs import KEY, open_logs, topic, view_of
from support.wire.record_building import build_batch


def slow_disk() -> MemoryDisk:
    """No sync on it ends by itself."""
    return MemoryDisk(sync_delay_s=lambda: 3600.0)


def run(test: Coroutine[None, None, None]) -> None:
    asyncio.run(test)


def opened(logs: PartitionLogs) -> PartitionLog:
    log = logs.find(KEY)
    assert log is not None
    return log


async def begin(logs: PartitionLogs, *values: bytes) -> asyncio.Future[Appended]:
    """An append of one batch, after the turn that begins its write."""
    future = logs.append(KEY, memoryview(build_batch(list(values))))
    await asyncio.sleep(0)
    return future


def test_nothing_can_be_read_before_it_is_durable() -> None:
    async def test() -> None:
        logs = open_logs(slow_disk().open_store("leader"))
        log = opened(logs)
        first = await begin(logs, b"a")
        logs.settle()
        assert first.result().base_offset == 0 and log.high_watermark == 1
        log._tails = TailCache(node_limit_bytes=0)  # reads go to the store
        log._tail = log._tails.open(KEY, 2)
        second = await begin(logs, b"b")
        assert not second.done() and log.high_watermark == 1
        assert [batch.base_offset for batch in log.read(0, 1_000_000)] == [0]
        logs.settle()
        assert [batch.base_offset for batch in log.read(0, 1_000_000)] == [0, 1]

    run(test())


def test_appends_that_come_meanwhile_share_the_next_write() -> None:
    async def test() -> None:
        logs = open_logs(slow_disk().open_store("leader"))
        first = await begin(logs, b"a")
        others = [await begin(logs, b"b"), await begin(logs, b"c")]
        logs.settle()
        assert first.done() and not any(future.done() for future in others)
        await asyncio.sleep(0)
        logs.settle()
        assert [future.result().base_offset for future in others] == [1, 2]

    run(test())


def test_a_failed_sync_assigns_nothing() -> None:
    async def test() -> None:
        disk = slow_disk()
        logs = open_logs(disk.open_store("leader"))
        disk.fail_next_syncs(1)
        future = await begin(logs, b"a")
        logs.settle()
        with pytest.raises(KafkaError) as caught:
            await future
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR and logs.problems()
        again = await begin(logs, b"a")
        logs.settle()
        assert again.result().base_offset == 0 and logs.problems() == []

    run(test())


def test_what_changes_a_log_waits_for_the_append_under_way() -> None:
    async def test() -> None:
        logs = open_logs(slow_disk().open_store("leader"))
        log = opened(logs)
        future = await begin(logs, b"a", b"b")
        logs.move_starts([(log, 1)])
        assert future.result().base_offset == 0 and (log.log_start_offset, log.high_watermark) == (1, 2)
        future = await begin(logs, b"c")
        before, moved = view_of(topic()), view_of(topic(leaders=[2, 2]), version=2)
        logs.on_view(before, moved)
        assert future.result().base_offset == 2, "it is durable, and the new leader gets it"
        assert log.is_closed

    run(test())


def test_a_copy_for_another_leader_has_durable_batches_only() -> None:
    async def test() -> None:
        disk = slow_disk()
        store = disk.open_store("leader")
        logs = open_logs(store)
        disk.fail_next_syncs(1)
        failing = await begin(logs, b"a")
        rows = PartitionRows(store)
        assert rows.page(KEY, FAMILIES, None, 1_000_000).rows == []
        with pytest.raises(KafkaError):
            await failing
        kept = await begin(logs, b"a")
        assert rows.page(KEY, FAMILIES, None, 1_000_000).rows and kept.done()

    run(test())


def test_a_leader_that_stops_answers_the_append_under_way() -> None:
    async def test() -> None:
        logs = open_logs(slow_disk().open_store("leader"))
        future = await begin(logs, b"a")
        waiting = logs.append(KEY, memoryview(build_batch([b"b"])))
        logs.close()
        assert future.result().base_offset == 0
        with pytest.raises(KafkaError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(test())
