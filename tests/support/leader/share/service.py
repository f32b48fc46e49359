"""A ShareService on a virtual clock, with a log in memory and the real machine of a share coordinator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from kshare_core.configs import PROCESS_CONFIGS, Configs
from kshare_core.errors import CorruptRecords, StorageFailure
from kshare_core.identifiers import SharePartitionKey, TopicPartition
from kshare_core.leader_epochs import EpochEntry
from kshare_leader.dead_letters.service import DeadLetters
from kshare_leader.dead_letters.target import DeadLetterTarget
from kshare_leader.dead_letters.unfinished import RememberedDeadLetters
from kshare_leader.history.buffer import HistoryBuffer
from kshare_leader.history.delivery_history import DeliveryHistory
from kshare_leader.log.divergence import diverging_offset
from kshare_leader.log.leader_epoch_history import LeaderEpochHistory
from kshare_leader.metrics import LeaderMetrics
from kshare_leader.ports import AbortedTransaction, ReadableBatches, StoredBatch, TimestampOffset
from kshare_leader.share.service import ShareService
from kshare_rpc.catalog import CatalogView
from kshare_rpc.generated.kshare.v1 import coordinator_pb2, leader_pb2
from kshare_rpc.generated.kshare.v1 import share_coordinator_pb2 as state_pb2
from kshare_rpc.generated.methods import (
    DESCRIBE_CATALOG,
    LIST_STATE_SUMMARIES,
    READ_SHARE_GROUP_STATE,
    TRUNCATE_SHARE_GROUP_STATE,
    WRITE_SHARE_GROUP_STATE,
)
from kshare_rpc.network import ChannelUnavailable, Method, Payload, Request, Response
from kshare_runtime.memory_store import MemoryDisk
from kshare_runtime.ports import Environment, KeyValueStore
from kshare_share_coordinator.handlers.read_share_group_state import ReadShareGroupStateHandler
from kshare_share_coordinator.handlers.truncate_share_group_state import TruncateShareGroupStateHandler
from kshare_share_coordinator.handlers.write_share_group_state import WriteShareGroupStateHandler
from kshare_share_coordinator.machine.operations import (
    DeleteState,
    InitializeState,
    Operation,
    ReadState,
    Result,
    WriteState,
)
from kshare_share_coordinator.machine.share_coordinator import ShareCoordinatorMachine
from kshare_share_coordinator.machine.share_group_offset import Record, ShareGroupOffset, ShareSnapshot, ShareTombstone
from kshare_share_coordinator.machine.state_batches import StateBatch
from support.simulation.loop import VirtualLoop
from support.wire.record_building import build_batch

T = TypeVar("T")
TOPIC = bytes(range(16))
NODE_ID = 7
LEADER_EPOCH = 5
OWNER_EPOCH = 4
"""Of the state partition, in the catalog."""
LEADER_EPOCH_END = 16
"""Of a record batch."""
GATEWAY = coordinator_pb2.Node(role=coordinator_pb2.ROLE_GATEWAY, node_id=1, incarnation="g1")


class MemoryTopicLog:
    """A TopicLog of batches whose bytes say their offsets."""

    def __init__(self, partition: int) -> None:
        self.topic_partition = TopicPartition(TOPIC, partition)
        self.log_start_offset = 0
        self.high_watermark = 0
        self.validated_from = 0
        self.timestamps: list[TimestampOffset] = []
        self.aborted: list[AbortedTransaction] = []
        self.appended_ms: int | None = None
        """Where it is set, batches are real ones, of records of this time."""
        self.is_here = True
        """False: reads bring nothing, although it is known that there are records."""
        self.reads = 0
        self.read_bytes = 0
        self.fails = False
        self.failure = StorageFailure("the disk is gone")
        self.damaged: int | None = None
        """The base offset of a batch that cannot be read: a read that reaches it fails, or ends before it."""
        self.epochs = LeaderEpochHistory([])
        self.epochs.lead(LEADER_EPOCH, 0)
        self._open: dict[int, int] = {}
        self._batches: list[StoredBatch] = []
        self._listeners: dict[object, Callable[[], None]] = {}

    @property
    def last_stable_offset(self) -> int:
        return min(self._open.values(), default=self.high_watermark)

    @property
    def leader_epochs(self) -> Sequence[EpochEntry]:
        return self.epochs.entries

    def encoded_leader_epochs(self) -> bytes:
        return self.epochs.encoded()

    def copy(self) -> MemoryTopicLog:
        """What a copy of the disk has."""
        copied = MemoryTopicLog(self.topic_partition.partition)
        copied.log_start_offset, copied.high_watermark = self.log_start_offset, self.high_watermark
        copied._batches = list(self._batches)
        copied.epochs = LeaderEpochHistory(self.epochs.durable())
        return copied

    def append(self, count: int, *, is_control: bool = False, size: int = 100, producer_id: int = -1) -> None:
        """A batch; with a producer id, one of its transaction, which stays open until `end_transaction`."""
        base = self.high_watermark
        data = f"{base}-{base + count - 1};".encode().ljust(size, b".")
        if len(data) >= LEADER_EPOCH_END:
            epoch = self.epochs.entries[-1].leader_epoch.to_bytes(4, "big")
            data = data[: LEADER_EPOCH_END - 4] + epoch + data[LEADER_EPOCH_END:]
        if self.appended_ms is not None:
            data = build_batch([b""] * count, timestamps_ms=[self.appended_ms] * count)
        is_transactional = producer_id >= 0
        self._batches.append(StoredBatch(base, base + count - 1, data, is_control, is_transactional, producer_id))
        self.high_watermark += count
        self.epochs.appended()
        if is_transactional and not is_control:
            self._open.setdefault(producer_id, base)
        elif is_transactional:
            self._open.pop(producer_id, None)
        self._tell()

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """The marker, one offset."""
        if not committed:
            first_offset = self._open[producer_id]
            self.aborted.append(AbortedTransaction(producer_id, first_offset, self.high_watermark))
        self.append(1, is_control=True, producer_id=producer_id)

    def compact(self, base_offset: int) -> None:
        """Takes the batch at an offset out of the log."""
        self._batches = [batch for batch in self._batches if batch.base_offset != base_offset]

    def delete_records(self, log_start_offset: int) -> None:
        self.log_start_offset = log_start_offset

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return [
            transaction
            for transaction in self.aborted
            if transaction.first_offset < end_offset and transaction.last_offset >= first_offset
        ]

    def readable(self, batches: Sequence[StoredBatch]) -> ReadableBatches:
        raise AssertionError("all batches are validated")

    def arrive(self) -> None:
        self.is_here = True
        self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners.values()):
            listener()

    def read(self, fetch_offset: int, max_bytes: int, *, read_committed: bool = False) -> list[StoredBatch]:
        self.reads += 1
        if self.fails:
            raise self.failure
        if not self.is_here:
            return []
        found: list[StoredBatch] = []
        size = 0
        for batch in self._batches:
            if batch.last_offset >= max(fetch_offset, self.log_start_offset):
                if batch.base_offset == self.damaged:
                    if found:
                        break
                    raise CorruptRecords(f"the batch at offset {self.damaged} is damaged")
                size += batch.length
                if found and size > max_bytes:
                    break
                found.append(batch)
        self.read_bytes += sum([batch.length for batch in found])
        return found

    has_brokers_epochs = False

    async def diverging_offset(self, known: Sequence[EpochEntry], end_offset: int) -> int | None:
        return diverging_offset(self, known, end_offset)

    async def refresh(self) -> None:
        pass

    async def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        return next((found for found in self.timestamps if found.timestamp_ms >= timestamp_ms), None)

    def add_listener(self, listener: Callable[[], None], *, read_committed: bool = False) -> Callable[[], None]:
        token = object()
        self._listeners[token] = listener
        return lambda: self._listeners.pop(token, None) and None


class CatalogChannel:
    """A Channel to the coordinator, which says the version of its catalog: `version()`, or first of `answers`.

    An answer is an error code, or an exception that the call ends with.
    """

    def __init__(self, version: Callable[[], int]) -> None:
        self.version = version
        self.answers: list[int | Exception] = []
        self.calls = 0

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        assert method is DESCRIBE_CATALOG
        self.calls += 1
        await asyncio.sleep(0.001)
        error = self.answers.pop(0) if self.answers else 0
        if isinstance(error, Exception):
            raise error
        answer = coordinator_pb2.DescribeCatalogResponse(error_code=error, version=0 if error else self.version())
        return cast(Response, answer), memoryview(b"")

    async def close(self) -> None:
        pass


class Logs:
    """`opening`: indexes of partitions whose logs are not open yet."""

    def __init__(self, count: int) -> None:
        self.all = {TopicPartition(TOPIC, index): MemoryTopicLog(index) for index in range(count)}
        self.opening: set[int] = set()

    def find(self, key: TopicPartition) -> MemoryTopicLog | None:
        return None if key.partition in self.opening else self.all.get(key)

    def find_opening(self, key: TopicPartition) -> MemoryTopicLog | None:
        return self.all.get(key)


class StateChannel:
    """A Channel to a share coordinator: its real machine, whose records lie in memory.

    `read_answers` and `write_answers` are taken first: an error code for all share-partitions of the call (nothing is
    stored), or an exception (with `stores_anyway`, the state is stored before it is raised). While `gate` is set,
    writes wait for it. What is asked and answered without them is the machine's.
    """

    def __init__(self) -> None:
        self._records: dict[SharePartitionKey, list[Record]] = {}
        self._machine = ShareCoordinatorMachine(
            load=lambda key: self._records.get(key, ()), snapshot_update_records_per_snapshot=500
        )
        self._partitions: dict[int, None] = {}
        self.writes: list[state_pb2.WriteShareGroupStateRequest] = []
        """Those that were stored."""
        self.truncations: list[state_pb2.TruncateShareGroupStateRequest] = []
        self.reads = 0
        self.on_its_way: Callable[[state_pb2.ReadShareGroupStateResponse], None] = lambda answer: None
        """What is done to the answer of a read."""
        self.read_answers: list[int | Exception] = []
        self.write_answers: list[int | Exception] = []
        self.truncate_answers: list[int | Exception] = []
        self.stores_anyway = False
        self.gate: asyncio.Event | None = None
        self.timeouts_ms: list[int] = []
        """Of each write."""
        self.is_cut_off = False
        """Nothing reaches it, as if the leader's process had ended."""
        self.list_answers: list[int | Exception] = []
        """Taken first by ListStateSummaries: an error code, or an exception."""
        self.lists = 0
        """Pages of ListStateSummaries that were asked for; each has one share-partition."""

    def initialize(
        self, partition: int, start_offset: int, *batches: tuple[int, int, int, int], state_epoch: int = 3
    ) -> None:
        """The state from a start offset on, of which no leader knows more."""
        self.delete(partition)
        self._partitions[partition] = None
        self.run(InitializeState(key(partition), state_epoch, start_offset))
        if batches:
            written = [StateBatch(*batch) for batch in batches]
            self.run(WriteState(key(partition), state_epoch, 0, -1, 0, written))

    def delete(self, partition: int) -> None:
        self._partitions.pop(partition, None)
        self.run(DeleteState(key(partition)))

    def reset(self, partition: int, start_offset: int, state_epoch: int) -> None:
        """What AlterShareGroupOffsets comes to."""
        self.run(InitializeState(key(partition), state_epoch, start_offset))

    @property
    def states(self) -> dict[tuple[bytes, int], ShareGroupOffset]:
        """What is stored, by topic id and partition."""
        return {(TOPIC, partition): self.state(partition) for partition in self._partitions}

    def reconnected(self) -> StateChannel:
        """A channel of a new process to the same share coordinator."""
        again = StateChannel()
        again._records, again._machine, again._partitions = self._records, self._machine, self._partitions
        return again

    def state(self, partition: int = 0) -> ShareGroupOffset:
        found = self.run(ReadState(key(partition), -1)).state
        assert found is not None
        return found

    def run(self, operation: Operation) -> Result:
        decision = self._machine.decide(operation, 0)
        for record in decision.records:
            kept = self._records.setdefault(record.key, [])
            if isinstance(record, ShareSnapshot | ShareTombstone):
                kept.clear()
            if not isinstance(record, ShareTombstone):
                kept.append(record)
            self._machine.replay(record)
        self._machine.records_are_durable()
        return decision.response

    async def call(
        self, method: Method[Request, Response], request: Request, payload: Payload = (), *, timeout_ms: int
    ) -> tuple[Response, memoryview]:
        await asyncio.sleep(0.001)
        if self.is_cut_off:
            raise UNAVAILABLE
        if method is READ_SHARE_GROUP_STATE:
            answer: Any = self._read(cast(state_pb2.ReadShareGroupStateRequest, request))
        elif method is TRUNCATE_SHARE_GROUP_STATE:
            answer = self._truncate(cast(state_pb2.TruncateShareGroupStateRequest, request))
        elif method is LIST_STATE_SUMMARIES:
            answer = self._list(cast(state_pb2.ListStateSummariesRequest, request))
        else:
            assert method is WRITE_SHARE_GROUP_STATE
            self.timeouts_ms.append(timeout_ms)
            if self.gate is not None:
                await self.gate.wait()
            answer = self._write(cast(state_pb2.WriteShareGroupStateRequest, request))
        return cast(Response, answer), memoryview(b"")

    def _list(self, request: state_pb2.ListStateSummariesRequest) -> state_pb2.ListStateSummariesResponse:
        self.lists += 1
        error = self.list_answers.pop(0) if self.list_answers else 0
        if isinstance(error, Exception):
            raise error
        response = state_pb2.ListStateSummariesResponse(error_code=error)
        number = int(request.position or b"0")
        found = sorted(self.states.items())[number : number + 1] if not error else []
        for (topic_id, partition), state in found:
            done = [batch for batch in state.state_batches if batch.delivery_state in (2, 4)]
            if state.start_offset >= 0:
                response.results.add(
                    group_id="group",
                    topic_id=topic_id,
                    partition=partition,
                    has_archiving=any(batch.delivery_state == 3 for batch in state.state_batches),
                    start_offset=state.start_offset,
                    delivery_complete_count=sum(batch.last_offset - batch.first_offset + 1 for batch in done),
                )
        if not error and number + 1 < len(self.states):
            response.next_position = b"%d" % (number + 1)
        return response

    def _read(self, request: state_pb2.ReadShareGroupStateRequest) -> state_pb2.ReadShareGroupStateResponse:
        self.reads += 1
        assert all(each.owner_epoch == OWNER_EPOCH for each in request.partitions)
        error = self.read_answers.pop(0) if self.read_answers else 0
        if isinstance(error, Exception):
            raise error
        if error:
            refused = [_refused_read(each, error) for each in request.partitions]
            return state_pb2.ReadShareGroupStateResponse(results=refused)
        answer: state_pb2.ReadShareGroupStateResponse = _handled(ReadShareGroupStateHandler, self, request)
        self.on_its_way(answer)
        return answer

    def _write(self, request: state_pb2.WriteShareGroupStateRequest) -> state_pb2.WriteShareGroupStateResponse:
        error = self.write_answers.pop(0) if self.write_answers else 0
        answer = state_pb2.WriteShareGroupStateResponse(
            results=[_result(each, error) for each in request.partitions if not isinstance(error, Exception)]
        )
        if not error or self.stores_anyway:
            self.writes.append(request)
            answer = _handled(WriteShareGroupStateHandler, self, request)
        if isinstance(error, Exception):
            raise error
        return answer

    def _truncate(self, request: state_pb2.TruncateShareGroupStateRequest) -> state_pb2.TruncateShareGroupStateResponse:
        error = self.truncate_answers.pop(0) if self.truncate_answers else 0
        answer = state_pb2.TruncateShareGroupStateResponse(
            results=[_result(each, error) for each in request.partitions if not isinstance(error, Exception)]
        )
        if not error or self.stores_anyway:
            self.truncations.append(request)
            answer = _handled(TruncateShareGroupStateHandler, self, request)
        if isinstance(error, Exception):
            raise error
        return answer

    async def close(self) -> None:
        pass


def _result(partition: Any, error: int | Exception) -> state_pb2.SharePartitionResult:
    code = 0 if isinstance(error, Exception) else error
    return state_pb2.SharePartitionResult(topic_id=partition.topic_id, partition=partition.partition, error_code=code)


def _refused_read(partition: Any, error: int) -> state_pb2.ReadShareGroupStateResponse.Result:
    return state_pb2.ReadShareGroupStateResponse.Result(
        topic_id=partition.topic_id, partition=partition.partition, error_code=error
    )


class _Operations:
    """In the place of the share coordinator's OperationService: the machine, without ownership and disk."""

    def __init__(self, channel: StateChannel) -> None:
        self._channel = channel
        self.answer: Any = None

    def execute(
        self,
        operations: Sequence[Operation],
        respond: Callable[[Sequence[Result]], Any],
        owner_epochs: Sequence[int] = (),
    ) -> Any:
        self.answer = respond([self._channel.run(operation) for operation in operations])


def _handled(make_handler: Callable[[Any], Any], channel: StateChannel, request: Any) -> Any:
    """What the share coordinator's own handler answers."""
    operations = _Operations(channel)
    make_handler(operations)(request, memoryview(b""))
    return operations.answer


class Leader:
    """A ShareService and everything around it; `view` may be replaced by `change_view`."""

    def __init__(
        self,
        *,
        partitions: int = 2,
        configs: dict[str, str] | None = None,
        metrics: LeaderMetrics | None = None,
        history: HistoryBuffer | None = None,
        max_share_partitions: int = 20_000,
        letters: DeadLetterTarget | None = None,
    ) -> None:
        """`history` takes the delivery history, of leader NODE_ID with incarnation 17, and `letters` dead letters."""
        self.logs = Logs(partitions)
        self.channel = StateChannel()
        self.reports: list[str] = []
        self.addresses: list[str] = []
        """Of the share coordinators asked, in order."""
        self.view = make_view(partitions)
        self.has_lease = True
        self.coordinator = CatalogChannel(lambda: self.view.version)
        """Its catalog is this leader's view, unless a test says another version."""
        self._view_changed = asyncio.Event()
        self._disk = MemoryDisk()
        self._configs = configs
        self._max_share_partitions = max_share_partitions
        self._metrics = metrics
        self._history = history
        self._letters = letters
        self.service = self._new_service()

    def _new_service(self) -> ShareService:
        loop = asyncio.get_running_loop()

        class LoopClock:
            def now_ms(self) -> int:
                return 1_000_000 + int(loop.time() * 1000)

        def no_store(name: str) -> KeyValueStore:
            raise AssertionError(f"{self._disk} is not for {name}")

        history = self._history
        return ShareService(
            logs=self.logs,
            view=lambda: self.view,
            channel=partial(self._channel_to, self.channel),
            coordinator=lambda: self.coordinator,
            wait_for_version=self._wait_for_version,
            node_id=NODE_ID,
            configs=Configs(PROCESS_CONFIGS, self._configs or {}),
            max_share_partitions=self._max_share_partitions,
            environment=Environment(clock=LoopClock(), random=random.Random(1), open_store=no_store),
            report=self.reports.append,
            metrics=self._metrics,
            dead_letters=None
            if self._letters is None
            else DeadLetters(
                unfinished=RememberedDeadLetters(NODE_ID),
                target=self._letters,
                view=lambda: self.view,
                clock=LoopClock(),
                random=random.Random(2),
                report=self.reports.append,
            ),
            has_lease=lambda: self.has_lease,
            history=None
            if history is None
            else DeliveryHistory(
                buffer=history,
                view=lambda: self.view,
                node_id=NODE_ID,
                node_epoch=lambda: 17,
                wall_now_ms=LoopClock().now_ms,
            ),
        )

    async def restart(self, log: MemoryTopicLog | None = None, *, partition: int = 0) -> None:
        """The process ends as if killed, and begins again in a new leader epoch; `log` is what its disk has then."""
        old, self.channel = self.channel, self.channel.reconnected()
        old.is_cut_off = True
        await self.service.stop()
        view = make_view(len(self.logs.all), leader_epoch=self.leader_epoch + 1)
        if log is not None:
            self.logs.all[TopicPartition(TOPIC, partition)] = log
        for each in self.logs.all.values():
            each.epochs = LeaderEpochHistory(each.epochs.durable())
            each.epochs.lead(self.leader_epoch + 1, each.high_watermark)
        self.view = view
        self.service = self._new_service()

    @property
    def leader_epoch(self) -> int:
        return self.view.topics_by_id[TOPIC].partitions[0].leader_epoch

    def _channel_to(self, channel: StateChannel, address: str) -> StateChannel:
        self.addresses.append(address)
        return channel

    def log(self, partition: int = 0) -> MemoryTopicLog:
        return self.logs.all[TopicPartition(TOPIC, partition)]

    def change_view(self, view: CatalogView) -> None:
        for key, log in self.logs.all.items():
            if (partition := view.partition(key)) is not None:
                log.epochs.lead(partition.leader_epoch, log.high_watermark)
        self.service.on_view(self.view, view)
        self.view = view
        self._view_changed.set()

    async def _wait_for_version(self, version: int, timeout_ms: int) -> bool:
        """As the CatalogFollower's."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.view.version < version:
                    self._view_changed.clear()
                    await self._view_changed.wait()
        except TimeoutError:
            return False
        return True

    async def fetch(
        self,
        member: str = "m1",
        *partitions: leader_pb2.ShareFetchRequest.Partition,
        max_wait_ms: int = 500,
        max_records: int = 500,
        max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        gateway: str = "g1",
        is_renew_ack: bool = False,
        fetch_number: int = 0,
        delivered_fetch_number: int = 0,
        client_id: str = "",
    ) -> tuple[leader_pb2.ShareFetchResponse, bytes]:
        named = partitions or (fetch_partition(0),)
        request = leader_pb2.ShareFetchRequest(
            owner=owner(member, gateway),
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=max_records,
            batch_size=max_records,
            is_renew_ack=is_renew_ack,
            partitions=named,
            fetch_number=fetch_number,
            delivered_fetch_number=delivered_fetch_number,
            client_id=client_id,
        )
        response, payload = await self.service.share_fetch(request, memoryview(b""))
        assert isinstance(response, leader_pb2.ShareFetchResponse)
        return response, b"".join(payload)

    async def acquire(self, member: str = "m1", **options: Any) -> list[tuple[int, int, int]]:
        """The acquired records of partition 0."""
        response, _ = await self.fetch(member, **options)
        return entries(response.partitions[0])

    async def acknowledge(
        self, member: str, first: int, last: int, types: bytes, *, partition: int = 0, delivered_fetch_number: int = 0
    ) -> int:
        """The error code."""
        request = leader_pb2.ShareAcknowledgeRequest(owner=owner(member), delivered_fetch_number=delivered_fetch_number)
        entry = request.partitions.add(topic_id=TOPIC, partition=partition)
        entry.acknowledgement_batches.add(first_offset=first, last_offset=last, acknowledge_types=types)
        response = await self.service.share_acknowledge(request, memoryview(b""))
        assert [(TOPIC, partition)] == [(answer.topic_id, answer.partition) for answer in response.partitions]
        return response.partitions[0].error_code

    async def release(
        self,
        member: str,
        *,
        last_fetch_number: int = 0,
        lost: Sequence[int] = (),
        undelivered: Sequence[int] = (),
        partitions: Sequence[int] = (),
    ) -> int:
        request = leader_pb2.ReleaseShareSessionRequest(
            owner=owner(member),
            last_fetch_number=last_fetch_number,
            lost_fetch_numbers=lost,
            undelivered_fetch_numbers=undelivered,
        )
        for partition in partitions:
            request.partitions.add(topic_id=TOPIC, partition=partition)
        response = await self.service.release_share_session(request, memoryview(b""))
        return response.error_code


def run(test: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a test on a virtual clock; exceptions that nobody caught fail it."""
    loop = VirtualLoop(time_limit=3600.0)
    asyncio.set_event_loop(loop)
    try:
        result = loop.run(test())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    assert not loop.problems, loop.problems
    return result


def make_view(
    partitions: int, *, leader_epoch: int = LEADER_EPOCH, nodes: tuple[coordinator_pb2.Node, ...] = ()
) -> CatalogView:
    topic = coordinator_pb2.Topic(topic_id=TOPIC, name="orders")
    for index in range(partitions):
        topic.partitions.add(partition=index, leader_node_id=NODE_ID, leader_epoch=leader_epoch)
    coordinator = coordinator_pb2.Node(
        role=coordinator_pb2.ROLE_SHARE_COORDINATOR, node_id=2, rpc_address="share-coordinator:1"
    )
    return CatalogView(
        version=1,
        topics_by_id={TOPIC: topic},
        topics_by_name={"orders": topic},
        nodes=nodes or (coordinator, GATEWAY),
        state_partition_owners={0: 2},
        state_partition_owner_epochs={0: OWNER_EPOCH},
        state_partition_count=1,
    )


def owner(member: str, gateway: str = "g1") -> leader_pb2.ShareSessionOwner:
    return leader_pb2.ShareSessionOwner(group_id="group", member_id=member, gateway_id=1, gateway_incarnation=gateway)


def fetch_partition(
    partition: int, *acknowledgements: tuple[int, int, bytes], cached: tuple[tuple[int, int], ...] = ()
) -> leader_pb2.ShareFetchRequest.Partition:
    request = leader_pb2.ShareFetchRequest.Partition(topic_id=TOPIC, partition=partition, fetch=True)
    for first, last, types in acknowledgements:
        request.acknowledgement_batches.add(first_offset=first, last_offset=last, acknowledge_types=types)
    for first, last in cached:
        request.cached.add(first_offset=first, last_offset=last, leader_epoch=LEADER_EPOCH)
    return request


def entries(partition: leader_pb2.ShareFetchResponse.Partition) -> list[tuple[int, int, int]]:
    return [(entry.first_offset, entry.last_offset, entry.delivery_count) for entry in partition.acquired_records]


def key(partition: int = 0) -> SharePartitionKey:
    return SharePartitionKey("group", TOPIC, partition)


UNAVAILABLE = ChannelUnavailable("the connection was lost")
