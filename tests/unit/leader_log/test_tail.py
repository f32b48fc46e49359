"""The tail of a log in memory: limits, and reads without copies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kshare_core.identifiers import TopicPartition
from kshare_leader.log.tail import TailCache
from kshare_leader.ports import StoredBatch

KEYS = [TopicPartition(b"t" * 16, number) for number in range(4)]


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 5), st.integers(1, 400)), max_size=120),
    st.integers(100, 1000),
    st.integers(100, 2000),
)
def test_tails_keep_both_limits_and_hold_the_newest(
    appends: list[tuple[TopicPartition, int, int]], partition_limit: int, node_limit: int
) -> None:
    cache = TailCache(partition_limit_bytes=partition_limit, node_limit_bytes=node_limit)
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
        assert tail.size_bytes == sum(batch.length for batch in held)
        read = tail.read(tail.start_offset, 1 << 30, at_least_one=False)
        assert len(read) == len(held) and all(one is other for one, other in zip(read, held, strict=True))


def test_the_least_recently_used_partition_loses_first() -> None:
    cache = TailCache(partition_limit_bytes=1000, node_limit_bytes=1000)
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
