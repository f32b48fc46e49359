"""The sender, with a scripted leader and coordinator: the consequence of each response."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.errors import ErrorCode, KafkaError, StorageFailure
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_core.states import RecordState
from kshare_leader.dead_letters.leader_target import LeaderTarget
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.dead_letters.limits import (
    CHECK_INTERVAL_MS,
    FORGET_AFTER_MS,
    READ_ATTEMPTS,
    ROUNDS_LIMIT,
    STALLED_AFTER_MS,
)
from kshare_leader.dead_letters.port import DeadLetterSettings
from kshare_leader.dead_letters.service import DeadLetters
from kshare_leader.dead_letters.unfinished import UnfinishedDeadLetters
from kshare_leader.machine.share_partition import ArchivingRun, SharePartition
from kshare_leader.machine.state_write import StateBatch
from kshare_leader.ports import StoredBatch, TopicLog
from kshare_leader.share.start_offset import NOT_TRUNCATED
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import common_pb2, coordinator_pb2, leader_pb2
from kshare_rpc.generated.methods import APPEND_DEAD_LETTERS, CREATE_TOPICS
from kshare_rpc.network import ChannelUnavailable, Method, Payload, Request, Response
from kshare_runtime.memory_store import DiskEvents, MemoryDisk
from support.leader.log.leader_logs import StillClock, topic, view_of
from support.leader.share.group_limits import group_limits
from support.leader.share.service import run

SOURCE, LETTERS = b"orders-000000001", b"dlq.letters-0001"
LEADER = coordinator_pb2.Node(role=coordinator_pb2.ROLE_LEADER, node_id=1, rpc_address="leader:1")
ENABLED = {"errors.deadletterqueue.group.enable": "true"}
AUTO_CREATE = {"errors.deadletterqueue.auto.create.topics.enable": "true"}


class HeldPartition:
    """Records 0-9 of a share-partition are Archiving; what is done is stored at once."""

    state_epoch = 4
    no_dead_letters_before_ms = 0
    is_at_rest = False

    truncation = NOT_TRUNCATED

    def __init__(self, letters: DeadLetters, partition: int = 0) -> None:
        self.key = SharePartitionKey("g", SOURCE, partition)
        self.machine = SharePartition(start_offset=0, state_batches=[StateBatch(0, 9, RecordState.ARCHIVING, 1)])
        self.error: KafkaError | None = None
        self.replaced: bool | KafkaError | None = True
        """Whether the stored state is another one, or the error of its read; None: the read does not end."""
        self.dead_letter_settings = DeadLetterSettings(LETTERS.decode(), False)
        self._letters = letters

    @property
    def log(self) -> TopicLog:
        raise AssertionError("nothing is copied")

    @property
    def start_offset(self) -> int:
        return self.machine.start_offset

    def archiving(self, limit: int) -> list[ArchivingRun]:
        return self.machine.archiving(limit, group_limits(delivery_count_limit=5))

    def dead_letters_done(self, runs: Sequence[OffsetRun], *, stored_in: str = "") -> None:
        for first, last in runs:
            self.machine.dead_letters_done(first, last)
        write = self.machine.next_write()
        assert write is not None
        self.machine.write_succeeded(write.write_id)

    async def is_state_replaced(self) -> bool:
        if isinstance(self.replaced, KafkaError):
            raise self.replaced
        if self.replaced is None:
            await asyncio.Event().wait()
        return self.replaced is True

    def drop(self, error: KafkaError) -> None:
        self.error = error
        self._letters.dropped(self, was_at_rest=False)

    def unload_if_unused(self) -> None:
        raise AssertionError("it is not at rest")


class IdlePartition(HeldPartition):
    """Its records are all archived, and a fetch waits for more unless `is_unused`."""

    is_at_rest = True
    is_unused = False

    def unload_if_unused(self) -> None:
        if self.is_unused:
            self.error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is unloaded")
            self._letters.dropped(self, was_at_rest=True)


class Writes(DiskEvents):
    """Counts writes."""

    def __init__(self) -> None:
        self.count = 0

    def write_begins(self) -> None:
        self.count += 1


class Cluster:
    """A DeadLetters, and the answers that it gets: an error code, source offsets, or an exception."""

    def __init__(self, *, configs: dict[str, str] | None = None, letters_configs: dict[str, str] | None = None) -> None:
        letters = topic(LETTERS, leaders=(1,), configs=ENABLED if letters_configs is None else letters_configs)
        self.view = CatalogView(
            version=1,
            topics_by_id=(made := view_of(letters, topic(SOURCE))).topics_by_id,
            topics_by_name=made.topics_by_name,
            nodes=(LEADER,),
        )
        self.answers: list[int | list[OffsetRun] | Exception] = []
        self.creations: list[int] = []
        self.requests: list[leader_pb2.AppendDeadLettersRequest] = []
        self.created: list[coordinator_pb2.CreateTopicsRequest] = []
        self.reports: list[str] = []
        self.at_once = self.most_at_once = 0
        self.gate: asyncio.Event | None = None
        self.disk = MemoryDisk()
        self.store = self.disk.open_store("leader")
        self.unfinished = UnfinishedDeadLetters(self.store)
        self.letters = DeadLetters(
            unfinished=self.unfinished,
            target=LeaderTarget(
                view=lambda: self.view,
                channel=lambda address: self,
                coordinator=lambda: self,
                wait_for_version=self._wait_for_version,
                configs=Configs(PROCESS_CONFIGS, configs or {}),
                report=self.reports.append,
            ),
            view=lambda: self.view,
            clock=StillClock(),
            random=random.Random(1),
            report=self.reports.append,
        )

    async def _wait_for_version(self, version: int, timeout_ms: int) -> bool:
        await asyncio.sleep(0.01)
        return self.view.version >= version

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.001)
        if self.gate is not None:
            await self.gate.wait()
        self.at_once -= 1
        if method is CREATE_TOPICS:
            answer: Any = self._create(cast(coordinator_pb2.CreateTopicsRequest, request))
        else:
            assert method is APPEND_DEAD_LETTERS
            answer = self._append(cast(leader_pb2.AppendDeadLettersRequest, request))
        return cast(Response, answer), memoryview(b"")

    async def close(self) -> None:
        pass

    def _create(self, request: coordinator_pb2.CreateTopicsRequest) -> coordinator_pb2.CreateTopicsResponse:
        self.created.append(request)
        code = self.creations.pop(0)
        answer = coordinator_pb2.CreateTopicsResponse(version=self.view.version)
        answer.topics.add(name=request.topics[0].name, error_code=code, error_message="no" if code else "")
        return answer

    def _append(self, request: leader_pb2.AppendDeadLettersRequest) -> leader_pb2.AppendDeadLettersResponse:
        self.requests.append(request)
        answer = (
            self.answers.pop(0) if self.answers else [OffsetRun(r.first_offset, r.last_offset) for r in request.offsets]
        )
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return leader_pb2.AppendDeadLettersResponse(error_code=answer, error_message="no")
        ranges = [common_pb2.OffsetRange(first_offset=first, last_offset=last) for first, last in answer]
        return leader_pb2.AppendDeadLettersResponse(appended=ranges)

    def asked(self) -> list[list[tuple[int, int]]]:
        return [[(run.first_offset, run.last_offset) for run in request.offsets] for request in self.requests]


class FailingLog:
    """A log that cannot be read so many times; then it has no records."""

    topic_partition = TopicPartition(SOURCE, 0)

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def read(self, fetch_offset: int, max_bytes: int) -> list[StoredBatch]:
        if self.failures:
            self.failures -= 1
            raise StorageFailure("a wrong bit")
        return []


class CopiedPartition(HeldPartition):
    """Its records are copied from a log."""

    def __init__(self, letters: DeadLetters, log: FailingLog) -> None:
        super().__init__(letters)
        self.dead_letter_settings = DeadLetterSettings(LETTERS.decode(), True)
        self._log = log

    @property
    def log(self) -> TopicLog:
        return cast(TopicLog, self._log)


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(test)


def test_only_what_the_answer_names_is_done_and_the_rest_is_sent_again() -> None:
    async def test() -> None:
        cluster = Cluster()
        held = HeldPartition(cluster.letters)
        cluster.answers = [[OffsetRun(3, 5)]]
        cluster.letters.wake(held)
        await asyncio.sleep(1)
        assert cluster.asked() == [[(0, 9)], [(0, 2), (6, 9)]]
        assert held.start_offset == 10
        request = cluster.requests[1]
        assert (request.group_id, request.state_epoch, request.source_start_offset) == ("g", 4, 0)
        assert (request.topic_id, request.partition, request.source_topic_id) == (LETTERS, 0, SOURCE)
        assert cluster.reports == [] == cluster.letters.problems()

    scenario(test)


def test_what_fails_is_tried_again_and_reported_once_for_each_reason() -> None:
    async def test() -> None:
        cluster = Cluster()
        held = HeldPartition(cluster.letters)
        cluster.answers = [
            ChannelUnavailable("gone"),
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.MESSAGE_TOO_LARGE,
            [],
        ]
        cluster.letters.wake(held)
        await asyncio.sleep(STALLED_AFTER_MS / 1000 + 1)
        assert held.start_offset == 0
        assert len(cluster.letters.problems()) == 1 and "answered 10" in cluster.letters.problems()[0]
        await asyncio.sleep(60)
        assert held.start_offset == 10 and len(cluster.requests) == 6
        assert len(cluster.reports) == 4, "the second failure of the disk is the same reason"
        assert cluster.letters.problems() == []

    scenario(test)


@pytest.mark.parametrize("replaced", [True, KafkaError(ErrorCode.CORRUPT_MESSAGE, "a wrong bit")])
def test_a_share_partition_of_an_older_state_epoch_is_dropped(replaced: bool | KafkaError) -> None:
    async def test() -> None:
        cluster = Cluster()
        held = HeldPartition(cluster.letters)
        held.replaced = replaced
        cluster.answers = [ErrorCode.FENCED_STATE_EPOCH]
        cluster.letters.wake(held)
        await asyncio.sleep(60)
        assert held.error is not None and held.error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert len(cluster.requests) == 1

    scenario(test)


def test_fenced_letters_of_a_state_that_cannot_be_read_are_tried_again() -> None:
    async def test() -> None:
        cluster = Cluster()
        held = HeldPartition(cluster.letters)
        held.replaced = None
        cluster.answers = [ErrorCode.FENCED_STATE_EPOCH] * 2
        cluster.letters.wake(held)
        await asyncio.sleep(60)
        assert held.error is None and held.start_offset == 10
        assert [text for text in cluster.reports if "its state cannot be read" in text] == cluster.reports != []

    scenario(test)


def test_a_topic_that_cannot_be_created_is_tried_again() -> None:
    async def test() -> None:
        cluster = Cluster(configs=AUTO_CREATE)
        complete, cluster.view = cluster.view, CatalogView(version=1, nodes=(LEADER,))
        held = HeldPartition(cluster.letters)
        cluster.creations = [ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
        cluster.letters.wake(held)
        await asyncio.sleep(0.5)
        assert len(cluster.created) == 1 and "cannot be created: no" in cluster.reports[0]
        (wanted,) = cluster.created[0].topics
        assert (wanted.name, wanted.num_partitions, wanted.replication_factor) == (LETTERS.decode(), -1, -1)
        pinned = {"message.timestamp.type": "CreateTime"}
        assert {entry.name: entry.value for entry in wanted.configs} == {**ENABLED, **pinned}
        cluster.creations = [ErrorCode.TOPIC_ALREADY_EXISTS]
        cluster.view = complete
        await asyncio.sleep(2)
        assert held.start_offset == 10

    scenario(test)


def test_letters_of_which_not_even_the_place_fits_are_given_up_with_a_warning() -> None:
    async def test() -> None:
        cluster = Cluster(letters_configs={**ENABLED, "max.message.bytes": "100"})
        held = HeldPartition(cluster.letters)
        cluster.letters.wake(held)
        await asyncio.sleep(1)
        assert (held.start_offset, cluster.requests) == (10, [])
        assert cluster.reports == [
            f"records 0-9 of {held.key} are archived without dead letters: "
            "max.message.bytes 100 of the dead-letter topic is too small"
        ]

    scenario(test)


def test_so_many_rounds_are_under_way_at_once_and_no_more() -> None:
    async def test() -> None:
        cluster = Cluster()
        cluster.gate = asyncio.Event()
        held = [HeldPartition(cluster.letters, partition) for partition in range(3 * ROUNDS_LIMIT)]
        for partition in held:
            cluster.letters.wake(partition)
            cluster.letters.wake(partition)
        await asyncio.sleep(1)
        assert cluster.at_once == ROUNDS_LIMIT
        cluster.gate.set()
        await asyncio.sleep(1)
        assert cluster.most_at_once == ROUNDS_LIMIT
        assert [partition.start_offset for partition in held] == [10] * len(held)
        assert len(cluster.requests) == len(held)

    scenario(test)


def test_archiving_records_that_a_full_disk_cannot_note_are_reported_and_noted_later() -> None:
    async def test() -> None:
        cluster = Cluster()
        loaded: list[SharePartitionKey] = []

        def load(key: SharePartitionKey) -> HeldPartition:
            loaded.append(key)
            return HeldPartition(cluster.letters, key.partition)

        cluster.letters.attach(find=lambda key: None, load=load)
        found = [SharePartitionKey("g", SOURCE, number) for number in range(3)]
        cluster.disk.fail_next_writes(4)
        for key in [*found, found[0]]:
            cluster.letters.found_archiving(key)
        await asyncio.sleep(5)
        assert loaded == [] and len(cluster.reports) == 1 and "No space left" in cluster.reports[0]
        for key in found:
            cluster.letters.found_archiving(key)
        await asyncio.sleep(0.5)
        assert loaded == found
        cluster.disk.fail_next_writes(1)
        cluster.letters.found_archiving(SharePartitionKey("g", SOURCE, 3))
        assert len(cluster.reports) == 2
        await cluster.letters.stop()

    scenario(test)


def test_nothing_is_sent_after_the_end() -> None:
    async def test() -> None:
        cluster = Cluster()
        cluster.gate = asyncio.Event()
        held = HeldPartition(cluster.letters)
        cluster.letters.wake(held)
        await asyncio.sleep(1)
        await cluster.letters.stop()
        cluster.gate.set()
        cluster.letters.wake(held)
        await asyncio.sleep(60)
        assert (cluster.requests, held.start_offset) == ([], 0)

    scenario(test)


def test_a_read_that_fails_is_repeated_before_a_dead_letter_goes_without_its_record() -> None:
    async def test() -> None:
        cluster = Cluster()
        log = FailingLog(failures=11)  # 10 offsets in the first round, one in the second
        held = CopiedPartition(cluster.letters, log)
        cluster.letters.wake(held)
        await asyncio.sleep(0.5)
        assert cluster.asked() == [] and held.start_offset == 0
        await asyncio.sleep(10)
        assert cluster.asked() == [[(0, 9)]] and held.start_offset == 10
        assert any("the records cannot be read: a wrong bit" in text for text in cluster.reports)

    scenario(test)


def test_changes_of_the_catalog_do_not_put_off_letters_of_unreadable_records() -> None:
    async def test() -> None:
        cluster = Cluster()
        log = FailingLog(failures=1_000_000)
        held = CopiedPartition(cluster.letters, log)
        cluster.letters.wake(held)
        for _ in range(12):
            await asyncio.sleep(5)
            cluster.letters.on_view(cluster.view, cluster.view)
        assert cluster.asked() == [[(0, 9)]] and held.start_offset == 10

    scenario(test)


def test_dead_letters_go_without_records_that_stay_unreadable() -> None:
    async def test() -> None:
        cluster = Cluster()
        log = FailingLog(failures=1_000_000)
        held = CopiedPartition(cluster.letters, log)
        cluster.letters.wake(held)
        await asyncio.sleep(60)
        assert cluster.asked() == [[(0, 9)]] and held.start_offset == 10
        assert 1_000_000 - log.failures == READ_ATTEMPTS * 10

    scenario(test)


@pytest.mark.parametrize("are_unused", [False, True], ids=["idle for long", "unloaded"])
def test_many_idle_share_partitions_are_forgotten_with_one_write(are_unused: bool) -> None:
    async def main() -> None:
        cluster = Cluster()
        letters = cluster.letters
        served = {(idle := IdlePartition(letters, number)).key: idle for number in range(100)}
        letters.attach(find=lambda key: None if served[key].error else served[key], load=lambda key: served[key])
        for key in served:
            letters.before_archiving(key)
        cluster.disk.events = writes = Writes()
        await asyncio.sleep(FORGET_AFTER_MS / 2000)
        assert len(cluster.unfinished) == 100 and writes.count == 0
        IdlePartition.is_unused = are_unused
        await asyncio.sleep((2 * CHECK_INTERVAL_MS + (0 if are_unused else FORGET_AFTER_MS)) / 1000)
        assert len(cluster.unfinished) == 0 and writes.count == 1
        assert UnfinishedDeadLetters(cluster.store).share_partitions() == []
        await letters.stop()

    try:
        run(main)
    finally:
        IdlePartition.is_unused = False


def test_a_share_partition_that_archives_again_before_it_is_forgotten_stays_unfinished() -> None:
    async def main() -> None:
        cluster = Cluster()
        letters = cluster.letters
        idle, other = IdlePartition(letters), IdlePartition(letters, 1)
        for partition in (idle, other):
            letters.before_archiving(partition.key)
            letters.dropped(partition, was_at_rest=True)
        letters.before_archiving(idle.key)
        await asyncio.sleep(0)
        assert cluster.unfinished.share_partitions() == [idle.key]
        cluster.disk.fail_next_writes(1)
        letters.dropped(idle, was_at_rest=True)
        await asyncio.sleep(0)
        assert cluster.unfinished.share_partitions() == [idle.key]
        assert [report for report in cluster.reports if "still count as having dead letters" in report]
        await letters.stop()

    run(main)
