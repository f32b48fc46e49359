"""The tasks of housekeeping under virtual time: their effect on each log, how often they run, and other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kshare_core.configs import Configs
from kshare_core.identifiers import TopicPartition
from kshare_leader.log import compaction, keys
from kshare_leader.log.housekeeping import LogHousekeeping
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_runtime.memory_store import MemoryDisk, MemoryStore
from kshare_runtime.ports import Write
from kshare_wire.record_reading import open_records
from support.leader.log.leader_logs import BROKER, KEY, TOPIC, StillClock, open_logs, topic
from support.simulation.loop import VirtualLoop
from support.wire.record_building import build_batch, damage

SECOND = TopicPartition(TOPIC, 1)


class House:
    """Logs, their housekeeping, and a clock that goes with the loop."""

    def __init__(self, topic_configs: dict[str, str], broker: dict[str, str] | None = None) -> None:
        self.disk = MemoryDisk()
        self.store: MemoryStore = self.disk.open_store("leader")
        self.clock = StillClock()
        self.has_lease = True
        self.reports: list[str] = []
        self.logs: PartitionLogs = open_logs(
            self.store, topic(configs=topic_configs), clock=self.clock, has_lease=lambda: self.has_lease
        )
        self.housekeeping = LogHousekeeping(
            logs=self.logs,
            clock=self.clock,
            configs=Configs(BROKER.table, broker),
            report=self.reports.append,
        )

    def log(self, key: TopicPartition = KEY) -> PartitionLog:
        return self.logs.lookup(key)

    async def put(self, *records: tuple[bytes, bytes | None], key: TopicPartition = KEY, age_ms: int = 0) -> None:
        batch = build_batch(
            [value for _, value in records],
            keys=[name for name, _ in records],
            timestamps_ms=[self.clock.now_ms() - age_ms] * len(records),
        )
        await self.logs.append(key, memoryview(batch))

    def values(self, key: TopicPartition = KEY) -> list[bytes | None]:
        return [record.value for batch in self.log(key).read(0, 1 << 20) for record in open_records(batch.data)]


COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "100", "min.cleanable.dirty.ratio": "0"}


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run(test())
    finally:
        loop.close()


async def during(house: House, seconds: float) -> None:
    """Lets the tasks run for so long."""
    task = asyncio.get_running_loop().create_task(house.housekeeping.run())
    await asyncio.sleep(seconds)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_retention_runs_after_the_first_delay_and_then_at_its_interval() -> None:
    async def test() -> None:
        house = House(
            {"retention.ms": "1000", "internal.segment.bytes": "100"},
            {"log.initial.task.delay.ms": "5000", "log.retention.check.interval.ms": "60000"},
        )
        await house.put((b"k", b"old"), age_ms=2_000)
        await house.put((b"k", b"new"))
        await during(house, 4.9)
        assert house.values() == [b"old", b"new"]
        await during(house, 5.1)
        assert house.values() == [b"new"]
        assert house.log().log_start_offset == 1
        assert len(list(house.store.scan(keys.LOG, b""))) == 1, "the disk is freed too"
        house.clock.value_ms += 1_001
        await during(house, 5.1)
        assert (house.values(), house.log().log_start_offset, house.log().high_watermark) == ([], 2, 2)

    run(test)


def test_others_are_served_after_each_log_whose_retention_writes() -> None:
    async def test() -> None:
        house = House({"retention.ms": "1000"})
        for key in (KEY, SECOND):
            await house.put((b"k", b"old"), age_ms=2_000, key=key)
        retention = asyncio.create_task(house.housekeeping.retain_all(compacted=None))
        starts = []
        while not retention.done():
            await asyncio.sleep(0)
            starts.append((house.log().log_start_offset, house.log(SECOND).log_start_offset))
        assert starts[:2] == [(1, 0), (1, 1)]

    run(test)


def test_the_dirtiest_log_is_compacted_first_and_all_in_the_end() -> None:
    async def test() -> None:
        house = House(COMPACTED)
        for key, count in ((KEY, 3), (SECOND, 6)):
            for index in range(count):
                await house.put((b"k", b"%d" % index), key=key)
        assert await house.housekeeping.clean_one()
        assert await house.housekeeping.clean_one()
        assert not await house.housekeeping.clean_one()
        assert (house.values(KEY), house.values(SECOND)) == ([b"1", b"2"], [b"4", b"5"])
        for index in range(2):
            await house.put((b"k", b"more %d" % index), key=SECOND)
        await house.put((b"k", b"more"), key=KEY)
        assert await house.housekeeping.clean_one()
        assert (house.values(KEY), house.values(SECOND)) == ([b"1", b"2", b"more"], [b"more 0", b"more 1"])
        await during(house, 1)
        assert (house.values(KEY), house.values(SECOND)) == ([b"2", b"more"], [b"more 0", b"more 1"])
        assert house.reports == []

    run(test)


def test_compacted_topics_are_retained_by_the_cleaner() -> None:
    async def test() -> None:
        configs = {**COMPACTED, "cleanup.policy": "compact,delete", "retention.ms": "1000"}
        house = House(configs, {"log.retention.check.interval.ms": "1000000", "log.cleaner.backoff.ms": "100"})
        await house.put((b"k", b"old"), age_ms=2_000)
        await house.put((b"l", b"new"))
        await during(house, 0.2)
        assert house.values() == [b"new"]

    run(test)


def test_without_the_cleaner_retention_does_it_and_nothing_is_compacted() -> None:
    async def test() -> None:
        configs = {**COMPACTED, "cleanup.policy": "compact,delete", "retention.ms": "1000"}
        house = House(configs, {"log.cleaner.enable": "false", "log.initial.task.delay.ms": "0"})
        await house.put((b"k", b"old"), age_ms=2_000)
        await house.put((b"k", b"new"))
        await house.put((b"k", b"newer"))
        await during(house, 0.2)
        assert house.values() == [b"new", b"newer"]

    run(test)


def test_others_are_served_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SLICE_BYTES", 1)

    async def test() -> None:
        house = House(COMPACTED, {"log.cleaner.io.max.bytes.per.second": "50000"})
        for index in range(30):
            await house.put((b"k", b"%d" % index))
        cleaning = asyncio.get_running_loop().create_task(house.housekeeping.clean_one())
        served = 0
        while not cleaning.done():
            await house.put((b"served", b"%d" % served))
            served += 1
            await asyncio.sleep(0.001)
        assert await cleaning
        assert served > 20
        assert house.values()[0] == b"28", "the newest of those in closed segments"
        assert house.values()[-1] == b"%d" % (served - 1)

    run(test)


def test_the_cleaner_reads_no_faster_than_it_may() -> None:
    async def test() -> None:
        house = House(COMPACTED, {"log.cleaner.io.max.bytes.per.second": "100"})
        for index in range(5):
            await house.put((b"k", b"%d" % index))
        closed_bytes = sum(segment.size_bytes for segment in house.log().segments.closed)
        began = asyncio.get_running_loop().time()
        assert await house.housekeeping.clean_one()
        took = asyncio.get_running_loop().time() - began
        assert took == pytest.approx(2 * closed_bytes / 100)  # once for the keys, once for the records

    run(test)


def test_a_log_that_cannot_be_opened_is_left_alone_and_the_others_are_not() -> None:
    async def test() -> None:
        house = House(COMPACTED)
        for key in (KEY, SECOND):
            for index in range(4):
                await house.put((b"k", b"%d" % index), key=key)
        place = keys.long_key(keys.partition_prefix(KEY), 0)
        stored = house.store.get(keys.LOG, place)
        assert stored is not None
        house.store.write([Write(keys.LOG, place, damage(stored, 61, ">B", 0xFF))])
        await during(house, 20)  # log.cleaner.backoff.ms is 15 s
        assert house.values(SECOND) == [b"2", b"3"]
        assert len(house.log().segments) == 4
        (report,) = house.reports
        assert "will no longer be compacted" in report and house.log().name in report

    run(test)


def test_a_log_with_a_damaged_batch_lets_the_others_be_compacted_and_is_tried_again() -> None:
    async def test() -> None:
        house = House(COMPACTED)
        for key, count in ((KEY, 6), (SECOND, 4)):  # the damaged one is the dirtiest
            for index in range(count):
                await house.put((b"k", b"%d" % index), key=key)
        place = keys.long_key(keys.partition_prefix(KEY), 0)
        stored = house.store.get(keys.LOG, place)
        assert stored is not None
        house.store.write([Write(keys.LOG, place, damage(stored, len(stored) - 1, ">B", 0xFF, fix_crc=False))])
        await during(house, 20)
        assert house.values(SECOND) == [b"2", b"3"]
        assert len(house.log().segments) == 6
        assert house.reports and all("could not be compacted" in report for report in house.reports)
        house.store.write([Write(keys.LOG, place, stored)])
        await during(house, 20)
        assert house.values(KEY) == [b"4", b"5"]

    run(test)


def test_a_disk_that_fails_is_tried_again() -> None:
    async def test() -> None:
        house = House({"retention.ms": "1000", "internal.segment.bytes": "100"})
        await house.put((b"k", b"old"), age_ms=2_000)
        await house.put((b"k", b"new"))
        house.disk.fail_next_writes(1)
        await house.housekeeping.retain_all(compacted=False)
        assert len(house.reports) == 1 and "No space left" in house.reports[0]
        assert house.values() == [b"old", b"new"]
        await house.housekeeping.retain_all(compacted=False)
        assert house.values() == [b"new"]

    run(test)


class ForgetfulClock(StillClock):
    """A clock that fails unexpectedly as often as a test says."""

    failures = 0

    def now_ms(self) -> int:
        if self.failures:
            self.failures -= 1
            raise KeyError("planted")
        return super().now_ms()


def test_retention_and_compaction_go_on_after_an_unexpected_failure() -> None:
    async def test() -> None:
        house = House({"retention.ms": "1000", "internal.segment.bytes": "100"})
        await house.put((b"k", b"old"), age_ms=2_000)
        await house.put((b"k", b"new"))
        clock = ForgetfulClock(house.clock.now_ms())
        house.housekeeping = LogHousekeeping(
            logs=house.logs,
            clock=clock,
            configs=Configs(
                BROKER.table, {"log.initial.task.delay.ms": "1000", "log.retention.check.interval.ms": "60000"}
            ),
        )
        clock.failures = 2  # of the first pass of each task
        await during(house, 1.5)
        assert clock.failures == 0 and house.values() == [b"old", b"new"]
        await during(house, 7.5)
        assert house.values() == [b"new"]

    loop = VirtualLoop()
    loop.run(test())
    assert [problem.split(": ")[1] for problem in loop.problems] == [
        "the compaction of logs failed unexpectedly and begins again in 5 s",
        "the retention of logs failed unexpectedly and begins again in 5 s",
    ]


def test_nothing_is_removed_while_the_lease_may_be_lost() -> None:
    async def test() -> None:
        house = House({"retention.ms": "1000"})
        await house.put((b"k", b"old"), age_ms=2_000)
        log = house.log()
        house.has_lease = False
        await house.housekeeping.retain_all(compacted=None)
        assert log.log_start_offset == 0
        house.has_lease = True
        await house.housekeeping.retain_all(compacted=None)
        assert log.log_start_offset == 1

    run(test)
