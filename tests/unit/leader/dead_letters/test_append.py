"""The receiver: dead letters are appended once, together with its memory of them, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from kshare_core.errors import ErrorCode
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_leader.dead_letters.appended import decode_row, row_key
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.dead_letters.limits import ROW_KEPT_MS
from kshare_leader.handlers.append_dead_letters import AppendDeadLettersHandler
from kshare_leader.log import keys
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import common_pb2, leader_pb2
from kshare_runtime.memory_store import MemoryDisk
from kshare_wire.record_reading import open_records
from support.leader.log.leader_logs import TOPIC, StillClock, open_logs, topic, view_of
from support.wire.record_building import build_batch

SOURCE_TOPIC = b"source-000000001"
GROUP = "group"
DESTINATION = TopicPartition(TOPIC, 1)
Run = tuple[int, int]


class Receiver:
    """A handler on logs in memory; `restart` begins anew on the same disk."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.clock = StillClock()
        self.keeps = False
        self.start()

    def restart(self) -> None:
        self.disk.crash()
        self.start()

    def start(self) -> None:
        self.store = self.disk.open_store("leader")
        self.logs = open_logs(self.store, clock=self.clock)
        self.handler = AppendDeadLettersHandler(self.logs, self.store, self.clock, keeps=lambda topic_id: self.keeps)

    async def append(
        self,
        *runs: Run,
        values: Sequence[bytes] | None = None,
        start_offset: int = 0,
        state_epoch: int = 1,
        partition: int = DESTINATION.partition,
        topic_id: bytes = TOPIC,
        group_id: str = GROUP,
    ) -> tuple[int, list[Run]]:
        """The error code, and the offsets that the answer names."""
        made = [str(offset).encode() for first, last in runs for offset in range(first, last + 1)]
        batch = build_batch(
            made if values is None else values, timestamps_ms=[self.clock.now_ms()] * len(values or made)
        )
        request = leader_pb2.AppendDeadLettersRequest(
            group_id=group_id,
            state_epoch=state_epoch,
            source_topic_id=SOURCE_TOPIC,
            source_partition=4,
            source_start_offset=start_offset,
            offsets=[common_pb2.OffsetRange(first_offset=first, last_offset=last) for first, last in runs],
            topic_id=topic_id,
            partition=partition,
        )
        answer = await self.handler(request, memoryview(batch))
        assert bool(answer.error_code) == bool(answer.error_message)
        return answer.error_code, [(run.first_offset, run.last_offset) for run in answer.appended]

    def values(self, partition: TopicPartition = DESTINATION) -> list[str]:
        log = self.logs.lookup(partition)
        batches = log.read(0, 1 << 30)
        return [(record.value or b"").decode() for batch in batches for record in open_records(batch.data)]

    def row_runs(self) -> tuple[OffsetRun, ...]:
        key = row_key(DESTINATION, SharePartitionKey(GROUP, SOURCE_TOPIC, 4))
        value = self.store.get(keys.DEAD_LETTERS, key)
        assert value is not None
        return decode_row(value).runs


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_dead_letters_are_appended_once_also_over_a_restart() -> None:
    async def scenario() -> None:
        receiver = Receiver()
        assert await receiver.append((5, 6), (9, 9)) == (0, [(5, 6), (9, 9)])
        assert await receiver.append((5, 6), (9, 9)) == (0, [(5, 6), (9, 9)])
        receiver.restart()
        assert await receiver.append((5, 6)) == (0, [(5, 6)])
        assert receiver.values() == ["5", "6", "9"]

    run(scenario())


@pytest.mark.parametrize(("source", "partition"), [(SOURCE_TOPIC, -1), (b"short", 4), (SOURCE_TOPIC, 4)])
def test_a_source_or_destination_that_is_none_is_refused(source: bytes, partition: int) -> None:
    """Such a source raised OverflowError, or made a row that is another source's."""

    async def scenario() -> None:
        receiver = Receiver()
        destination = -1 if (source, partition) == (SOURCE_TOPIC, 4) else DESTINATION.partition
        request = leader_pb2.AppendDeadLettersRequest(
            group_id=GROUP,
            state_epoch=1,
            source_topic_id=source,
            source_partition=partition,
            offsets=[common_pb2.OffsetRange(first_offset=1, last_offset=1)],
            topic_id=TOPIC,
            partition=destination,
        )
        answer = await receiver.handler(request, memoryview(build_batch([b"1"])))
        is_refused = answer.error_code in (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert is_refused, answer
        assert not list(receiver.store.scan(keys.DEAD_LETTERS, b""))

    run(scenario())


def test_a_batch_with_some_that_are_there_already_is_not_appended_and_the_answer_names_those() -> None:
    async def scenario() -> None:
        receiver = Receiver()
        await receiver.append((5, 7))
        assert await receiver.append((3, 9)) == (0, [(5, 7)])
        assert receiver.values() == ["5", "6", "7"]
        assert await receiver.append((3, 4), (8, 9)) == (0, [(3, 4), (8, 9)])
        assert receiver.values() == ["5", "6", "7", "3", "4", "8", "9"]
        assert receiver.row_runs() == (OffsetRun(3, 9),)

    run(scenario())


def test_requests_at_the_same_time_append_once() -> None:
    async def scenario() -> None:
        receiver = Receiver()
        answers = await asyncio.gather(*(receiver.append((5, 7)) for _ in range(5)))
        assert answers == [(0, [(5, 7)])] * 5
        assert receiver.values() == ["5", "6", "7"]

    run(scenario())


def test_what_lies_below_the_sources_start_offset_never_comes_again() -> None:
    async def scenario() -> None:
        receiver = Receiver()
        await receiver.append((5, 7))
        await receiver.append((20, 20), start_offset=15)
        assert receiver.row_runs() == (OffsetRun(20, 20),), "forgotten below the start offset"
        assert await receiver.append((5, 7), start_offset=5) == (0, [(5, 7)]), "a leader of the past"
        assert receiver.values() == ["5", "6", "7", "20"]

    run(scenario())


def test_sources_and_destinations_are_told_apart_and_state_epochs_fenced() -> None:
    async def scenario() -> None:
        receiver = Receiver()
        for group_id, partition in ((GROUP, 1), ("other", 1), (GROUP, 0)):
            assert await receiver.append((5, 5), group_id=group_id, partition=partition) == (0, [(5, 5)])
        assert receiver.values() == ["5", "5"]
        assert receiver.values(TopicPartition(TOPIC, 0)) == ["5"]
        assert await receiver.append((5, 5), state_epoch=2) == (0, [(5, 5)])
        assert receiver.values() == ["5", "5", "5"], "an administrator's new start makes a new history"
        assert (await receiver.append((6, 6), state_epoch=1))[0] == ErrorCode.FENCED_STATE_EPOCH

    run(scenario())


def test_a_failed_write_leaves_neither_the_records_nor_the_memory_of_them() -> None:
    async def scenario() -> None:
        receiver = Receiver()
        await receiver.append((1, 1))
        receiver.disk.fail_next_writes(1)
        assert (await receiver.append((5, 5)))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        receiver.restart()
        assert await receiver.append((5, 5)) == (0, [(5, 5)])
        assert receiver.values() == ["1", "5"]

    run(scenario())


@pytest.mark.parametrize(
    ("runs", "options", "code"),
    [
        (((5, 5),), {"topic_id": b"no-topic-0000001"}, ErrorCode.UNKNOWN_TOPIC_ID),
        (((5, 5),), {"partition": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((), {"values": [b"x"]}, ErrorCode.INVALID_REQUEST),
        (((5, 6),), {"values": [b"x"]}, ErrorCode.INVALID_REQUEST),
        (((5, 4),), {"values": [b"x"]}, ErrorCode.INVALID_REQUEST),
        (((5, 6), (6, 6)), {"values": [b"x"] * 3}, ErrorCode.INVALID_REQUEST),
        (((-1, 0),), {"values": [b"x"] * 2}, ErrorCode.INVALID_REQUEST),
        (((5, 5),), {"values": [bytes(2_000_000)]}, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_what_cannot_be_appended_changes_nothing(runs: tuple[Run, ...], options: dict[str, Any], code: int) -> None:
    async def scenario() -> None:
        receiver = Receiver()
        assert await receiver.append(*runs, **options) == (code, [])
        assert list(receiver.store.scan(keys.DEAD_LETTERS, b"")) == []
        assert receiver.values() == []

    run(scenario())


def test_rows_go_with_the_source_topic_and_long_after_the_group_lost_its_dead_letter_topic() -> None:
    async def scenario() -> None:
        receiver = Receiver()
        await receiver.append((5, 5))

        def rows_after(groups: dict[str, dict[str, str]], *topics: bytes) -> int:
            catalog = view_of(topic(), *(topic(topic_id) for topic_id in topics))
            changed = CatalogView(version=2, topics_by_id=catalog.topics_by_id, group_configs=groups)
            reports: list[str] = []
            receiver.handler.remove_unneeded(changed, reports.append)
            assert reports == []
            return len(list(receiver.store.scan(keys.DEAD_LETTERS, b"")))

        named = {GROUP: {"errors.deadletterqueue.topic.name": "dlq.x"}}
        assert rows_after({}, SOURCE_TOPIC) == 1
        receiver.clock.value_ms += ROW_KEPT_MS + 1
        assert rows_after(named, SOURCE_TOPIC) == 1
        assert rows_after({}, SOURCE_TOPIC) == 0
        await receiver.append((5, 5))
        assert rows_after(named) == 0, "the source topic is gone"

    run(scenario())


def test_a_catalog_that_does_not_tell_which_topics_were_deleted_removes_no_row() -> None:
    async def scenario() -> None:
        receiver = Receiver()
        await receiver.append((5, 5))
        reports: list[str] = []

        def rows_after(view: CatalogView) -> int:
            receiver.handler.remove_unneeded(view, reports.append)
            return len(list(receiver.store.scan(keys.DEAD_LETTERS, b"")))

        receiver.keeps = True  # an older catalog: the source is a stray topic, or it is not known whether it is
        assert rows_after(view_of(topic(), version=2)) == 1
        receiver.keeps = False
        another = view_of(topic(), version=2, cluster_id="another")
        receiver.logs.on_view(view_of(topic()), another)
        assert rows_after(another) == 1
        receiver.logs.on_view(another, view_of(topic(), version=3))
        assert rows_after(view_of(topic(), version=3)) == 0 and reports == []

    run(scenario())


def test_rows_go_with_the_dead_letter_topic() -> None:
    async def scenario() -> None:
        receiver = Receiver()
        await receiver.append((5, 5))
        receiver.logs.on_view(view_of(topic()), view_of(version=2))
        assert list(receiver.store.scan(keys.DEAD_LETTERS, b"")) == []

    run(scenario())
