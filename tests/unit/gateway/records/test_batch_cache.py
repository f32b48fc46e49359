"""The read-ahead cache against a naive one, and the splitting of payloads."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from kshare_core.identifiers import TopicPartition
from kshare_gateway.records.batch_cache import (
    NAMED_RUNS,
    OVERHEAD_BYTES,
    BatchCache,
    CachedBatch,
    OffsetRun,
    Pin,
    split_batches,
)
from support.environment.traced_memory import traced_memory

P0, P1 = TopicPartition(bytes(16), 0), TopicPartition(bytes(16), 1)
BATCH_OFFSETS = 3


NO_EPOCH = -1
"""Of batches that are too short to have a header."""


def cache_of(limit_bytes: int, *, epoch_zero_is_any: bool = True) -> BatchCache:
    """A cache that counts nothing but records."""
    return BatchCache(limit_bytes, epoch_zero_is_any=epoch_zero_is_any, overhead_bytes=0)


def batch(number: int, size: int = 10) -> CachedBatch:
    """The batch of offsets 3n to 3n + 2."""
    return CachedBatch(number * BATCH_OFFSETS, number * BATCH_OFFSETS + 2, memoryview(bytes(size)))


def batch_of_epoch(first: int, last: int, leader_epoch: int) -> CachedBatch:
    data = bytes(12) + leader_epoch.to_bytes(4, "big") + bytes(45)
    return CachedBatch(first, last, memoryview(data))


def raw_batch(base_offset: int, last_offset: int, size: int) -> bytes:
    head = struct.pack(">qi", base_offset, size - 12) + bytes(11) + struct.pack(">i", last_offset - base_offset)
    return head + bytes(size - len(head))


def runs_of(numbers: set[int]) -> list[OffsetRun]:
    runs: list[OffsetRun] = []
    for number in sorted(numbers):
        first, last = number * BATCH_OFFSETS, number * BATCH_OFFSETS + 2
        if runs and runs[-1].last_offset + 1 == first:
            runs[-1] = OffsetRun(runs[-1].first_offset, last, NO_EPOCH)
        else:
            runs.append(OffsetRun(first, last, NO_EPOCH))
    return runs


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["put", "get"]), st.integers(0, 12)), max_size=60))
def test_runs_and_the_oldest_used_going_first(steps: list[tuple[str, int]]) -> None:
    cache = cache_of(50)
    used: dict[int, None] = {}
    for step, number in steps:
        if step == "put":
            cache.put(P0, batch(number))
            used.setdefault(number)
            if len(used) > 5:
                del used[next(iter(used))]
        else:
            found = cache.get(P0, number * BATCH_OFFSETS, NO_EPOCH)
            assert (found is None) == (number not in used)
            if number in used:
                used[number] = used.pop(number)
        pin = cache.pin(P0)
        assert pin.runs == runs_of(set(used))
        cache.unpin(pin)
        assert cache.size_bytes == 10 * len(used)


def test_a_request_finds_what_it_named_and_later_ones_do_not_name_what_was_evicted() -> None:
    cache = cache_of(30)
    for number in range(3):
        cache.put(P0, batch(number))
    first = cache.pin(P0)
    assert first.runs == [OffsetRun(0, 8, NO_EPOCH)]
    cache.put(P1, batch(0))
    cache.put(P1, batch(1))
    assert (cache.size_bytes, cache.retired_bytes) == (30, 20)
    second = cache.pin(P0)
    assert second.runs == [OffsetRun(6, 8, NO_EPOCH)]
    assert all(cache.get(P0, number * BATCH_OFFSETS, NO_EPOCH) for number in range(3))
    cache.unpin(first)
    assert [number for number in range(3) if cache.get(P0, number * BATCH_OFFSETS, NO_EPOCH)] == [2]
    assert (cache.size_bytes, cache.retired_bytes) == (30, 0)
    cache.unpin(second)


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "pin", "unpin", "shrink"]), st.booleans(), st.integers(0, 12)),
        max_size=80,
    )
)
def test_whatever_a_request_named_is_there_until_it_ends(steps: list[tuple[str, bool, int]]) -> None:
    cache = cache_of(60)
    pins: list[Pin] = []
    found: list[Pin] = []
    """Those that still rely on their runs: at the limit, what retired first was dropped."""
    for step, is_first, number in steps:
        key = P0 if is_first else P1
        if step == "put":
            cache.put(key, batch(number))
        elif step == "pin":
            pins.append(cache.pin(key))
            found.append(pins[-1])
        elif step == "unpin" and pins:
            ended = pins.pop(number % len(pins))
            cache.unpin(ended)
            found = [pin for pin in found if pin is not ended]
        elif step == "shrink":
            cache.shrink(number * 5)
        assert cache.size_bytes <= 60 and cache.retired_bytes <= 60
        if cache.retired_bytes == 60:
            found = []
        assert all(has_what_was_named(cache, pin) for pin in found)
    for pin in pins:
        cache.unpin(pin)
    assert cache.retired_bytes == 0


def has_what_was_named(cache: BatchCache, pin: Pin) -> bool:
    firsts = (offset for run in pin.runs for offset in range(run.first_offset, run.last_offset, BATCH_OFFSETS))
    return all(cache.get(pin.key, first, NO_EPOCH) is not None for first in firsts)


def test_a_partition_that_is_always_pinned_keeps_to_the_limit() -> None:
    """As under consumers of which one is always waiting for a response: each began before the last one ended."""
    cache = cache_of(1_000)
    pin = cache.pin(P0)
    for number in range(5_000):
        cache.put(P0, batch(number))
        pin, ended = cache.pin(P0), pin
        cache.unpin(ended)
        assert cache.size_bytes <= 1_000 and cache.retired_bytes <= 10
    assert pin.runs == [OffsetRun(4_900 * BATCH_OFFSETS, 5_000 * BATCH_OFFSETS - 1, NO_EPOCH)]


def test_what_retires_while_a_request_does_not_end_is_bounded() -> None:
    cache = cache_of(1_000)
    cache.put(P0, batch(0))
    pin = cache.pin(P0)
    for number in range(1, 1_000):
        cache.put(P0, batch(number))
        assert cache.size_bytes <= 1_000 and cache.retired_bytes <= 1_000
    cache.unpin(pin)
    assert cache.retired_bytes == 0


def test_at_most_some_runs_are_named_near_the_place_that_is_read() -> None:
    cache = cache_of(10_000)
    for number in range(0, 80, 2):
        cache.put(P0, batch(number))
    cache.advance(P0, 40 * BATCH_OFFSETS)
    named = cache.pin(P0).runs
    assert len(named) == NAMED_RUNS
    assert named[0].first_offset < 40 * BATCH_OFFSETS <= named[-1].last_offset
    assert OffsetRun(120, 122, NO_EPOCH) in named


def test_overlapping_and_oversized_batches_are_not_kept() -> None:
    cache = cache_of(100)
    cache.put(P0, batch(1))
    cache.put(P0, CachedBatch(2, 3, memoryview(bytes(5))))
    cache.put(P0, CachedBatch(5, 9, memoryview(bytes(5))))
    cache.put(P0, batch(5, size=101))
    assert cache.pin(P0).runs == [OffsetRun(3, 5, NO_EPOCH)]
    assert cache.size_bytes == 10


def test_batches_of_another_leader_epoch_are_other_records() -> None:
    """After a leader's disk was lost, its log has other records at the same offsets."""
    cache = cache_of(1000)
    cache.put(P0, batch_of_epoch(0, 4, 5))
    cache.put(P0, batch_of_epoch(5, 9, 5))
    cache.put(P0, batch_of_epoch(10, 14, 6))
    pin = cache.pin(P0)
    assert pin.runs == [OffsetRun(0, 9, 5), OffsetRun(10, 14, 6)]
    assert cache.get(P0, 0, 6) is None
    cache.put(P0, batch_of_epoch(0, 7, 6))
    assert cache.pin(P0).runs == [OffsetRun(0, 7, 6), OffsetRun(10, 14, 6)]
    relied_on = cache.get(P0, 5, 5)
    assert relied_on is not None and relied_on.last_offset == 9
    cache.unpin(pin)
    found = cache.get(P0, 0, 6)
    assert found is not None and found.last_offset == 7
    assert cache.get(P0, 5, 5) is None
    assert cache.size_bytes == 2 * len(found.data)


def test_epoch_zero_of_an_existing_cluster_is_an_epoch_like_the_others() -> None:
    from_older_leaders, of_brokers = cache_of(1000), cache_of(1000, epoch_zero_is_any=False)
    for cache in (from_older_leaders, of_brokers):
        cache.put(P0, batch_of_epoch(0, 4, 5))
    assert from_older_leaders.get(P0, 0, 0) is not None and of_brokers.get(P0, 0, 0) is None
    of_brokers.put(P0, batch_of_epoch(0, 4, 0))
    assert of_brokers.get(P0, 0, 0) is not None and of_brokers.get(P0, 0, 5) is None


def test_how_far_is_cached_ahead() -> None:
    cache = cache_of(1000)
    for number in (0, 1, 3):
        cache.put(P0, batch(number))
    assert [cache.advance(P0, offset) for offset in (0, 4, 6, 9, 12)] == [6, 6, 6, 12, 12]
    assert cache.advance(P1, 5) == 5


def test_a_deleted_topic_is_forgotten() -> None:
    cache = cache_of(1000)
    cache.put(P0, batch(0))
    cache.put(TopicPartition(bytes([1] * 16), 0), batch(0))
    cache.drop_topic(bytes(16))
    assert cache.size_bytes == 10 and cache.get(P0, 0, NO_EPOCH) is None


def test_a_partition_whose_log_began_anew_is_forgotten_and_cached_again() -> None:
    cache = cache_of(1000)
    cache.put(P0, batch(0))
    cache.put(P1, batch(0))
    pin = cache.pin(P0)
    cache.drop_partition(P0)
    assert cache.get(P0, 0, NO_EPOCH) is None and cache.get(P1, 0, NO_EPOCH) is not None
    assert cache.retired_bytes == 0
    cache.unpin(pin)
    assert cache.pin(P0).runs == []
    cache.put(P0, batch(0))
    assert cache.get(P0, 0, NO_EPOCH) is not None


@given(sizes=st.lists(st.tuples(st.integers(61, 200), st.integers(1, 9)), max_size=6), cut=st.integers(0, 60))
def test_payloads_are_split_by_their_headers(sizes: list[tuple[int, int]], cut: int) -> None:
    offset, expected, payload = 100, [], b""
    for size, count in sizes:
        raw = raw_batch(offset, offset + count - 1, size)
        expected.append((offset, offset + count - 1, raw))
        payload += raw
        offset += count
    half = raw_batch(offset, offset, 61)[:cut]
    assert [
        (b.base_offset, b.last_offset, bytes(b.data)) for b in split_batches(memoryview(payload + half))
    ] == expected


def test_a_payload_that_lies_about_its_length() -> None:
    lying = struct.pack(">qi", 0, -5) + bytes(80)
    assert split_batches(memoryview(lying)) == []
    assert split_batches(memoryview(struct.pack(">qi", 0, 1 << 30) + bytes(80))) == []


def test_a_cache_that_shrinks_loses_the_least_recently_used_batches_but_none_in_use() -> None:
    cache = cache_of(1000)
    for number in range(10):
        cache.put(P0, batch(number))
        cache.put(P1, batch(number))
    cache.get(P0, 0, NO_EPOCH)
    pin = cache.pin(P1)
    cache.shrink(130)
    assert (cache.size_bytes, cache.retired_bytes) == (130, 40)
    assert [number for number in range(10) if cache.get(P0, number * BATCH_OFFSETS, NO_EPOCH)] == [0, *range(4, 10)]
    assert all(cache.get(P1, number * BATCH_OFFSETS, NO_EPOCH) for number in range(10))
    cache.unpin(pin)
    assert [number for number in range(10) if cache.get(P1, number * BATCH_OFFSETS, NO_EPOCH)] == list(range(4, 10))
    cache.put(P0, batch(20))
    assert cache.size_bytes == 140, "it may grow up to its limit again"


def test_the_limit_counts_what_short_batches_need_in_memory() -> None:
    """A batch with one short record has 75 bytes and needs more than ten times as much."""
    count, size = 2_000, 75
    cache = BatchCache(1 << 30)
    with traced_memory() as used_bytes:
        for offset in range(count):
            for each in split_batches(memoryview(raw_batch(offset, offset, size))):
                cache.put(TopicPartition(P0.topic_id, 0), each)
        held = used_bytes()
    assert cache.size_bytes == count * (size + OVERHEAD_BYTES)
    assert 0.8 <= cache.size_bytes / held <= 1.25
    small = BatchCache(cache.size_bytes // 2)
    for offset in range(count):
        small.put(P0, CachedBatch(offset, offset, memoryview(bytes(size))))
    assert sum(small.get(P0, offset, 0) is not None for offset in range(count)) == count // 2
