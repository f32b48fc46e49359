"""Dead letters in an existing cluster, with a leader that stops at each of its requests in turn: each exactly once.

The leader stops before the request reaches the cluster, or after it took effect and before its answer; or it stands
still there until the next leader has finished, and goes on. Nothing that it had archived is stored, so the next leader
begins with all records Archiving, and has only the notes in the cluster.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from typing import TypeVar

import pytest

from kshare_core.configs import Configs
from kshare_core.configs.process import PROCESS_CONFIGS
from kshare_core.errors import ErrorCode, KafkaError
from kshare_core.identifiers import SharePartitionKey
from kshare_core.states import RecordState
from kshare_leader.dead_letters.appended import AppendedOffsets
from kshare_leader.dead_letters.cluster_target import ClusterTarget
from kshare_leader.dead_letters.letters import OffsetRun
from kshare_leader.dead_letters.notes import Notes
from kshare_leader.dead_letters.port import DeadLetterSettings
from kshare_leader.dead_letters.service import DeadLetters
from kshare_leader.dead_letters.unfinished import RememberedDeadLetters
from kshare_leader.machine.share_partition import ArchivingRun, SharePartition
from kshare_leader.machine.state_write import StateBatch
from kshare_leader.ports import TopicLog
from kshare_leader.share.start_offset import NOT_TRUNCATED
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2
from kshare_rpc.network import Channel
from kshare_upstream.committed_records import read_committed_records
from kshare_upstream.partition_log import PartitionLog
from kshare_upstream.port import REQUESTS, AResponse, ClusterView, Upstream, UpstreamPartitionName
from kshare_upstream.topics import create_topic
from kshare_wire.api_versions import VersionRange
from kshare_wire.messages import Request
from kshare_wire.record_writing import BatchWriter
from support.leader.log.leader_logs import StillClock
from support.leader.share.group_limits import group_limits
from support.simulation.loop import VirtualLoop
from support.simulation.upstream.brokers import simulated_cluster

RECORDS = 10
SOURCE, LETTERS = UpstreamPartitionName("orders", 0), UpstreamPartitionName("dlq.orders", 0)
LIMIT_BYTES = 700
"""max.message.bytes of the dead-letter topic: three letters in a batch, so a leader has several rounds."""

Answer = TypeVar("Answer")


class Stop(Enum):
    """What happens at the request where the leader stops."""

    BEFORE = auto()
    AFTER = auto()
    STANDS_STILL = auto()


class StoppingUpstream:
    """A leader's way to the cluster, which stops at the request `at`."""

    def __init__(self, upstream: Upstream, at: int, stop: Stop) -> None:
        self._upstream = upstream
        self._at = at
        self._stop = stop
        self.requests = 0
        self.stopped = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def _ask(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        self.requests += 1
        if self.stopped.is_set() or self.requests == self._at:
            if self._stop is Stop.AFTER and not self.stopped.is_set():
                await ask()
            self.stopped.set()
            await self.goes_on.wait()
        return await ask()

    async def describe(self, topics: Sequence[str] | None) -> ClusterView:
        return await self._ask(lambda: self._upstream.describe(topics))

    async def versions(self) -> Mapping[int, VersionRange]:
        return await self._upstream.versions()

    async def ask_any(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        return await self._ask(lambda: self._upstream.ask_any(request, served))

    async def ask_controller(self, request: Request[AResponse], served: VersionRange) -> AResponse:
        return await self._ask(lambda: self._upstream.ask_controller(request, served))

    async def ask_broker(
        self,
        node_id: int,
        request: Request[AResponse],
        served: VersionRange,
        *,
        wait_ms: int = 0,
        purpose: str = REQUESTS,
    ) -> AResponse:
        def ask() -> Awaitable[AResponse]:
            return self._upstream.ask_broker(node_id, request, served, wait_ms=wait_ms, purpose=purpose)

        return await self._ask(ask)

    async def leader_of(self, at: UpstreamPartitionName) -> int:
        return await self._upstream.leader_of(at)

    def forget_leader(self, at: UpstreamPartitionName) -> None:
        self._upstream.forget_leader(at)


class HeldPartition:
    """A share-partition whose records are all Archiving; what is done is stored at once, and never by another."""

    no_dead_letters_before_ms = 0
    is_at_rest = False
    truncation = NOT_TRUNCATED

    def __init__(self, key: SharePartitionKey, letters: DeadLetters, state_epoch: int = 4) -> None:
        self.key = key
        self.state_epoch = state_epoch
        batches = [StateBatch(0, RECORDS - 1, RecordState.ARCHIVING, 1)]
        self.machine = SharePartition(start_offset=0, state_batches=batches)
        self.error: KafkaError | None = None
        self.dead_letter_settings = DeadLetterSettings(LETTERS.topic, True)
        self._letters = letters

    @property
    def log(self) -> TopicLog:
        raise AssertionError("records are fetched from the cluster")

    @property
    def start_offset(self) -> int:
        return self.machine.start_offset

    async def is_state_replaced(self) -> bool:
        """Only a leader with a newer state fences this one."""
        return True

    def archiving(self, limit: int) -> list[ArchivingRun]:
        return self.machine.archiving(limit, group_limits(delivery_count_limit=5))

    def dead_letters_done(self, runs: Sequence[OffsetRun], *, stored_in: str = "") -> None:
        assert stored_in == LETTERS.topic, "a dead letter was given up"
        for first, last in runs:
            self.machine.dead_letters_done(first, last)
        write = self.machine.next_write()
        assert write is not None
        self.machine.write_succeeded(write.write_id)

    def drop(self, error: KafkaError) -> None:
        self.error = error
        self._letters.dropped(self, was_at_rest=False)

    def unload_if_unused(self) -> None:
        raise AssertionError("it is not at rest")


class Leader:
    """The dead letters of one leader."""

    def __init__(
        self, upstream: Upstream, source_id: bytes, *, state_epoch: int = 4, id_in_cluster: bytes = b""
    ) -> None:
        self.reports: list[str] = []
        topics = [coordinator_pb2.Topic(topic_id=source_id, name=SOURCE.topic, upstream_topic_id=id_in_cluster)]
        topics.append(coordinator_pb2.Topic(topic_id=b"of-dead-letters-", name=LETTERS.topic))
        for each in topics:
            each.partitions.add(partition=0, leader_node_id=1)
        view = CatalogView(
            version=1,
            topics_by_id={topic.topic_id: topic for topic in topics},
            topics_by_name={topic.name: topic for topic in topics},
        )

        def no_coordinator() -> Channel:
            raise AssertionError("no topic is created")

        async def wait_for_version(version: int, timeout_ms: int) -> bool:
            return True

        target = ClusterTarget(
            upstream=upstream,
            view=lambda: view,
            coordinator=no_coordinator,
            wait_for_version=wait_for_version,
            configs=Configs(PROCESS_CONFIGS, {"kshare.engine": "kafka"}),
            clock=StillClock(),
            report=self.reports.append,
        )
        self.letters = DeadLetters(
            unfinished=RememberedDeadLetters(1),
            target=target,
            view=lambda: view,
            clock=StillClock(),
            random=random.Random(1),
            report=self.reports.append,
        )
        self.held = HeldPartition(SharePartitionKey("group", source_id, 0), self.letters, state_epoch)

    async def finish(self) -> None:
        self.letters.wake(self.held)
        async with asyncio.timeout(300):
            while self.held.start_offset < RECORDS:
                await asyncio.sleep(0.1)


async def prepared(upstream: Upstream) -> bytes:
    """Makes the topics with the source's records; returns the source's topic id."""
    await create_topic(upstream, SOURCE.topic, partitions=1, replicas=1, configs={})
    configs = {"max.message.bytes": str(LIMIT_BYTES)}
    await create_topic(upstream, LETTERS.topic, partitions=1, replicas=1, configs=configs)
    for first in range(0, RECORDS, 2):
        writer = BatchWriter(1 << 20)
        for number in (first, first + 1):
            writer.append(1_000, b"key", b"value %d" % number, ())
        await PartitionLog(upstream, SOURCE).append(writer.build())
    return (await upstream.describe([SOURCE.topic])).topics[SOURCE.topic].topic_id


async def stored(upstream: Upstream) -> list[tuple[int, bytes | None]]:
    """The source offset and the value of each committed dead letter, in their order."""
    found = await read_committed_records(PartitionLog(upstream, LETTERS), lambda record: True)
    return [(int(dict(record.headers)["__dlq.errors.offset"] or b""), record.value) for record in found]


EXPECTED = [(number, b"value %d" % number) for number in range(RECORDS)]


def scenario(body: Callable[[Upstream, bytes], Awaitable[Answer]]) -> Answer:
    async def whole() -> Answer:
        async with simulated_cluster(1) as (upstream, _):
            return await body(upstream, await prepared(upstream))

    return VirtualLoop(time_limit=3600.0).run(whole())


def stop_at(at: int, stop: Stop) -> bool:
    """A leader that stops at its request `at`, and the next one; returns whether the first one had that request."""

    async def body(upstream: Upstream, source_id: bytes) -> bool:
        way = StoppingUpstream(upstream, at, stop)
        first = Leader(way, source_id)
        task = asyncio.ensure_future(first.finish())
        stopped = asyncio.ensure_future(way.stopped.wait())
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        if stop is not Stop.STANDS_STILL:
            task.cancel()
            await first.letters.stop()
        second = Leader(upstream, source_id)
        await second.finish()
        way.goes_on.set()
        if stop is Stop.STANDS_STILL:
            await task  # fenced, it reads the note, and has nothing left to send
            await first.letters.stop()
        await second.letters.stop()
        assert await stored(upstream) == EXPECTED, f"stopped at request {at}"
        return way.stopped.is_set()

    return scenario(body)


@pytest.mark.parametrize("stop", Stop)
def test_a_leader_that_stops_at_any_request_leaves_each_letter_once(stop: Stop) -> None:
    at = 1
    while stop_at(at, stop):
        at += 1
    assert at > 20, "a leader makes more requests than that"


def test_another_state_epoch_begins_anew_and_the_older_one_is_dropped() -> None:
    async def body(upstream: Upstream, source_id: bytes) -> None:
        await Leader(upstream, source_id, state_epoch=5).finish()
        await Leader(upstream, source_id, state_epoch=6).finish()
        older = Leader(upstream, source_id, state_epoch=5)
        older.letters.wake(older.held)
        await asyncio.sleep(30)
        assert older.held.error is not None and older.held.error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await stored(upstream) == EXPECTED * 2

    scenario(body)


def test_a_share_partition_that_is_dropped_and_loaded_again_while_the_cluster_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The older one's round goes on between the two steps of the newer one's, and finds that it is not served."""
    partition_of, read = Notes.partition_of, Notes.read
    rounds = [asyncio.Event(), asyncio.Event()]
    may_read = asyncio.Event()
    waiting = iter(rounds)

    async def slow_partition_of(notes: Notes, source: SharePartitionKey) -> UpstreamPartitionName:
        if (turn := next(waiting, None)) is not None:
            await turn.wait()
        return await partition_of(notes, source)

    async def slow_read(notes: Notes, source: SharePartitionKey) -> AppendedOffsets | None:
        await may_read.wait()
        return await read(notes, source)

    async def body(upstream: Upstream, source_id: bytes) -> None:
        await Leader(upstream, source_id).finish()
        monkeypatch.setattr(Notes, "partition_of", slow_partition_of)
        monkeypatch.setattr(Notes, "read", slow_read)
        leader = Leader(upstream, source_id)
        leader.letters.wake(leader.held)
        await asyncio.sleep(1)
        leader.held.drop(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "loaded again"))
        leader.held = HeldPartition(leader.held.key, leader.letters)
        leader.letters.wake(leader.held)
        for turn in (*rounds, may_read):
            await asyncio.sleep(5)
            turn.set()
        await leader.finish()
        await leader.letters.stop()
        assert await stored(upstream) == EXPECTED

    scenario(body)


def test_a_topic_whose_id_the_catalog_invented_has_letters_before_and_after_the_cluster_gives_it_one() -> None:
    async def body(upstream: Upstream, source_id: bytes) -> None:
        for state_epoch, id_in_cluster in enumerate((bytes(16), source_id)):
            leader = Leader(upstream, b"i" * 16, state_epoch=state_epoch, id_in_cluster=id_in_cluster)
            await leader.finish()
        assert await stored(upstream) == EXPECTED * 2
        another = Leader(upstream, b"i" * 16, state_epoch=3, id_in_cluster=b"d" * 16)
        another.letters.wake(another.held)
        await asyncio.sleep(30)
        assert any("was made anew" in report for report in another.reports), another.reports
        await another.letters.stop()

    scenario(body)


def test_a_record_that_is_gone_has_a_letter_with_its_place() -> None:
    async def body(upstream: Upstream, source_id: bytes) -> None:
        await PartitionLog(upstream, SOURCE).delete_before(6)
        await Leader(upstream, source_id).finish()
        expected = [(number, None if number < 6 else value) for number, value in EXPECTED]
        assert await stored(upstream) == expected

    scenario(body)


def test_notes_that_are_not_read_are_found_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario tells a sender that sends twice from one that does not."""

    async def nothing(notes: object, source: SharePartitionKey) -> None:
        return None

    monkeypatch.setattr("kshare_leader.dead_letters.notes.Notes.read", nothing)

    async def body(upstream: Upstream, source_id: bytes) -> None:
        await Leader(upstream, source_id).finish()
        await Leader(upstream, source_id).finish()
        assert await stored(upstream) == EXPECTED * 2

    scenario(body)
