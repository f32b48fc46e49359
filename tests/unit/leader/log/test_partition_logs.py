"""All logs of a node: group commit, changes of the catalog, the lease, and a disk that fails or lies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import TopicPartition
from kshare_leader.log import keys, partition_logs
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.partition_logs import LOGS_OPENED_IN_A_TURN, QUEUED_APPENDS_LIMIT, PartitionLogs
from kshare_leader.log.producers.pending_appends import Appended
from kshare_leader.log.tail import TailCache
from kshare_leader.log.topic_settings import TopicSettings
from kshare_runtime.memory_store import DiskEvents, MemoryDisk, MemoryStore
from kshare_runtime.ports import Write
from kshare_wire.record_batches import read_header
from support.leader.log.leader_logs import KEY, TOPIC, StillClock, open_logs, topic, view_of
from support.wire.record_building import build_batch, checked, damage

OTHER = b"topic-0000000002"


class CountingStore(MemoryStore):
    """Counts writes."""

    written: list[int]

    def begin_write(self, writes: Sequence[Write], done: Callable[[StorageFailure | None], None]) -> None:
        self.written.append(len(writes))
        super().begin_write(writes, done)


def store() -> MemoryStore:
    return MemoryDisk().open_store("leader")


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def refused(logs: PartitionLogs, records: bytes, key: TopicPartition = KEY) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await logs.append(key, memoryview(records))
    assert caught.value.message
    return caught.value.code


def test_thousands_of_logs_are_opened_in_many_turns_of_the_event_loop() -> None:
    count = 5 * LOGS_OPENED_IN_A_TURN

    async def test() -> None:
        logs = open_logs(store(), topic(leaders=[1] * count))
        last = TopicPartition(TOPIC, count - 1)
        opened = [len(logs.all_logs())]
        assert logs.lookup(last) is logs.lookup(last), "asked for before its turn, it is opened at once"
        while opened[-1] < count:
            await asyncio.sleep(0)
            opened.append(len(logs.all_logs()))
        steps = [after - before for before, after in zip([0, *opened], opened, strict=False)]
        assert max(steps) <= LOGS_OPENED_IN_A_TURN + 1, f"others wait while a turn opens {max(steps)} logs"
        assert (await logs.append(last, memoryview(build_batch([b"a"])))).base_offset == 0

    run(test())


def test_logs_that_are_not_led_any_more_are_not_opened_later() -> None:
    async def test() -> None:
        before = view_of(topic(leaders=[1] * (3 * LOGS_OPENED_IN_A_TURN)))
        logs = open_logs(store(), *before.topics_by_id.values())
        moved = view_of(topic(leaders=[1] + [2] * (3 * LOGS_OPENED_IN_A_TURN - 1)), version=2)
        logs.on_view(before, moved)
        for _ in range(5):
            await asyncio.sleep(0)
        assert [log.topic_partition for log in logs.all_logs()] == [KEY]
        with pytest.raises(KafkaError) as caught:
            logs.lookup(TopicPartition(TOPIC, 3 * LOGS_OPENED_IN_A_TURN - 1))
        assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(test())


def test_one_turn_is_one_write_and_listeners_see_what_is_durable() -> None:
    async def test() -> None:
        disk = store()
        disk.__class__ = CountingStore
        assert isinstance(disk, CountingStore)
        disk.written = []
        logs = open_logs(disk)
        disk.written.clear()
        log = logs.find(KEY)
        assert log is not None
        seen: list[int] = []
        log.add_listener(lambda: seen.append(log.high_watermark))
        remove = log.add_listener(lambda: seen.append(-1))
        remove()
        appends = [logs.append(TopicPartition(TOPIC, index % 2), memoryview(build_batch())) for index in range(20)]
        assert log.high_watermark == 0
        results = await asyncio.gather(*appends)
        assert [result.base_offset for result in results] == [index // 2 for index in range(20)]
        # 20 batches; for each of the two logs the mark from which offset on its batches were validated, and the row of
        # the leader epoch that its first batch was written in.
        assert (disk.written, seen) == ([24], [10])

    run(test())


def test_a_listener_that_raises_is_reported_and_the_others_are_woken() -> None:
    async def test() -> None:
        reports: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        logs = open_logs(store())
        log = logs.find(KEY)
        assert log is not None
        seen: list[int] = []
        log.add_listener(lambda: [][1])
        log.add_listener(lambda: seen.append(1))
        await logs.append(KEY, memoryview(build_batch()))
        assert seen == [1] and [type(report["exception"]) for report in reports] == [IndexError]

    run(test())


def test_failed_write_assigns_nothing_and_shows_until_one_succeeds() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        logs = open_logs(disk.open_store("leader"))
        disk.fail_next_writes(1, "No space left on device")
        batch = build_batch(producer_id=1, producer_epoch=0, base_sequence=0)
        assert await refused(logs, batch) == ErrorCode.KAFKA_STORAGE_ERROR
        assert "No space left on device" in logs.problems()[0]
        log = logs.find(KEY)
        assert log is not None and log.high_watermark == 0 and log.read(0, 1000) == []
        assert (await logs.append(KEY, memoryview(batch))).base_offset == 0
        assert logs.problems() == []

    run(test())


@pytest.mark.parametrize(
    ("configs", "records", "code"),
    [
        ({"max.message.bytes": "100"}, build_batch([b"x" * 100]), ErrorCode.MESSAGE_TOO_LARGE),
        ({}, build_batch([b"x" * 1_048_588]), ErrorCode.MESSAGE_TOO_LARGE),
        ({}, build_batch(timestamps_ms=[1_000_000 + 3_600_001]), ErrorCode.INVALID_TIMESTAMP),
        ({"message.timestamp.after.max.ms": "5"}, build_batch(timestamps_ms=[1_000_006]), ErrorCode.INVALID_TIMESTAMP),
        ({"message.timestamp.before.max.ms": "5"}, build_batch(timestamps_ms=[999_994]), ErrorCode.INVALID_TIMESTAMP),
        (
            {},
            build_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        ({}, damage(build_batch(), 70, "B", 0, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
        ({}, build_batch() + build_batch(), ErrorCode.INVALID_RECORD),
        ({}, b"", ErrorCode.INVALID_RECORD),
    ],
    ids=[
        "too large for the topic",
        "too large by default",
        "after the default",
        "after",
        "before",
        "transactional without an id",
        "damaged",
        "two batches",
        "nothing",
    ],
)
def test_what_a_topic_refuses(configs: Mapping[str, str], records: bytes, code: ErrorCode) -> None:
    async def test() -> None:
        logs = open_logs(store(), topic(configs=configs))
        assert await refused(logs, records) == code
        good = build_batch([b"v"], timestamps_ms=[1_000_000])
        assert (await logs.append(KEY, memoryview(good))).base_offset == 0

    run(test())


def test_timestamps_at_the_limits_and_without_time_are_taken() -> None:
    async def test() -> None:
        limits = {"message.timestamp.before.max.ms": "5", "message.timestamp.after.max.ms": "7"}
        logs = open_logs(store(), topic(configs=limits))
        for timestamps in ([999_995], [1_000_007]):
            await logs.append(KEY, memoryview(build_batch(timestamps_ms=timestamps)))
        no_time = damage(damage(build_batch(), 27, ">q", -1), 35, ">q", -1)
        assert (await logs.append(KEY, memoryview(no_time))).base_offset == 2

    run(test())


def test_log_append_time_replaces_the_producers_time() -> None:
    async def test() -> None:
        clock = StillClock(5_000_000)
        logs = open_logs(store(), topic(configs={"message.timestamp.type": "LogAppendTime"}), clock=clock)
        result = await logs.append(KEY, memoryview(build_batch([b"a", b"b"], timestamps_ms=[1, 1 << 60])))
        assert result == Appended(0, 5_000_000, 0)
        log = logs.find(KEY)
        assert log is not None
        assert await log.offset_for_timestamp(5_000_000) == await log.offset_of_max_timestamp() == (5_000_000, 0)
        assert await log.offset_for_timestamp(5_000_001) is None

    run(test())


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20], ids=["disk", "memory"])
def test_a_duplicate_is_answered_with_the_append_time_of_the_stored_batch(tail_bytes: int) -> None:
    """As in Kafka (UnifiedLog.append)."""

    async def test() -> None:
        clock = StillClock(5_000_000)
        configs = {"message.timestamp.type": "LogAppendTime"}
        tails = TailCache(partition_limit_bytes=tail_bytes)
        logs = open_logs(store(), topic(configs=configs), clock=clock, tails=tails)

        async def append(*sequences: int) -> list[tuple[int, int]]:
            """Batches of one turn: their offsets and times."""
            batches = [build_batch(producer_id=7, producer_epoch=0, base_sequence=sequence) for sequence in sequences]
            found = await asyncio.gather(*[logs.append(KEY, memoryview(batch)) for batch in batches])
            return [(result.base_offset, result.log_append_time_ms) for result in found]

        assert await append(0) == [(0, 5_000_000)]
        clock.value_ms += 10
        assert await append(1) == [(1, 5_000_010)]
        clock.value_ms += 10
        assert await append(0, 1, 2, 2) == [(0, 5_000_000), (1, 5_000_010), (2, 5_000_020), (2, 5_000_020)]
        clock.value_ms += 10
        logs.move_starts([(logs.lookup(KEY), 1)])
        assert await append(0, 1) == [(0, 5_000_030), (1, 5_000_010)], "the time of a deleted batch is not known"

    run(test())


def test_batches_carry_the_epoch_they_were_written_in() -> None:
    async def test() -> None:
        logs = open_logs(store())
        await logs.append(KEY, memoryview(build_batch()))
        logs.on_view(view_of(topic()), view_of(topic(leader_epoch=9), version=2))
        await logs.append(KEY, memoryview(build_batch()))
        log = logs.find(KEY)
        assert log is not None
        assert [read_header(batch.data).partition_leader_epoch for batch in log.read(0, 1000)] == [3, 9]
        assert [log.epoch_at(offset) for offset in (0, 1, 2)] == [3, 9, 9]

    run(test())


def test_requests_for_partitions_of_other_leaders_are_refused() -> None:
    async def test() -> None:
        lease = [True]
        logs = open_logs(store(), topic(leaders=(1, 2)), has_lease=lambda: lease[0])
        batch = build_batch()
        assert await refused(logs, batch, TopicPartition(OTHER, 0)) == ErrorCode.UNKNOWN_TOPIC_ID
        for number in (2, -1):
            assert await refused(logs, batch, TopicPartition(TOPIC, number)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await refused(logs, batch, TopicPartition(TOPIC, 1)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert logs.current_leader(TopicPartition(TOPIC, 1)) == (2, 3)
        assert logs.current_leader(TopicPartition(OTHER, 0)) == (-1, -1)
        lease[0] = False
        assert await refused(logs, batch) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert logs.find(KEY) is None
        lease[0] = True
        assert logs.find(KEY) is not None

    run(test())


def test_an_append_whose_write_outlasts_the_lease_is_not_confirmed() -> None:
    async def test() -> None:
        lease = iter([True, True, False, False])
        logs = open_logs(store(), has_lease=lambda: next(lease))
        assert await refused(logs, build_batch()) == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(test())


def test_a_full_queue_is_refused() -> None:
    async def test() -> None:
        logs = open_logs(store())
        batch = memoryview(build_batch())
        futures = [logs.append(KEY, batch) for _ in range(QUEUED_APPENDS_LIMIT)]
        assert await refused(logs, build_batch()) == ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.gather(*futures)
        assert (await logs.append(KEY, batch)).base_offset == QUEUED_APPENDS_LIMIT

    run(test())


def partition_keys(disk: MemoryStore) -> set[bytes]:
    return {key[:16] for family in keys.PARTITION_FAMILIES for key, _ in disk.scan(family, b"")}


async def fill(logs: PartitionLogs, *topic_ids: bytes) -> None:
    batch = build_batch(producer_id=1, producer_epoch=0, base_sequence=0)
    for topic_id in topic_ids:
        await logs.append(TopicPartition(topic_id, 0), memoryview(batch))


def test_a_deleted_topic_wakes_its_readers_and_leaves_nothing() -> None:
    async def test() -> None:
        disk = store()
        logs = open_logs(disk, topic(), topic(OTHER))
        await fill(logs, TOPIC, OTHER)
        log = logs.find(KEY)
        assert log is not None
        woken: list[bool] = []
        log.add_listener(lambda: woken.append(log.is_closed))
        logs.on_view(view_of(topic(), topic(OTHER)), view_of(topic(OTHER), version=2))
        assert woken == [True] and logs.find(KEY) is None
        assert partition_keys(disk) == {OTHER}
        assert await refused(logs, build_batch()) == ErrorCode.UNKNOWN_TOPIC_ID

    run(test())


def test_a_partition_that_moves_away_keeps_its_records_and_comes_back_with_them() -> None:
    async def test() -> None:
        here, away = view_of(topic()), view_of(topic(leaders=(2, 2), leader_epoch=4), version=2)
        logs = open_logs(store())
        await fill(logs, TOPIC)
        logs.on_view(here, away)
        assert logs.find(KEY) is None
        assert await refused(logs, build_batch()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        logs.on_view(away, view_of(topic(leader_epoch=5), version=3))
        log = logs.find(KEY)
        assert log is not None and log.high_watermark == 1 and log.leader_epoch == 5

    run(test())


def test_what_a_crash_left_of_a_deleted_topic_is_removed_at_the_next_start() -> None:
    async def test() -> None:
        disk = store()
        await fill(open_logs(disk, topic(), topic(OTHER)), TOPIC, OTHER)
        open_logs(disk, topic(OTHER))
        assert partition_keys(disk) == {OTHER}

    run(test())


@pytest.mark.parametrize("again", ["retry_and_expire", "store_mended"])
def test_a_removal_that_fails_is_a_problem_and_is_tried_again(again: str) -> None:
    async def test() -> None:
        disk = MemoryDisk()
        opened = disk.open_store("leader")
        logs = open_logs(opened, topic(), topic(OTHER))
        await fill(logs, TOPIC, OTHER)
        disk.fail_next_writes(1, "input/output error")
        logs.on_view(view_of(topic(), topic(OTHER)), view_of(topic(OTHER), version=2))
        assert "input/output error" in logs.problems()[0]
        if again == "store_mended":
            logs.store_mended()
        else:
            await logs.retry_and_expire()
        assert logs.problems() == [] and partition_keys(opened) == {OTHER}

    run(test())


def test_a_catalog_of_another_cluster_opens_and_removes_nothing() -> None:
    async def test() -> None:
        disk = store()
        logs = open_logs(disk)
        await fill(logs, TOPIC)
        logs.on_view(view_of(topic()), view_of(cluster_id="empty new one", version=2))
        assert "empty new one" in logs.problems()[0] and partition_keys(disk) == {TOPIC}
        assert logs.find(KEY) is None
        logs.on_view(view_of(topic()), view_of(topic(), version=3))
        log = logs.find(KEY)
        assert logs.problems() == [] and log is not None and log.high_watermark == 1

    run(test())


@pytest.mark.parametrize("is_older_store", [False, True])
def test_the_directory_of_another_leader_opens_and_removes_nothing(is_older_store: bool) -> None:
    async def test() -> None:
        disk = store()
        others, seen = topic(leaders=(2, 2)), (topic(leaders=(2, 2), leader_epoch=4), topic(OTHER))
        await fill(open_logs(disk, others, node_id=2), TOPIC)
        if is_older_store:
            disk.write([Write(keys.META, keys.NODE_ID_KEY, None)])
        logs = open_logs(disk, *seen)
        (problem,) = logs.problems()
        assert "belong to " in problem and "2" in problem and "but this is leader 1; nothing is served" in problem
        assert logs.is_foreign and partition_keys(disk) == {TOPIC} and logs.find(TopicPartition(OTHER, 0)) is None
        log = open_logs(disk, others, node_id=2).find(KEY)
        assert log is not None and log.high_watermark == 1

    run(test())


def test_a_store_of_an_older_version_takes_the_id_of_a_leader_that_leads_one_of_its_partitions() -> None:
    async def test() -> None:
        disk = store()
        await fill(open_logs(disk), TOPIC)
        disk.write([Write(keys.META, keys.NODE_ID_KEY, None)])
        assert open_logs(disk, topic(leaders=(1, 2))).problems() == []
        logs = open_logs(disk, topic(), node_id=2)
        assert "belong to leader 1, but this is leader 2" in logs.problems()[0]
        logs.on_view(view_of(topic()), view_of(version=2))
        assert partition_keys(disk) == {TOPIC}, "a topic that is gone is not this node's to remove"

    run(test())


@pytest.mark.parametrize(
    "lie",
    [
        lambda batch: damage(batch, 70, "B", batch[70] ^ 1, fix_crc=False),
        lambda batch: batch[:-1],
        lambda batch: damage(batch, 0, ">q", 99),
        lambda batch: b"",
    ],
)
def test_a_damaged_end_of_a_log_takes_that_partition_offline_and_no_other(lie: Any) -> None:
    async def test() -> None:
        disk = store()
        await fill(open_logs(disk), TOPIC)
        key = keys.long_key(keys.partition_prefix(KEY), 0)
        batch = disk.get(keys.LOG, key)
        assert batch is not None
        disk.write([Write(keys.LOG, key, lie(batch))])
        logs = open_logs(disk)
        assert await refused(logs, build_batch()) == ErrorCode.KAFKA_STORAGE_ERROR
        assert logs.find(KEY) is None and "offline" in logs.problems()[0]
        assert (await logs.append(TopicPartition(TOPIC, 1), memoryview(build_batch()))).base_offset == 0

    run(test())


@pytest.mark.parametrize("what", ["a log", "the cluster id"])
def test_what_could_not_be_read_once_is_served_when_it_can_be(what: str) -> None:
    """The catalog does not change meanwhile, so nothing else would bring the next attempt."""

    async def test() -> None:
        disk = MemoryDisk()
        logs = open_logs(disk.open_store("leader"))
        await fill(logs, TOPIC)
        logs.close()
        disk.crash()

        class Failing(DiskEvents):
            fails = True

            def value_read(self, family: str, key: bytes, value: bytes) -> bytes:
                if self.fails and family == (keys.LOG if what == "a log" else keys.META):
                    raise StorageFailure("Input/output error")
                return value

        disk.events = failing = Failing()
        reports: list[str] = []
        logs = open_logs(disk.open_store("leader"), report=reports.append)
        assert await refused(logs, build_batch()) in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert any("Input/output error" in problem for problem in logs.problems())
        found = list(reports)
        logs.retry_reads()
        assert reports == found, "the same problem is reported once"
        failing.fails = False
        logs.retry_reads()
        assert logs.problems() == []
        assert (await logs.append(KEY, memoryview(build_batch()))).base_offset == 1

    run(test())


def test_silent_producers_are_forgotten_for_good() -> None:
    async def test() -> None:
        disk, clock = store(), StillClock()
        logs = open_logs(disk, clock=clock)
        gap = memoryview(build_batch(producer_id=1, producer_epoch=0, base_sequence=50))
        await fill(logs, TOPIC)
        clock.value_ms += 86_400_000 - 1
        await logs.retry_and_expire()
        assert await refused(logs, bytes(gap)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        clock.value_ms += 1
        await logs.retry_and_expire()
        assert list(disk.scan(keys.PRODUCERS, b"")) == []
        gap_now = build_batch(producer_id=1, producer_epoch=0, base_sequence=50, timestamps_ms=[clock.value_ms])
        assert (await logs.append(KEY, memoryview(gap_now))).base_offset == 1

    run(test())


def test_silent_producers_of_many_partitions_are_removed_with_few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writes(DiskEvents):
        count = 0

        def write_begins(self) -> None:
            self.count += 1

    async def test() -> None:
        disk, clock = MemoryDisk(), StillClock()
        opened = disk.open_store("leader")
        logs = open_logs(opened, topic(leaders=[1] * 10), clock=clock)
        batches = [build_batch(producer_id=number, producer_epoch=0, base_sequence=0) for number in range(3)]
        for log in logs.all_logs():
            for batch in batches:
                await logs.append(log.topic_partition, memoryview(batch))
        clock.value_ms += 86_400_000
        disk.fail_next_writes(1)
        await logs.retry_and_expire()
        assert len(list(opened.scan(keys.PRODUCERS, b""))) == 30
        assert all(len(list(log.producers.items())) == 3 for log in logs.all_logs()), "nothing was removed"
        disk.events = writes = Writes()
        monkeypatch.setattr(partition_logs, "EXPIRED_IN_A_WRITE", 8)
        expiry = asyncio.create_task(logs.retry_and_expire())
        await asyncio.sleep(0)
        assert writes.count == 1 and len(list(opened.scan(keys.PRODUCERS, b""))) == 22, "others have their turn now"
        last = TopicPartition(TOPIC, 9)
        await logs.append(last, memoryview(build_batch(producer_id=7, producer_epoch=0, base_sequence=0)))
        await expiry
        left = [(key[:20], keys.number_of(key)) for key, _ in opened.scan(keys.PRODUCERS, b"")]
        assert left == [(keys.partition_prefix(last), 7)], "a producer that appended meanwhile stays"
        assert writes.count == 5, "four of up to 8 producers, and the append"
        assert all(not list(log.producers.items()) for log in logs.all_logs()[:-1])

    run(test())


def test_producers_of_a_partition_have_a_limit() -> None:
    disk, now_ms = store(), 10_000
    log = PartitionLog(
        key=KEY, store=disk, tails=TailCache(), settings=TopicSettings(), leader_epoch=0, producers_limit=2
    )

    def append(producer_id: int, at_ms: int) -> int:
        batch = build_batch(producer_id=producer_id, producer_epoch=0, base_sequence=0)
        pending = log.begin(at_ms)
        result = log.prepare(checked(batch, log.settings, at_ms), at_ms, pending)
        disk.write(list(log.writes(pending)))
        log.commit(pending)
        return result.base_offset

    assert [append(1, now_ms), append(2, now_ms + 1)] == [0, 1]
    with pytest.raises(KafkaError) as caught:
        append(3, now_ms + 2)
    assert caught.value.code == ErrorCode.POLICY_VIOLATION
    assert append(2, now_ms + 2) == 1, "a duplicate needs no room"
    assert append(3, now_ms + 3 * 60_000) == 2, "a producer was silent for longer than two minutes"
    stored = [keys.number_of(key) for key, _ in disk.scan(keys.PRODUCERS, b"")]
    assert stored == [2, 3]


def test_closing_answers_what_still_waits() -> None:
    async def test() -> None:
        logs = open_logs(store())
        waiting = logs.append(KEY, memoryview(build_batch()))
        logs.close()
        with pytest.raises(KafkaError) as caught:
            await waiting
        assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(test())
