"""Recent batches of every log in memory, so that a read of fresh records needs no disk.

Each partition has a `Tail`: its newest batches up to PARTITION_TAIL_LIMIT_BYTES. `TailCache` bounds the sum over the
node: above `kshare.leader.tail.bytes` the least recently used partition loses its oldest batches first. Both count
STORED_BATCH_OVERHEAD_BYTES for each batch, more than a short record has. Batches are looked up by bisection over base
offsets and returned without copies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from kshare_core.identifiers import TopicPartition
from kshare_leader.ports import STORED_BATCH_OVERHEAD_BYTES, StoredBatch

PARTITION_TAIL_LIMIT_BYTES = 128 * 1024 * 1024
NODE_TAIL_LIMIT_BYTES = 256 * 1024 * 1024

_DROPPED_SHARE = 8
"""A tail above its limit drops an eighth of the limit at once, so that dropping stays cheap per batch."""


class Tail:
    """The newest batches of one log, without gaps up to its end."""

    def __init__(self, end_offset: int, overhead_bytes: int = STORED_BATCH_OVERHEAD_BYTES) -> None:
        self._overhead_bytes = overhead_bytes
        self.start_offset = end_offset
        """The tail holds all batches from this offset on."""
        self.size_bytes = 0
        self._base_offsets: list[int] = []
        self._batches: list[StoredBatch] = []

    def extend(self, batches: list[StoredBatch]) -> int:
        """Adds batches at the end; returns their bytes."""
        self._batches.extend(batches)
        self._base_offsets.extend([batch.base_offset for batch in batches])
        added = self._bytes_of(batches)
        self.size_bytes += added
        return added

    def drop(self, size_bytes: int) -> int:
        """Drops the oldest batches until at least `size_bytes` are gone, or all; returns the bytes dropped."""
        dropped = count = 0
        while dropped < size_bytes and count < len(self._batches):
            dropped += len(self._batches[count].data) + self._overhead_bytes
            count += 1
        if count:
            self.start_offset = self._batches[count - 1].last_offset + 1
            del self._batches[:count]
            del self._base_offsets[:count]
            self.size_bytes -= dropped
        return dropped

    def drop_before(self, offset: int) -> int:
        """Drops batches that end before `offset`; returns their bytes."""
        count = bisect_right(self._base_offsets, offset)
        if count and self._batches[count - 1].last_offset >= offset:
            count -= 1
        return self.drop(self._bytes_of(self._batches[:count]))

    def replace(self, changed: Mapping[int, StoredBatch | None]) -> int:
        """Replaces batches by base offset (None: removes) where the tail has them; returns the change in bytes."""
        before = self.size_bytes
        removes = False
        for base_offset, batch in changed.items():
            index = bisect_right(self._base_offsets, base_offset) - 1
            if index < 0 or self._base_offsets[index] != base_offset:
                continue
            if batch is None:
                removes = True
            else:
                self.size_bytes += len(batch.data) - len(self._batches[index].data)
                self._batches[index] = batch
        if removes:
            kept = [batch for batch in self._batches if changed.get(batch.base_offset, batch) is not None]
            self._batches, self._base_offsets = kept, [batch.base_offset for batch in kept]
            self.size_bytes = self._bytes_of(kept)
        return self.size_bytes - before

    def read(self, fetch_offset: int, max_bytes: int, *, at_least_one: bool) -> list[StoredBatch]:
        """Batches from the one that holds `fetch_offset`, or from the next one; see TopicLog.read."""
        batches = self._batches
        index = bisect_right(self._base_offsets, fetch_offset) - 1
        if index < 0 or batches[index].last_offset < fetch_offset:
            index += 1
        found: list[StoredBatch] = []
        while index < len(batches):
            batch = batches[index]
            max_bytes -= len(batch.data)
            if max_bytes < 0 and (found or not at_least_one):
                break
            found.append(batch)
            index += 1
        return found

    def _bytes_of(self, batches: list[StoredBatch]) -> int:
        return sum([len(batch.data) for batch in batches]) + len(batches) * self._overhead_bytes


class TailCache:
    """The tails of all partitions of a node, with a common limit."""

    def __init__(
        self,
        *,
        partition_limit_bytes: int = PARTITION_TAIL_LIMIT_BYTES,
        node_limit_bytes: int = NODE_TAIL_LIMIT_BYTES,
        overhead_bytes: int = STORED_BATCH_OVERHEAD_BYTES,
    ) -> None:
        self._partition_limit_bytes = partition_limit_bytes
        self._node_limit_bytes = node_limit_bytes
        self._overhead_bytes = overhead_bytes
        self._tails: dict[TopicPartition, Tail] = {}  # the least recently used one first
        self.size_bytes = 0

    def open(self, key: TopicPartition, end_offset: int) -> Tail:
        """A new empty tail for a log that ends at `end_offset`."""
        self.forget(key)
        tail = self._tails[key] = Tail(end_offset, self._overhead_bytes)
        return tail

    def forget(self, key: TopicPartition) -> None:
        tail = self._tails.pop(key, None)
        if tail is not None:
            self.size_bytes -= tail.drop(tail.size_bytes)

    def touch(self, key: TopicPartition) -> None:
        """Marks the partition as most recently used."""
        tail = self._tails.pop(key, None)
        if tail is not None:
            self._tails[key] = tail

    def extend(self, key: TopicPartition, batches: list[StoredBatch]) -> None:
        """Adds newly stored batches to the partition's tail and enforces both limits."""
        tail = self._tails.get(key)
        if tail is None:
            return
        self.touch(key)
        self.size_bytes += tail.extend(batches)
        excess = tail.size_bytes - self._partition_limit_bytes
        if excess > 0:
            self.size_bytes -= tail.drop(excess + self._partition_limit_bytes // _DROPPED_SHARE)
        excess = self.size_bytes - self._node_limit_bytes
        if excess > 0:
            self._drop_least_recently_used(excess + self._node_limit_bytes // _DROPPED_SHARE)

    @property
    def limit_bytes(self) -> int:
        return self._node_limit_bytes

    def shrink(self, size_bytes: int) -> None:
        """Drops the oldest batches of the least recently used partitions until at most `size_bytes` are left."""
        if self.size_bytes > size_bytes:
            self._drop_least_recently_used(self.size_bytes - size_bytes)

    def drop_before(self, key: TopicPartition, offset: int) -> None:
        """Drops batches that end before `offset`, the new log start."""
        tail = self._tails.get(key)
        if tail is not None:
            self.size_bytes -= tail.drop_before(offset)

    def replace(self, key: TopicPartition, changed: Mapping[int, StoredBatch | None]) -> None:
        """Replaces or removes (None) batches that compaction changed, by base offset."""
        tail = self._tails.get(key)
        if tail is not None:
            self.size_bytes += tail.replace(changed)

    def _drop_least_recently_used(self, size_bytes: int) -> None:
        for tail in self._tails.values():
            dropped = tail.drop(size_bytes)
            self.size_bytes -= dropped
            size_bytes -= dropped
            if size_bytes <= 0:
                return
