"""Transactions on a log against a plain list of records: what each kind of reader sees, whatever happens in between.

Every turn of appends is one write, and after each one the store is opened a second time as a crash would leave it: what
is found there must be what the running log says.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers.transactions import EndTransaction
from kshare_leader.log.tail import TailCache
from kshare_runtime.memory_store import MemoryDisk
from support.leader.log.committed_reading import Seen, consume
from support.leader.log.leader_logs import KEY, open_logs
from support.leader.log.transactional_logs import UNVERIFIED, transactional_batch

PRODUCERS = (1, 2, 3)
PLAIN = -1


@dataclass(frozen=True)
class Write:
    """A batch of a producer; transactional unless it is PLAIN."""

    producer_id: int
    count: int


@dataclass(frozen=True)
class End:
    """A marker; `bumps_epoch`: transaction version 2; `repeated`: sent twice; `is_late`: of an older coordinator."""

    producer_id: int
    committed: bool
    bumps_epoch: bool
    repeated: bool
    is_late: bool


@dataclass(frozen=True)
class Turn:
    """What happens in one turn of the event loop, and whether the disk takes it."""

    actions: tuple[Write | End, ...]
    disk_fails: bool


RESTART = "restart"
WRITES = st.builds(Write, st.sampled_from([PLAIN, *PRODUCERS]), st.integers(1, 3))
ENDS = st.builds(
    End, st.sampled_from(PRODUCERS), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([False] * 3 + [True])
)
TURNS = st.builds(
    Turn,
    st.lists(st.one_of(WRITES, WRITES, ENDS), min_size=1, max_size=4).map(tuple),
    st.sampled_from([False] * 6 + [True]),
)
STEPS = st.lists(st.one_of(TURNS, TURNS, TURNS, st.just(RESTART)), min_size=1, max_size=25)

OPEN, COMMITTED, ABORTED, MARKER = "open", "committed", "aborted", "marker"


@dataclass
class Record:
    value: bytes
    producer_id: int
    state: str


@dataclass
class Producer:
    epoch: int = -1
    sequence: int = 0
    coordinator_epoch: int = -1


@dataclass
class Naive:
    """One partition: each offset's record, and each producer's epoch and next sequence."""

    records: list[Record] = field(default_factory=list)
    producers: dict[int, Producer] = field(default_factory=dict)

    def copy(self) -> Naive:
        return Naive(
            [Record(record.value, record.producer_id, record.state) for record in self.records],
            {
                number: Producer(producer.epoch, producer.sequence, producer.coordinator_epoch)
                for number, producer in self.producers.items()
            },
        )

    def stable_end(self) -> int:
        return next((offset for offset, record in enumerate(self.records) if record.state == OPEN), len(self.records))

    def is_open(self, producer_id: int) -> bool:
        return any(record.state == OPEN and record.producer_id == producer_id for record in self.records)

    def end(self, end: EndTransaction) -> ErrorCode:
        producer = self.producers.setdefault(end.producer_id, Producer())
        is_open = self.is_open(end.producer_id)
        if end.producer_epoch < producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if end.transaction_version == 2 and end.producer_epoch == producer.epoch and is_open:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if end.coordinator_epoch < producer.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        says_nothing_new = (end.producer_epoch, end.coordinator_epoch) == (producer.epoch, producer.coordinator_epoch)
        if is_open or not says_nothing_new:
            for record in self.records:
                if record.state == OPEN and record.producer_id == end.producer_id:
                    record.state = COMMITTED if end.committed else ABORTED
            self.records.append(Record(b"", end.producer_id, MARKER))
        if end.producer_epoch > producer.epoch:
            producer.sequence = 0
        producer.epoch, producer.coordinator_epoch = end.producer_epoch, end.coordinator_epoch
        return ErrorCode.NONE

    def seen(self, *, committed: bool, start: int) -> list[Seen]:
        end = self.stable_end() if committed else len(self.records)
        hidden = (MARKER, ABORTED) if committed else (MARKER,)
        return [
            Seen(offset, record.value)
            for offset, record in enumerate(self.records[:end])
            if record.state not in hidden and offset >= start
        ]


class Run:
    """A log and the list that it must agree with."""

    def __init__(self, tail_bytes: int) -> None:
        self.disk = MemoryDisk()
        self.tails = TailCache(partition_limit_bytes=tail_bytes, node_limit_bytes=tail_bytes, overhead_bytes=0)
        self.store = self.disk.open_store("leader")
        self.logs = open_logs(self.store, tails=self.tails)
        self.naive = Naive()
        self.coordinator_epoch = 5

    def restart(self) -> None:
        self.logs.close()
        self.disk.crash()
        self.store = self.disk.open_store("leader")
        self.logs = open_logs(self.store, tails=self.tails)

    async def take(self, turn: Turn) -> None:
        before = self.naive.copy()
        futures: list[asyncio.Future[object]] = []
        expected: list[ErrorCode] = []
        for action in turn.actions:
            if isinstance(action, Write):
                futures.append(self._write(action))
                expected.append(ErrorCode.NONE)
            else:
                for end in self._ends(action):
                    futures.append(self.logs.end_transaction(KEY, end))  # type: ignore[arg-type]
                    expected.append(self.naive.end(end))
        if turn.disk_fails and len(self.naive.records) != len(before.records):
            self.disk.fail_next_writes(1)
            self.naive = before
            expected = [ErrorCode.KAFKA_STORAGE_ERROR] * len(expected)
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [result.code if isinstance(result, KafkaError) else ErrorCode.NONE for result in results] == expected

    def _write(self, action: Write) -> asyncio.Future[object]:
        naive, number = self.naive, action.producer_id
        if number == PLAIN:
            batch = transactional_batch(-1, -1, action.count, epoch=-1, transactional=False)
            naive.records += [Record(f"-1:-1:{index - 1}".encode(), -1, COMMITTED) for index in range(action.count)]
            return self.logs.append(KEY, batch)  # type: ignore[return-value]
        producer = naive.producers.setdefault(number, Producer())
        producer.epoch = max(producer.epoch, 0)
        batch = transactional_batch(number, producer.sequence, action.count, epoch=producer.epoch)
        naive.records += [
            Record(f"{number}:{producer.epoch}:{producer.sequence + index}".encode(), number, OPEN)
            for index in range(action.count)
        ]
        producer.sequence += action.count
        return self.logs.append(KEY, batch, transactional=UNVERIFIED)  # type: ignore[return-value]

    def _ends(self, action: End) -> list[EndTransaction]:
        producer = self.naive.producers.get(action.producer_id, Producer())
        epoch = max(producer.epoch, 0) + int(action.bumps_epoch)
        coordinator_epoch = self.coordinator_epoch - int(action.is_late)
        version = 2 if action.bumps_epoch else 1
        end = EndTransaction(action.producer_id, epoch, action.committed, coordinator_epoch, version)
        return [end, end] if action.repeated else [end]

    async def check(self, max_bytes: int, start_at: float) -> None:
        await self._check_readers(self.logs, max_bytes, start_at)
        naive = self.naive
        reopened = open_logs(self.store, tails=TailCache(partition_limit_bytes=0, node_limit_bytes=0))
        live, cold = self.logs.lookup(KEY), reopened.lookup(KEY)
        for log in (live, cold):
            assert (log.high_watermark, log.last_stable_offset) == (len(naive.records), naive.stable_end())
        assert dict(live.producers.items()) == dict(cold.producers.items())
        end = live.high_watermark
        for first in range(0, end, 3):
            found = live.aborted_transactions(first, end)
            assert found == cold.aborted_transactions(first, end)
        await self._check_readers(reopened, max_bytes, start_at)

    async def _check_readers(self, logs: PartitionLogs, max_bytes: int, start_at: float) -> None:
        start = int(start_at * self.naive.stable_end())
        for committed in (False, True):
            found = await consume(logs, KEY, committed=committed, max_bytes=max_bytes, start=start)
            assert found == self.naive.seen(committed=committed, start=start)


async def run(steps: list[Turn | str], max_bytes: int, start_at: float, tail_bytes: int) -> None:
    state = Run(tail_bytes)
    for step in steps:
        if isinstance(step, Turn):
            await state.take(step)
        else:
            state.restart()
        await state.check(max_bytes, start_at)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=120)
@given(STEPS, st.sampled_from([1, 150, 400, 1 << 20]), st.floats(0, 1), st.sampled_from([0, 500, 1 << 20]))
def test_readers_see_what_was_decided(
    steps: list[Turn | str], max_bytes: int, start_at: float, tail_bytes: int
) -> None:
    asyncio.run(run(steps, max_bytes, start_at, tail_bytes))
