"""Kafka's rules of transactions on a log, one by one; tables first, then a log that follows them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.log import keys
from kshare_leader.log.partition_log import PartitionLog
from kshare_leader.log.partition_logs import PartitionLogs
from kshare_leader.log.producers.entries import (
    EVICTED_AFTER_MS,
    MAX_SEQUENCE,
    ProducerEntry,
    ProducerTable,
    SentBatch,
    check_producer,
    decode_producer,
    encode_producer,
    entry_after,
)
from kshare_leader.log.producers.state import TransactionalAppend
from kshare_leader.log.producers.transactions import (
    AbortedEntry,
    AbortedTransactions,
    EndTransaction,
    changes_nothing,
    check_end,
    entry_after_end,
)
from kshare_leader.log.producers.verifications import MAKES_ROOM_AFTER_MS, Verification, Verifications
from kshare_leader.ports import AbortedTransaction
from kshare_runtime.memory_store import MemoryDisk, MemoryStore
from kshare_wire.record_batches import BatchHeader, read_header
from support.leader.log.leader_logs import KEY, StillClock, open_logs, topic, view_of
from support.leader.log.transactional_logs import append, end_of, transactional_batch
from support.wire.record_building import build_batch

TRANSACTIONAL = 0x10
MAX_EPOCH = (1 << 15) - 1


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def header(sequence: int, *, epoch: int = 0, transactional: bool = True) -> BatchHeader:
    attributes = TRANSACTIONAL if transactional else 0
    return BatchHeader(0, 0, 100, -1, 2, 0, attributes, 0, 0, 0, 5, epoch, sequence, 1)


def entry(
    epoch: int = 0, *, last_sequence: int | None = 9, open_at: int = -1, coordinator_epoch: int = -1
) -> ProducerEntry:
    batches = () if last_sequence is None else (SentBatch(last_sequence, 40, 0),)
    return ProducerEntry(epoch, 0, batches, coordinator_epoch, open_at)


def end(epoch: int = 0, *, version: int = 1, coordinator_epoch: int = 3, committed: bool = True) -> EndTransaction:
    return EndTransaction(5, epoch, committed, coordinator_epoch, version)


FENCED, STALE = ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
OUT_OF_ORDER, NOT_IN_IT = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_TXN_STATE

ENDS: list[tuple[str, ProducerEntry | None, EndTransaction, ErrorCode | None]] = [
    ("unknown producer, version 1", None, end(4), None),
    ("unknown producer, version 2", None, end(4, version=2), None),
    ("version 0, same epoch", entry(4, open_at=7), end(4, version=0), None),
    ("version 1, same epoch", entry(4, open_at=7), end(4), None),
    ("version 1, newer epoch", entry(4, open_at=7), end(5), None),
    ("version 1, older epoch", entry(4, open_at=7), end(3), STALE),
    ("version 2, newer epoch", entry(4, open_at=7), end(5, version=2), None),
    ("version 2, same epoch while open", entry(4, open_at=7), end(4, version=2), STALE),
    ("version 2, repeated", entry(4), end(4, version=2), None),
    ("version 2, the last epoch of all", entry(MAX_EPOCH, open_at=7), end(MAX_EPOCH, version=2), None),
    ("version 2, older epoch", entry(4), end(3, version=2), STALE),
    ("version 2, older epoch while open", entry(4, open_at=7), end(3, version=2), STALE),
    ("same coordinator epoch", entry(4, coordinator_epoch=3), end(4), None),
    ("newer coordinator epoch", entry(4, coordinator_epoch=2), end(4), None),
    ("older coordinator epoch", entry(4, coordinator_epoch=4), end(4), FENCED),
    ("older in both", entry(4, coordinator_epoch=4), end(3), STALE),
]


@pytest.mark.parametrize(("known", "marker", "code"), [pytest.param(*case[1:], id=case[0]) for case in ENDS])
def test_which_markers_are_written(known: ProducerEntry | None, marker: EndTransaction, code: ErrorCode | None) -> None:
    if code is None:
        check_end(known, marker)
        return
    with pytest.raises(KafkaError) as caught:
        check_end(known, marker)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("known", "marker", "expected"),
    [
        (None, end(4), False),
        (entry(4, coordinator_epoch=3), end(4), True),
        (entry(4, coordinator_epoch=3, open_at=9), end(4), False),
        (entry(3, coordinator_epoch=3), end(4), False),
        (entry(4, coordinator_epoch=2), end(4), False),
    ],
)
def test_only_a_repeated_marker_changes_nothing(
    known: ProducerEntry | None, marker: EndTransaction, expected: bool
) -> None:
    assert changes_nothing(known, marker) == expected


def test_sequences_go_on_after_a_marker_of_the_same_epoch_and_start_again_with_a_new_one() -> None:
    known = entry(4, last_sequence=9, open_at=7, coordinator_epoch=1)
    same = entry_after_end(known, end(4), 55)
    assert same == ProducerEntry(4, 55, known.batches, 3, -1)
    check_producer(same, header(10, epoch=4))
    bumped = entry_after_end(known, end(5, version=2), 55)
    assert bumped == ProducerEntry(5, 55, (), 3, -1) and bumped.last_sequence == -1
    check_producer(bumped, header(0, epoch=5))
    with pytest.raises(KafkaError) as caught:
        check_producer(bumped, header(10, epoch=5))
    assert caught.value.code == OUT_OF_ORDER


def verification(epoch: int = 0, *, lowest: int = 0, adds: bool = False) -> Verification:
    return Verification(epoch, lowest, adds, 0)


BATCHES: list[tuple[str, ProducerEntry | None, BatchHeader, Verification | None, ErrorCode | None]] = [
    ("in the open transaction", entry(open_at=7), header(10), None, None),
    ("outside of the open transaction", entry(open_at=7), header(10, transactional=False), None, NOT_IN_IT),
    ("outside, and out of order", entry(open_at=7), header(11, transactional=False), None, OUT_OF_ORDER),
    ("outside, and fenced", entry(3, open_at=7), header(10, epoch=2, transactional=False), None, STALE),
    ("newer epoch in the open transaction", entry(3, open_at=7), header(0, epoch=4), None, None),
    ("outside, of a newer epoch", entry(3, open_at=7), header(0, epoch=4, transactional=False), None, NOT_IN_IT),
    ("unknown producer, version 1", None, header(5), verification(lowest=5), None),
    ("unknown producer, version 2, at 0", None, header(0), verification(adds=True), None),
    ("unknown producer, version 2, later", None, header(5), verification(lowest=5, adds=True), OUT_OF_ORDER),
    (
        "nothing of the epoch known",
        entry(last_sequence=None),
        header(5),
        verification(lowest=5, adds=True),
        OUT_OF_ORDER,
    ),
    ("a lower sequence was seen", None, header(5), verification(lowest=4), OUT_OF_ORDER),
    ("the lowest that was seen", entry(), header(10), verification(lowest=10), None),
]


@pytest.mark.parametrize(
    ("known", "batch", "waiting", "code"), [pytest.param(*case[1:], id=case[0]) for case in BATCHES]
)
def test_which_batches_are_appended(
    known: ProducerEntry | None, batch: BatchHeader, waiting: Verification | None, code: ErrorCode | None
) -> None:
    if code is None:
        check_producer(known, batch, waiting)
        return
    with pytest.raises(KafkaError) as caught:
        check_producer(known, batch, waiting)
    assert caught.value.code == code


def test_a_transaction_begins_with_its_first_batch_and_keeps_its_start() -> None:
    known = entry_after(None, header(0), 100, 1)
    assert known.transaction_first_offset == 100
    known = entry_after(known, header(1), 101, 2)
    assert known.transaction_first_offset == 100
    known = entry_after(known, header(0, epoch=1), 102, 3)
    assert (known.transaction_first_offset, known.producer_epoch, len(known.batches)) == (100, 1, 1)
    plain = entry_after(entry(coordinator_epoch=6), header(10, transactional=False), 103, 4)
    assert (plain.transaction_first_offset, plain.coordinator_epoch) == (-1, 6)


@given(
    st.integers(0, MAX_EPOCH),
    st.integers(0, 1 << 50),
    st.lists(
        st.builds(SentBatch, st.integers(0, MAX_SEQUENCE), st.integers(0, 1 << 62), st.integers(0, 9)), max_size=5
    ),
    st.integers(-1, (1 << 31) - 1),
    st.integers(-1, 1 << 62),
)
def test_entries_survive_the_disk(
    epoch: int, now_ms: int, batches: list[SentBatch], coordinator_epoch: int, open_at: int
) -> None:
    known = ProducerEntry(epoch, now_ms, tuple(batches), coordinator_epoch, open_at)
    assert decode_producer(encode_producer(known)) == known


def test_a_producer_with_an_open_transaction_neither_expires_nor_makes_room() -> None:
    table = ProducerTable([(1, ProducerEntry(0, 0, (), -1, 8)), (2, ProducerEntry(0, 5, ()))], limit=2)
    now_ms = EVICTED_AFTER_MS + 10
    assert list(table.expired(10_000, 1000)) == [2]
    assert table.make_room(added_count=0, changed={}, idle=table.idle(), now_ms=now_ms) == 2
    table.put(2, ProducerEntry(0, 6, (), -1, 9))
    assert list(table.expired(10_000, 1000)) == []
    with pytest.raises(KafkaError) as caught:
        table.make_room(added_count=0, changed={}, idle=table.idle(), now_ms=now_ms)
    assert caught.value.code == ErrorCode.POLICY_VIOLATION
    table.put(1, ProducerEntry(0, 7, ()))
    assert list(table.expired(10_000, 1000)) == [1]
    assert table.make_room(added_count=0, changed={}, idle=table.idle(), now_ms=now_ms) == 1


# what is being looked up


def test_a_verification_remembers_the_lowest_sequence_of_the_newest_epoch() -> None:
    found = Verifications()

    def begin(epoch: int, sequence: int) -> Verification:
        return found.begin(7, producer_epoch=epoch, sequence=sequence, adds_partition=True, now_ms=0)

    first = begin(2, 5)
    first.is_verified = True
    assert begin(2, 9) is first and first.lowest_sequence == 5 and first.confirms(2)
    assert begin(2, 3).lowest_sequence == 3
    assert begin(1, 0).lowest_sequence == 3 and not first.confirms(1)
    assert begin(3, 4) is first
    assert (first.producer_epoch, first.lowest_sequence, first.is_verified) == (3, 4, False)
    found.clear(7, first)
    assert begin(3, 8) is not first


def test_verifications_have_a_limit_and_expire() -> None:
    found = Verifications(limit=2)

    def begin(producer_id: int, now_ms: int) -> Verification:
        return found.begin(producer_id, producer_epoch=0, sequence=0, adds_partition=False, now_ms=now_ms)

    begin(1, 0)
    begin(2, 10)
    begin(1, 99)
    with pytest.raises(KafkaError) as caught:
        begin(3, MAKES_ROOM_AFTER_MS - 1)
    assert caught.value.code == ErrorCode.POLICY_VIOLATION
    begin(3, MAKES_ROOM_AFTER_MS)
    assert found.get(1) is None and found.get(2) is not None
    found.expire(1009, 1000)
    assert len(found) == 2
    found.expire(1010, 1000)
    assert len(found) == 1 and found.get(3) is not None


# the index of aborted transactions


@st.composite
def histories(draw: st.DrawFn) -> list[AbortedEntry]:
    """What a log writes whose producers begin and end transactions at random offsets."""
    opened: dict[int, int] = {}
    entries: list[AbortedEntry] = []
    for offset in range(draw(st.integers(0, 60))):
        producer_id = draw(st.integers(1, 4))
        if producer_id not in opened:
            opened[producer_id] = offset
        elif draw(st.booleans()):
            first = opened.pop(producer_id)
            if draw(st.booleans()):
                stable = min(opened.values(), default=offset + 1)
                entries.append(AbortedEntry(AbortedTransaction(producer_id, first, offset), stable))
    return entries


def naive_search(entries: list[AbortedEntry], first_offset: int, end_offset: int) -> list[AbortedTransaction]:
    return [
        found.transaction
        for found in entries
        if found.transaction.last_offset >= first_offset and found.transaction.first_offset < end_offset
    ]


@given(histories(), st.integers(1, 8), st.integers(0, 60), st.booleans(), st.integers(0, 30))
def test_the_index_finds_what_overlaps(
    entries: list[AbortedEntry], kept: int, first_offset: int, reopened: bool, forgotten: int
) -> None:
    store = MemoryDisk().open_store("leader")
    index = AbortedTransactions(store, KEY, kept=kept)
    for found in entries:
        store.write(list(index.writes([found])))
        index.add([found])
    if reopened:
        index = AbortedTransactions(store, KEY, kept=kept)
    for end_offset in (first_offset, first_offset + 1, first_offset + 7, 100):
        assert index.find(first_offset, end_offset) == naive_search(entries, first_offset, end_offset)
    index.forget_before(forgotten)
    rest = [found for found in entries if found.transaction.last_offset >= forgotten]
    for one in (index, AbortedTransactions(store, KEY, kept=kept)):
        assert one.find(0, 100) == naive_search(rest, 0, 100)


class CountingStore(MemoryStore):
    """Counts scans of the index."""

    scans = 0

    def scan(self, family: str, *args: Any, **options: Any) -> Any:
        self.scans += family == keys.ABORTED_TRANSACTIONS
        return super().scan(family, *args, **options)


def test_a_look_up_near_the_end_touches_no_disk() -> None:
    disk = MemoryDisk()
    store = disk.open_store("leader")
    store.__class__ = CountingStore
    assert isinstance(store, CountingStore)
    index = AbortedTransactions(store, KEY, kept=10)
    for offset in range(1, 200, 2):
        entries = [AbortedEntry(AbortedTransaction(1, offset - 1, offset), offset + 1)]
        store.write(list(index.writes(entries)))
        index.add(entries)
    before = store.scans
    assert index.find(190, 200) == [AbortedTransaction(1, offset - 1, offset) for offset in range(191, 200, 2)]
    assert store.scans == before
    assert index.find(3, 7) == [AbortedTransaction(1, offset - 1, offset) for offset in (3, 5, 7)]
    assert store.scans == before + 1


# a log


def new_logs(store: MemoryStore | None = None, **options: Any) -> PartitionLogs:
    return open_logs(store or MemoryDisk().open_store("leader"), **options)


def positions(log: PartitionLog) -> tuple[int, int]:
    return log.last_stable_offset, log.high_watermark


def test_the_oldest_open_transaction_holds_the_last_stable_offset() -> None:
    async def test() -> None:
        logs = new_logs()
        log = logs.lookup(KEY)
        await logs.append(KEY, memoryview(build_batch([b"a", b"b"])))
        assert positions(log) == (2, 2)
        await append(logs, KEY, transactional_batch(1, 0, 3))
        await append(logs, KEY, transactional_batch(2, 0))
        assert positions(log) == (2, 6)
        await logs.end_transaction(KEY, end_of(2, committed=True))
        assert positions(log) == (2, 7)
        await append(logs, KEY, transactional_batch(2, 1))
        await logs.end_transaction(KEY, end_of(1, committed=False))
        assert positions(log) == (7, 9)
        await logs.end_transaction(KEY, end_of(2, committed=False))
        assert positions(log) == (10, 10)
        assert log.aborted_transactions(0, 10) == [AbortedTransaction(1, 2, 8), AbortedTransaction(2, 7, 9)]
        assert log.aborted_transactions(0, 7) == [AbortedTransaction(1, 2, 8)]
        assert log.aborted_transactions(9, 10) == [AbortedTransaction(2, 7, 9)]

    run(test())


def test_the_index_has_the_last_stable_offset_after_each_marker() -> None:
    async def test() -> None:
        store = MemoryDisk().open_store("leader")
        logs = new_logs(store)
        for producer_id in (1, 2, 3):
            await append(logs, KEY, transactional_batch(producer_id, 0))
        await logs.end_transaction(KEY, end_of(2, committed=False))
        # one turn: a transaction that ends, one that begins after it, and the end of the oldest
        await asyncio.gather(
            logs.end_transaction(KEY, end_of(1, committed=False)),
            append(logs, KEY, transactional_batch(2, 1)),
            logs.end_transaction(KEY, end_of(3, committed=False)),
            logs.end_transaction(KEY, end_of(2, committed=False)),
        )
        rows = [
            (keys.number_of(key), keys.parse_aborted_value(value))
            for key, value in store.scan(keys.ABORTED_TRANSACTIONS, b"")
        ]
        assert rows == [(3, (2, 1, 0)), (4, (1, 0, 2)), (6, (3, 2, 5)), (7, (2, 5, 8))]

    run(test())


def test_batches_and_markers_of_one_turn_share_a_write_and_wake_readers_once() -> None:
    async def test() -> None:
        logs = new_logs()
        log = logs.lookup(KEY)
        woken: list[tuple[int, int]] = []
        log.add_listener(lambda: woken.append(positions(log)))
        await asyncio.gather(
            append(logs, KEY, transactional_batch(1, 0)),
            append(logs, KEY, transactional_batch(1, 1)),
            logs.end_transaction(KEY, end_of(1, committed=True)),
            append(logs, KEY, transactional_batch(1, 2)),
        )
        assert woken == [(3, 4)]
        kinds = [(batch.is_control, batch.is_transactional, batch.producer_id) for batch in log.read(0, 10_000)]
        assert kinds == [(False, True, 1), (False, True, 1), (True, True, 1), (False, True, 1)]

    run(test())


def test_a_repeated_marker_is_confirmed_and_written_once() -> None:
    async def test() -> None:
        logs = new_logs()
        log = logs.lookup(KEY)
        await append(logs, KEY, transactional_batch(1, 0))
        marker = end_of(1, committed=False, epoch=1, version=2)
        await asyncio.gather(logs.end_transaction(KEY, marker), logs.end_transaction(KEY, marker))
        await logs.end_transaction(KEY, marker)
        assert positions(log) == (2, 2)
        assert log.aborted_transactions(0, 9) == [AbortedTransaction(1, 0, 1)]

    run(test())


def test_a_marker_for_a_partition_without_records_fences_older_epochs() -> None:
    async def test() -> None:
        logs = new_logs()
        await logs.end_transaction(KEY, end_of(1, committed=False, epoch=4, version=2))
        assert positions(logs.lookup(KEY)) == (1, 1)
        assert logs.lookup(KEY).aborted_transactions(0, 9) == []
        with pytest.raises(KafkaError) as caught:
            await append(logs, KEY, transactional_batch(1, 0, epoch=3))
        assert caught.value.code == STALE
        await append(logs, KEY, transactional_batch(1, 0, epoch=4))

    run(test())


def test_a_failed_write_leaves_the_transaction_open() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        logs = new_logs(disk.open_store("leader"))
        log = logs.lookup(KEY)
        await append(logs, KEY, transactional_batch(1, 0))
        disk.fail_next_writes(1)
        results = await asyncio.gather(
            logs.end_transaction(KEY, end_of(1, committed=False)),
            append(logs, KEY, transactional_batch(1, 1)),
            return_exceptions=True,
        )
        assert [getattr(result, "code", None) for result in results] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert positions(log) == (0, 1)
        assert log.aborted_transactions(0, 9) == []
        await logs.end_transaction(KEY, end_of(1, committed=False))
        assert positions(log) == (2, 2)

    run(test())


def test_all_is_there_again_after_a_crash() -> None:
    async def test() -> None:
        disk = MemoryDisk()
        logs = new_logs(disk.open_store("leader"))
        await append(logs, KEY, transactional_batch(1, 0))
        await append(logs, KEY, transactional_batch(2, 0))
        await logs.end_transaction(KEY, end_of(1, committed=False, coordinator_epoch=6))
        disk.crash()
        logs = new_logs(disk.open_store("leader"))
        log = logs.lookup(KEY)
        assert positions(log) == (1, 3)
        assert log.aborted_transactions(0, 3) == [AbortedTransaction(1, 0, 2)]
        with pytest.raises(KafkaError) as caught:
            await logs.end_transaction(KEY, end_of(1, committed=True, coordinator_epoch=5))
        assert caught.value.code == FENCED
        await append(logs, KEY, transactional_batch(2, 1))
        await logs.end_transaction(KEY, end_of(2, committed=True))
        assert positions(log) == (5, 5)

    run(test())


def test_an_open_transaction_outlives_the_expiry_of_its_producer() -> None:
    async def test() -> None:
        clock = StillClock()
        logs = new_logs(clock=clock)
        await append(logs, KEY, transactional_batch(1, 0))
        await append(logs, KEY, transactional_batch(2, 0))
        await logs.end_transaction(KEY, end_of(2, committed=True))
        clock.value_ms += 10 * 86_400_000
        await logs.retry_and_expire()
        log = logs.lookup(KEY)
        assert [producer_id for producer_id, _ in log.producers.items()] == [1]
        assert positions(log) == (0, 3)

    run(test())


def test_a_transaction_of_the_same_turn_does_not_make_the_bytes_before_it_unstable() -> None:
    async def test() -> None:
        logs = new_logs()
        log = logs.lookup(KEY)
        plain = build_batch([b"x" * 100])
        await asyncio.gather(
            logs.append(KEY, memoryview(plain)),
            append(logs, KEY, transactional_batch(1, 0)),
            logs.append(KEY, memoryview(plain)),
        )
        assert log.stable_bytes == len(plain) < log.appended_bytes
        await logs.end_transaction(KEY, end_of(1, committed=True))
        assert log.stable_bytes == log.appended_bytes

    run(test())


def test_a_fenced_producer_is_told_so_even_where_its_transaction_is_not_confirmed() -> None:
    async def test() -> None:
        logs = new_logs()
        await append(logs, KEY, transactional_batch(1, 0, epoch=3))
        late = transactional_batch(1, 0, epoch=2)
        with pytest.raises(KafkaError) as caught:
            await logs.append(KEY, late, transactional=TransactionalAppend(None, is_verification_required=True))
        assert caught.value.code == STALE

    run(test())


def test_markers_have_the_topics_timestamp_type() -> None:
    async def test() -> None:
        for configs, expected in (({}, False), ({"message.timestamp.type": "LogAppendTime"}, True)):
            one = open_logs(MemoryDisk().open_store("leader"), topic(configs=configs), clock=StillClock(777))
            await one.end_transaction(KEY, end_of(1, committed=True))
            marker = read_header(one.lookup(KEY).read(0, 1000)[0].data)
            assert (marker.is_log_append_time, marker.max_timestamp_ms) == (expected, 777)
            assert marker.partition_leader_epoch == 3

    run(test())


def test_a_topic_that_is_deleted_leaves_nothing_of_its_transactions() -> None:
    async def test() -> None:
        store = MemoryDisk().open_store("leader")
        logs = new_logs(store)
        await append(logs, KEY, transactional_batch(1, 0))
        await logs.end_transaction(KEY, end_of(1, committed=False))
        families = (keys.ABORTED_TRANSACTIONS, keys.PRODUCERS)
        assert [len(list(store.scan(family, b""))) for family in families] == [1, 1]
        logs.on_view(view_of(topic()), view_of(version=2))
        assert [len(list(store.scan(family, b""))) for family in families] == [0, 0]

    run(test())


@pytest.mark.parametrize("needs_word", [True, False])
def test_a_transactional_batch_must_have_a_producer_and_a_confirmed_transaction(needs_word: bool) -> None:
    async def test() -> None:
        logs = new_logs()
        transactional = TransactionalAppend(None, is_verification_required=needs_word)
        nobody = memoryview(build_batch(transactional=True))
        with pytest.raises(KafkaError) as caught:
            await logs.append(KEY, nobody, transactional=transactional)
        assert caught.value.code == NOT_IN_IT
        appended = logs.append(KEY, transactional_batch(1, 0), transactional=transactional)
        if not needs_word:
            assert (await appended).base_offset == 0
            return
        with pytest.raises(KafkaError) as caught:
            await appended
        assert caught.value.code == NOT_IN_IT

    run(test())
