"""The tail of a log in memory: limits, and reads without copies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kshare_core.identifiers import TopicPartition
from kshare_leader.log.tail import TailCache
from kshare_leader.ports import STORED_BATCH_OVERHEAD_BYTES, StoredBatch
from support.environment.traced_memory import traced_memory

KEYS = [TopicPartition(b"t" * 16, number) for number in range(4)]


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 5), st.integers(1, 400)), max_size=120),
    st.integers(100, 1000),
    st.integers(100, 2000),
    st.sampled_from([0, 30]),
)
def test_tails_keep_both_limits_and_hold_the_newest(
    appends: list[tuple[TopicPartition, int, int]], partition_limit: int, node_limit: int, overhead: int
) -> None:
    cache = TailCache(partition_limit_bytes=partition_limit, node_limit_bytes=node_limit, overhead_bytes=overhead)
    tails = {key: cache.open(key, 0) for key in KEYS}
    all_batches: dict[TopicPartition, list[StoredBatch]] = {key: [] for key in KEYS}
    for key, count, size in appends:
        base = all_batches[key][-1].last_offset + 1 if all_batches[key] else 0
        batch = StoredBatch(base, base + count - 1, b"x" * size)
        all_batches[key].append(batch)
        cache.extend(key, [batch])
        assert all(tail.size_bytes <= partition_limit for tail in tails.values())
        assert cache.size_bytes == sum(tail.size_bytes for tail in tails.values()) <= node_limit
    for key, tail in tails.items():
        held = [batch for batch in all_batches[key] if batch.last_offset >= tail.start_offset]
        assert tail.size_bytes == sum(batch.length + overhead for batch in held)
        read = tail.read(tail.start_offset, 1 << 30, at_least_one=False)
        assert len(read) == len(held) and all(one is other for one, other in zip(read, held, strict=True))


def test_the_least_recently_used_partition_loses_first() -> None:
    cache = TailCache(partition_limit_bytes=1000, node_limit_bytes=1000, overhead_bytes=0)
    first, second, third = (cache.open(key, 0) for key in KEYS[:3])
    cache.extend(KEYS[0], [StoredBatch(0, 0, b"x" * 400)])
    cache.extend(KEYS[1], [StoredBatch(0, 0, b"x" * 400)])
    cache.touch(KEYS[0])
    cache.extend(KEYS[2], [StoredBatch(0, 0, b"x" * 300)])
    assert (first.size_bytes, second.size_bytes, third.size_bytes) == (400, 0, 300)
    assert second.start_offset == 1


def test_a_forgotten_tail_gives_its_bytes_back() -> None:
    cache = TailCache()
    cache.open(KEYS[0], 0)
    cache.extend(KEYS[0], [StoredBatch(0, 0, b"x" * 400)])
    cache.forget(KEYS[0])
    cache.extend(KEYS[0], [StoredBatch(1, 1, b"x" * 400)])
    assert cache.size_bytes == 0


@given(
    st.lists(st.integers(1, 5), max_size=30),
    st.dictionaries(st.integers(0, 100), st.one_of(st.none(), st.integers(1, 300))),
    st.integers(0, 120),
    st.integers(0, 120),
    st.integers(100, 4000),
    st.sampled_from([0, 30]),
)
def test_a_tail_follows_compaction_and_a_new_start(
    counts: list[int], changes: dict[int, int | None], start_offset: int, fetch_offset: int, limit: int, overhead: int
) -> None:
    cache = TailCache(partition_limit_bytes=limit, node_limit_bytes=limit, overhead_bytes=overhead)
    tail = cache.open(KEYS[0], 0)
    base_offset = 0
    left: list[StoredBatch] = []
    for count in counts:
        batch = StoredBatch(base_offset, base_offset + count - 1, b"x" * 100)
        cache.extend(KEYS[0], [batch])
        left.append(batch)
        base_offset += count
    changed = {
        batch.base_offset: None if size is None else batch._replace(data=b"y" * size)
        for batch in left
        for size in [changes.get(batch.base_offset, 0)]
        if size != 0
    }
    cache.replace(KEYS[0], changed)
    cache.drop_before(KEYS[0], start_offset)
    kept = [changed.get(batch.base_offset, batch) for batch in left]
    held = [batch for batch in kept if batch is not None and batch.last_offset >= tail.start_offset]
    assert all(batch.last_offset >= min(start_offset, tail.start_offset) for batch in held)
    assert cache.size_bytes == tail.size_bytes == sum(batch.length + overhead for batch in held)
    at = max(fetch_offset, tail.start_offset)
    expected = [batch for batch in held if batch.last_offset >= at]
    assert tail.read(at, 1 << 30, at_least_one=False) == expected
    cache.extend(KEYS[0], [StoredBatch(base_offset, base_offset, b"z")])
    assert tail.read(base_offset, 1 << 30, at_least_one=True)[0].data == b"z"


def test_tails_that_shrink_keep_the_newest_batches_and_may_grow_again() -> None:
    cache = TailCache(partition_limit_bytes=1000, node_limit_bytes=1000, overhead_bytes=0)
    idle, busy = cache.open(KEYS[0], 0), cache.open(KEYS[1], 0)
    for offset in range(4):
        cache.extend(KEYS[0], [StoredBatch(offset, offset, b"x" * 100)])
    for offset in range(4):
        cache.extend(KEYS[1], [StoredBatch(offset, offset, b"x" * 100)])
    cache.shrink(800)
    assert cache.size_bytes == 800
    cache.shrink(250)
    assert (idle.size_bytes, busy.size_bytes, cache.size_bytes) == (0, 200, 200)
    assert [one.base_offset for one in busy.read(0, 1000, at_least_one=False)] == [2, 3]
    cache.extend(KEYS[1], [StoredBatch(4, 4, b"x" * 100)])
    assert cache.size_bytes == 300


def test_the_limit_counts_what_short_batches_need_in_memory() -> None:
    """A batch with one short record has 75 bytes and needs four times as much."""
    count, size = 2_000, 75
    cache = TailCache()
    cache.open(KEYS[0], 1_000)
    with traced_memory() as used_bytes:
        for offset in range(1_000, 1_000 + count):
            cache.extend(KEYS[0], [StoredBatch(offset, offset, bytes(size))])
        held = used_bytes()
    assert cache.size_bytes == count * (size + STORED_BATCH_OVERHEAD_BYTES)
    assert 0.8 <= cache.size_bytes / held <= 1.25
