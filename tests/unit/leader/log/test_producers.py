"""Idempotent producers: Kafka's rules one by one, and against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare_core.errors import ErrorCode, KafkaError
from kshare_leader.log.producers.entries import (
    BATCHES_KEPT,
    EVICTED_AFTER_MS,
    MAX_SEQUENCE,
    ProducerEntry,
    ProducerTable,
    SentBatch,
    check_producer,
    decode_producer,
    encode_producer,
    entry_after,
    find_duplicate,
    sequence_after,
    sequence_before,
)
from kshare_wire.record_batches import BatchHeader


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 5) -> BatchHeader:
    return BatchHeader(0, 0, 100, -1, 2, 0, 0, count - 1, 0, 0, producer_id, epoch, sequence, count)


def entry_of(*batches: BatchHeader) -> ProducerEntry:
    entry, offset = None, 0
    for batch in batches:
        entry = entry_after(entry, batch, offset, 0)
        offset += batch.record_count
    assert entry is not None
    return entry


NEXT_TO_LAST = header(MAX_SEQUENCE - 1, 2)
SIX = [header(sequence, 10) for sequence in range(0, 60, 10)]

CASES: list[tuple[str, ProducerEntry | None, BatchHeader, ErrorCode | int | None]] = [
    ("unknown producer at 0", None, header(0), None),
    ("unknown producer anywhere", None, header(77), None),
    ("unknown producer without an epoch", None, header(0, epoch=-1), None),
    ("unknown producer with a negative epoch", None, header(0, epoch=-2), ErrorCode.INVALID_PRODUCER_EPOCH),
    ("next sequence", entry_of(header(0, 10)), header(10), None),
    ("gap", entry_of(header(0, 10)), header(11), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("overlap", entry_of(header(0, 10)), header(9), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("back to 0", entry_of(header(3)), header(0), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("older epoch", entry_of(header(0, epoch=2)), header(1, epoch=1), ErrorCode.INVALID_PRODUCER_EPOCH),
    ("a copy of an older epoch", entry_of(header(0, epoch=2)), header(0, epoch=1), ErrorCode.INVALID_PRODUCER_EPOCH),
    ("new epoch at 0", entry_of(header(0)), header(0, epoch=1), None),
    ("new epoch at 1", entry_of(header(0)), header(1, epoch=1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("wrap to 0", entry_of(header(MAX_SEQUENCE)), header(0), None),
    ("wrap within a batch", entry_of(header(MAX_SEQUENCE - 1, 5)), header(3), None),
    ("after the last sequence", entry_of(NEXT_TO_LAST), header(1), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("copy of the newest", entry_of(*SIX), SIX[5], 50),
    ("copy of the fifth", entry_of(*SIX), SIX[1], 10),
    ("copy of the sixth", entry_of(*SIX), SIX[0], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("same start, other length", entry_of(*SIX), header(50, 9), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("copy of a batch that wraps", entry_of(header(MAX_SEQUENCE - 1, 5)), header(MAX_SEQUENCE - 1, 5), 0),
]


@pytest.mark.parametrize(("entry", "batch", "expected"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_kafkas_rules(entry: ProducerEntry | None, batch: BatchHeader, expected: ErrorCode | int | None) -> None:
    duplicate = find_duplicate(entry, batch)
    if isinstance(expected, ErrorCode):
        assert duplicate is None
        with pytest.raises(KafkaError) as caught:
            check_producer(entry, batch)
        assert caught.value.code == expected
    elif expected is None:
        assert duplicate is None
        check_producer(entry, batch)
    else:
        assert duplicate is not None and duplicate.base_offset == expected


@given(st.integers(0, MAX_SEQUENCE), st.integers(0, MAX_SEQUENCE))
def test_sequences_go_around(sequence: int, steps: int) -> None:
    later = sequence + steps
    assert sequence_after(sequence, steps) == (later if later <= MAX_SEQUENCE else later - MAX_SEQUENCE - 1)
    assert sequence_before(sequence_after(sequence, steps), steps) == sequence


@given(
    st.integers(0, (1 << 15) - 1),
    st.integers(0, 1 << 50),
    st.lists(
        st.builds(SentBatch, st.integers(0, MAX_SEQUENCE), st.integers(0, 1 << 62), st.integers(0, MAX_SEQUENCE)),
        min_size=1,
        max_size=BATCHES_KEPT,
    ),
)
def test_entries_survive_the_disk(epoch: int, now_ms: int, batches: list[SentBatch]) -> None:
    entry = ProducerEntry(epoch, now_ms, tuple(batches))
    assert decode_producer(encode_producer(entry)) == entry


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(0, MAX_SEQUENCE))
def test_exactly_the_last_five_are_duplicates(counts: list[int], first: int) -> None:
    entry, offset, sequence = None, 1000, first
    sent: list[tuple[BatchHeader, int]] = []
    for count in counts:
        batch = header(sequence, count)
        assert find_duplicate(entry, batch) is None
        check_producer(entry, batch)
        entry = entry_after(entry, batch, offset, 7)
        sent.append((batch, offset))
        sequence, offset = sequence_after(sequence, count), offset + count
    for age, (batch, base_offset) in enumerate(reversed(sent)):
        duplicate = find_duplicate(entry, batch)
        if age < BATCHES_KEPT:
            assert duplicate is not None and duplicate.base_offset == base_offset
        else:
            assert duplicate is None


def test_expiry_takes_the_silent_ones_only() -> None:
    table = ProducerTable([(number, ProducerEntry(0, 100 * number, ())) for number in (3, 1, 2)])
    assert list(table.expired(1200, 1000)) == [1, 2]
    table.put(1, ProducerEntry(0, 1200, ()))
    assert list(table.expired(1200, 1000)) == [2]


def evicted(table: ProducerTable, changed: dict[int, ProducerEntry | None], now_ms: int) -> int | None:
    """The producer that a new one evicts, as the first of its turn."""
    return table.make_room(added_count=0, changed=changed, idle=table.idle(), now_ms=now_ms)


def test_a_full_table_evicts_the_longest_silent_producer_after_two_minutes() -> None:
    table = ProducerTable([(1, ProducerEntry(0, 0, ())), (2, ProducerEntry(0, 5, ()))], limit=2)
    assert evicted(ProducerTable([], limit=1), {}, 0) is None
    for now_ms in (120_000, 180_000):
        assert evicted(table, {}, now_ms) == 1
    assert evicted(table, {1: None}, 120_005) == 2
    for gone, now_ms in (((), 119_999), ((1,), 120_004), ((1, 2), 180_000)):
        with pytest.raises(KafkaError) as caught:
            evicted(table, dict.fromkeys(gone), now_ms)
        assert caught.value.code == ErrorCode.POLICY_VIOLATION
    table.put(1, ProducerEntry(0, 10, ()))
    assert evicted(table, {}, 180_000) == 2


def test_an_append_before_the_clock_was_set_back_holds_up_neither_expiry_nor_eviction() -> None:
    day_ms = 24 * 60 * 60 * 1000
    table = ProducerTable([(1, ProducerEntry(0, day_ms, ()))], limit=3)
    table.put(2, ProducerEntry(0, 0, ()))
    table.put(3, ProducerEntry(0, 5, ()))
    assert list(table.expired(1_005, 1_000)) == [2, 3]
    assert list(table.expired(day_ms + 1, day_ms)) == [2], "also when that time has come"
    assert evicted(table, {}, EVICTED_AFTER_MS) == 2
    table.put(2, ProducerEntry(0, EVICTED_AFTER_MS, ()))
    assert evicted(table, {}, EVICTED_AFTER_MS + 5) == 3
    with pytest.raises(KafkaError):
        evicted(table, {3: None}, EVICTED_AFTER_MS + 5)


class CountedChanges(dict[int, ProducerEntry | None]):
    """The pending changes of a turn, with a count of the look-ups."""

    looked_up = 0

    def __contains__(self, key: object) -> bool:
        self.looked_up += 1
        return super().__contains__(key)


def test_the_evictions_of_a_turn_look_at_each_producer_once() -> None:
    open_at, count = 8, 500
    in_transactions = [(number, ProducerEntry(0, 0, (), -1, open_at)) for number in range(count)]
    silent = [(number, ProducerEntry(0, 0, ())) for number in range(count, 2 * count)]
    table = ProducerTable([*in_transactions, *silent], limit=2 * count)
    changed, idle = CountedChanges(), table.idle()
    for number in range(count, 2 * count):
        gone = table.make_room(added_count=0, changed=changed, idle=idle, now_ms=EVICTED_AFTER_MS)
        assert gone == number
        changed[number] = None
    assert changed.looked_up == count
