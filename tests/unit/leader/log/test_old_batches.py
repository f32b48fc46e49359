"""Batches that an older version stored without validation, as share groups read them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kshare_leader.log import keys
from kshare_leader.log.aside import Aside
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.share.log_slices import read_slice
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import KeyValueStore, Write
from kshare_wire.record_batches import patch, read_header
from support.leader.log.large_batches import HeldAside, large_batch
from support.leader.log.leader_logs import KEY, open_logs
from support.wire.raw_batches import plain_batch, raw_batch, record
from support.wire.record_building import build_batch

GOOD = build_batch([b"good"] * 3)
PREFIX = keys.partition_prefix(KEY)
BAD = {
    "a record longer than the batch": plain_batch(record(0, length_added=1000) + record(1), count=2),
    "a count of all": plain_batch(record(0), codec="gzip", count=(1 << 31) - 1),
    "compressed garbage": raw_batch(b"garbage", codec="zstd", count=2, first_timestamp_ms=0),
    "offset deltas all 0": plain_batch(record(0) * 3, count=3),
    "too few offsets": plain_batch(record(0) + record(1), count=2, last_offset_delta=0),
}


def store_of_an_older_version(batches: Sequence[bytes]) -> KeyValueStore:
    """Batches one after the other, without the mark of this version."""
    store = MemoryDisk().open_store("leader")
    offset = 0
    for batch in batches:
        stored = patch(batch, offset, 1)
        store.write([Write(keys.LOG, keys.long_key(PREFIX, offset), stored)])
        offset = read_header(stored).last_offset + 1
    return store


def seen(log: PartitionLog, offset: int = 0, max_bytes: int = 1 << 20) -> tuple[list[int], int] | None:
    """Base offsets of the batches that a share group gets, and how far that is all."""
    found = read_slice(log, offset, max_bytes, read_committed=False)
    return None if found is None else ([batch.base_offset for batch in found.batches], found.covered_end)


@pytest.mark.parametrize("bad", [pytest.param(batch, id=name) for name, batch in BAD.items()])
def test_a_malformed_batch_is_left_out_and_its_neighbours_are_not(bad: bytes) -> None:
    async def test() -> None:
        reports: list[str] = []
        logs = open_logs(store_of_an_older_version([GOOD, bad, GOOD]), report=reports.append)
        log = logs.lookup(KEY)
        after = 3 + read_header(bad).last_offset_delta + 1
        assert seen(log) == seen(log) == ([0, after], after + 3)
        assert len(log.read(0, 1 << 20)) == 3, "plain consumers get what is stored, as in Kafka"
        (report,) = reports
        assert f"offsets 3 to {after - 1} are archived for share groups" in report

    asyncio.run(test())


def test_what_is_appended_now_is_not_looked_at_again_even_after_a_restart() -> None:
    async def test() -> None:
        store = store_of_an_older_version([GOOD])
        logs = open_logs(store)
        assert logs.lookup(KEY).validated_from == 3
        await logs.append(KEY, memoryview(GOOD))
        logs.close()
        again = open_logs(store)
        assert again.lookup(KEY).validated_from == 3
        assert again.lookup(KEY).high_watermark == 6
        assert seen(again.lookup(KEY)) == ([0, 3], 6)

    asyncio.run(test())


def test_without_an_append_the_mark_is_not_written_and_found_again() -> None:
    async def test() -> None:
        store = store_of_an_older_version([GOOD])
        for _ in range(2):
            logs = open_logs(store)
            assert logs.lookup(KEY).validated_from == 3
            logs.close()
        assert store.get(keys.POSITIONS, PREFIX + b"validated-from") is None

    asyncio.run(test())


def test_a_large_batch_holds_the_end_until_the_thread_has_looked_at_it() -> None:
    async def test() -> None:
        aside = HeldAside()
        logs = opened(store_of_an_older_version([GOOD, large_batch(), GOOD]), aside)
        log = logs.lookup(KEY)
        told: list[int] = []
        log.add_listener(lambda: told.append(1))
        assert seen(log) == ([0], 3)
        assert seen(log, 3) is None and not told
        await asyncio.sleep(0)
        (held,) = aside.begun
        held.set()
        while not told:
            await asyncio.sleep(0)
        assert seen(log, 3) == ([3, 300_003], 300_006)

    asyncio.run(test())


def test_a_check_that_fails_unexpectedly_is_reported_and_done_again() -> None:
    class FailingAside(HeldAside):
        async def run(self, work: Callable[[], Any]) -> Any:
            await super().run(work)
            if len(self.begun) == 1:
                raise MemoryError("no room to open the batch")
            return work()

    async def test() -> None:
        aside, bugs = FailingAside(), []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context["message"]))
        log = opened(store_of_an_older_version([GOOD, large_batch()]), aside).lookup(KEY)
        for number in (1, 2):
            assert seen(log, 3) is None
            await asyncio.sleep(0)
            assert len(aside.begun) == number
            aside.begun[-1].set()
            for _ in range(5):
                await asyncio.sleep(0)
        assert seen(log, 3) == ([3], 300_003)
        assert bugs == ["the check of the batch at offset 3 failed unexpectedly"]

    asyncio.run(test())


def opened(store: KeyValueStore, aside: Aside) -> PartitionLogs:
    return open_logs(store, aside=aside)


def test_a_read_looks_into_a_bounded_number_of_bytes() -> None:
    """The rest is left to the next read."""

    async def test() -> None:
        one = plain_batch(record(0, value=b"x" * 600_000), codec="zstd")
        logs = open_logs(store_of_an_older_version([one] * 4))
        log = logs.lookup(KEY)
        assert [seen(log), seen(log)] == [([0, 1], 2), ([0, 1, 2, 3], 4)]

    asyncio.run(test())
