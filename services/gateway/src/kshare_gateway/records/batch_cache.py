"""Cache of record batches from read-ahead and from earlier responses (docs/internals/gateway.md).

Batches of a log only ever lose superseded records, so no entry is invalidated by time. After a leader's disk was lost,
its log has other records at the same offsets, in a later leader epoch. So runs are named with the leader epoch of their
batches, and a batch replaces those of other epochs at its offsets. If a lost leader was given up, its partitions'
batches are dropped at once (`drop_partition`). The least recently used batches are evicted when the total exceeds the
limit (`kshare.gateway.cache.bytes`). The total counts OVERHEAD_BYTES for each batch: a batch with one short record is a
tenth of what it needs in memory. A ShareFetch names at most NAMED_RUNS runs of offsets near the partition's read
position, so that requests stay small. Batches are looked up by their base offset.

The leader's response to a ShareFetch relies on the named runs, so the request pins its partitions. A partition that
many consumers read is always pinned. A batch that is evicted meanwhile retires: later requests do not name it, and it
stays until the requests that may have named it have ended. Retired batches take at most the limit once more. Beyond
that the first to retire are dropped: a response that relies on one has its records released, to be delivered again.

`split_batches` cuts the payload of a Fetch by the batches' headers: the length is at bytes 8 to 12, the last offset's
delta at bytes 23 to 27 (Kafka's record batch format, magic 2).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from kshare_core.identifiers import TopicPartition
from kshare_wire.record_batches import leader_epoch_of

NAMED_RUNS = 8
OVERHEAD_BYTES = 800
"""Of a batch, beside its data: the objects that hold it, and its places in the dictionaries. Measured: 595 to 651 in
objects, and up to 950 of resident memory."""
BATCH_HEADER_SIZE = 61
_LENGTH_OFFSET = 12
_HEAD = struct.Struct(">qi")
_DELTA = struct.Struct(">i")


class CachedBatch(NamedTuple):
    """A whole record batch as stored in the log."""

    base_offset: int
    last_offset: int
    data: memoryview

    @property
    def leader_epoch(self) -> int:
        """The leader epoch in which the batch was written."""
        return leader_epoch_of(self.data)


class OffsetRun(NamedTuple):
    """A run of offsets with one leader epoch; both ends are included."""

    first_offset: int
    last_offset: int
    leader_epoch: int


class Pin(NamedTuple):
    """A request under way that relies on the batches of `runs`; `number` 0: on none."""

    key: TopicPartition
    number: int
    runs: list[OffsetRun]


def split_batches(payload: memoryview) -> list[CachedBatch]:
    """The whole batches at the start of a payload; a partial batch at the end is left out."""
    batches = []
    position, end = 0, len(payload)
    while position + BATCH_HEADER_SIZE <= end:
        base_offset, length = _HEAD.unpack_from(payload, position)
        stop = position + _LENGTH_OFFSET + length
        if stop > end or length < BATCH_HEADER_SIZE - _LENGTH_OFFSET:
            break
        (delta,) = _DELTA.unpack_from(payload, position + 23)
        batches.append(CachedBatch(base_offset, base_offset + delta, payload[position:stop]))
        position = stop
    return batches


class _Partition:
    """The cached batches of one partition by base offset, and the runs that they form."""

    __slots__ = (
        "batches",
        "first_offsets",
        "key",
        "last_offsets",
        "last_pin",
        "leader_epochs",
        "next_offset",
        "pins",
        "retired",
    )

    def __init__(self, key: TopicPartition) -> None:
        self.key = key
        """The same object for all its batches: that of each request would stay in memory with what it brought."""
        self.batches: dict[int, CachedBatch] = {}
        self.first_offsets: list[int] = []
        self.last_offsets: list[int] = []
        self.leader_epochs: list[int] = []
        """The leader epoch of each run."""
        self.next_offset = 0
        self.pins: dict[int, None] = {}
        """The numbers of the requests under way that rely on batches, in the order in which they began."""
        self.last_pin = 0
        self.retired: OrderedDict[int, tuple[int, CachedBatch]] = OrderedDict()
        """Retired batches by base offset, in the order in which they retired, with the newest request before that."""

    def overlapping(self, first: int, last: int) -> list[CachedBatch]:
        """The batches that overlap the offsets."""
        index = bisect_right(self.first_offsets, last) - 1
        if index < 0 or self.last_offsets[index] < first:
            return []
        return [batch for batch in self.batches.values() if batch.base_offset <= last and batch.last_offset >= first]

    def add_run(self, first: int, last: int, leader_epoch: int) -> bool:
        """Adds a run and merges it with neighbours of the same leader epoch; False if it overlaps a run."""
        index = bisect_right(self.first_offsets, first)
        if index and self.last_offsets[index - 1] >= first:
            return False
        if index < len(self.first_offsets) and self.first_offsets[index] <= last:
            return False
        epochs = self.leader_epochs
        joins_left = index > 0 and self.last_offsets[index - 1] + 1 == first and epochs[index - 1] == leader_epoch
        joins_right = (
            index < len(self.first_offsets) and self.first_offsets[index] == last + 1 and epochs[index] == leader_epoch
        )
        if joins_left and joins_right:
            self.last_offsets[index - 1] = self.last_offsets[index]
            del self.first_offsets[index], self.last_offsets[index], epochs[index]
        elif joins_left:
            self.last_offsets[index - 1] = last
        elif joins_right:
            self.first_offsets[index] = first
        else:
            self.first_offsets.insert(index, first)
            self.last_offsets.insert(index, last)
            epochs.insert(index, leader_epoch)
        return True

    def remove_run(self, first: int, last: int) -> None:
        """Removes offsets from the run that holds them all."""
        index = bisect_right(self.first_offsets, first) - 1
        run_first, run_last = self.first_offsets[index], self.last_offsets[index]
        if run_first == first and run_last == last:
            del self.first_offsets[index], self.last_offsets[index], self.leader_epochs[index]
        elif run_first == first:
            self.first_offsets[index] = last + 1
        elif run_last == last:
            self.last_offsets[index] = first - 1
        else:
            self.last_offsets[index] = first - 1
            self.first_offsets.insert(index + 1, last + 1)
            self.last_offsets.insert(index + 1, run_last)
            self.leader_epochs.insert(index + 1, self.leader_epochs[index])


class BatchCache:
    """An LRU cache of batches. `limit_bytes` counts records, and `overhead_bytes` for each batch; 0: nothing is kept.

    `epoch_zero_is_any`: a leader of an older version answers epoch 0 for every batch. An existing cluster's partitions
    begin with epoch 0, so it is an epoch like the others there.
    """

    def __init__(
        self, limit_bytes: int, *, epoch_zero_is_any: bool = True, overhead_bytes: int = OVERHEAD_BYTES
    ) -> None:
        self.limit_bytes = limit_bytes
        self._overhead_bytes = overhead_bytes
        self._epoch_zero_is_any = epoch_zero_is_any
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._order: OrderedDict[tuple[TopicPartition, int], None] = OrderedDict()
        self.size_bytes = 0
        """Of the batches that requests may name."""
        self.retired_bytes = 0

    def put(self, key: TopicPartition, batch: CachedBatch) -> None:
        """Adds a batch, unless it is already cached or larger than the whole limit.

        It replaces batches of other leader epochs.
        """
        size_bytes = self._size_of(batch)
        if size_bytes > self.limit_bytes:
            return
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = _Partition(key)
        leader_epoch = batch.leader_epoch
        same = partition.batches.get(batch.base_offset)
        if same is not None and same.leader_epoch == leader_epoch:
            return
        for other in partition.overlapping(batch.base_offset, batch.last_offset):
            if other.leader_epoch == leader_epoch:
                return
            self._take_out(key, partition, other.base_offset)
        if not partition.add_run(batch.base_offset, batch.last_offset, leader_epoch):
            return
        partition.batches[batch.base_offset] = batch
        self._order[(partition.key, batch.base_offset)] = None
        self.size_bytes += size_bytes
        if self.size_bytes > self.limit_bytes:
            self._evict(self.limit_bytes)

    def get(self, key: TopicPartition, base_offset: int, leader_epoch: int) -> CachedBatch | None:
        """The batch that was written in `leader_epoch`."""
        partition = self._partitions.get(key)
        if partition is None:
            return None
        batch = partition.batches.get(base_offset)
        if batch is not None and self._is_of_epoch(batch, leader_epoch):
            self._order.move_to_end((key, base_offset))
            return batch
        _, batch = partition.retired.get(base_offset, (0, None))
        return batch if batch is not None and self._is_of_epoch(batch, leader_epoch) else None

    def _is_of_epoch(self, batch: CachedBatch, leader_epoch: int) -> bool:
        return leader_epoch == batch.leader_epoch or (leader_epoch == 0 and self._epoch_zero_is_any)

    def pin(self, key: TopicPartition) -> Pin:
        """The runs to name in a request. Until `unpin`, the request finds their batches."""
        partition = self._partitions.get(key)
        if partition is None or not partition.batches:
            return Pin(key, 0, [])
        partition.last_pin += 1
        partition.pins[partition.last_pin] = None
        return Pin(key, partition.last_pin, self._named_runs(partition))

    @staticmethod
    def _named_runs(partition: _Partition) -> list[OffsetRun]:
        firsts = partition.first_offsets
        if len(firsts) <= NAMED_RUNS:
            return list(map(OffsetRun, firsts, partition.last_offsets, partition.leader_epochs))
        start = max(0, bisect_left(partition.last_offsets, partition.next_offset) - NAMED_RUNS // 2)
        stop = start + NAMED_RUNS
        epochs = partition.leader_epochs[start:stop]
        return list(map(OffsetRun, firsts[start:stop], partition.last_offsets[start:stop], epochs))

    def first_cached(self, keys: Iterable[TopicPartition], limit: int) -> list[TopicPartition]:
        """The first `limit` of the partitions that have cached batches."""
        if not self._partitions:
            return []
        return list(islice((key for key in keys if key in self._partitions), limit))

    def unpin(self, pin: Pin) -> None:
        """Its request has ended: retired batches that no other request relies on are dropped."""
        if not pin.number:
            return
        partition = self._partitions[pin.key]
        del partition.pins[pin.number]
        if partition.retired:
            oldest = next(iter(partition.pins), partition.last_pin + 1)
            while partition.retired and next(iter(partition.retired.values()))[0] < oldest:
                self._drop_oldest_retired(partition)
        self._forget_if_empty(pin.key, partition)

    def advance(self, key: TopicPartition, next_offset: int) -> int:
        """Sets the partition's read position; returns the first offset from there on that is not cached."""
        partition = self._partitions.get(key)
        if partition is None:
            return next_offset
        partition.next_offset = next_offset
        index = bisect_right(partition.first_offsets, next_offset) - 1
        if index >= 0 and partition.last_offsets[index] >= next_offset:
            return partition.last_offsets[index] + 1
        return next_offset

    def drop_topic(self, topic_id: bytes) -> None:
        """Drops a deleted topic."""
        for key in [key for key in self._partitions if key.topic_id == topic_id]:
            self.drop_partition(key)

    def drop_partition(self, key: TopicPartition) -> None:
        """Drops a partition whose log began anew."""
        partition = self._partitions.get(key)
        if partition is None:
            return
        for base_offset in list(partition.batches):
            self._take_out(key, partition, base_offset)
        while partition.retired:
            self._drop_oldest_retired(partition)
        self._forget_if_empty(key, partition)

    def shrink(self, size_bytes: int) -> None:
        """Evicts the least recently used batches until at most `size_bytes` are left; those in use retire."""
        self._evict(size_bytes)

    def _evict(self, size_bytes: int) -> None:
        while self.size_bytes > size_bytes:
            key, base_offset = next(iter(self._order))
            partition = self._partitions[key]
            self._take_out(key, partition, base_offset)
            self._forget_if_empty(key, partition)

    def _take_out(self, key: TopicPartition, partition: _Partition, base_offset: int) -> None:
        """The batch is named no more; it retires if requests under way may rely on it."""
        batch = partition.batches.pop(base_offset)
        partition.remove_run(batch.base_offset, batch.last_offset)
        del self._order[(key, base_offset)]
        self.size_bytes -= self._size_of(batch)
        if not partition.pins:
            return
        _, earlier = partition.retired.pop(base_offset, (0, None))
        if earlier is not None:
            self.retired_bytes -= self._size_of(earlier)
        partition.retired[base_offset] = (partition.last_pin, batch)
        self.retired_bytes += self._size_of(batch)
        while partition.retired and self.retired_bytes > self.limit_bytes:
            self._drop_oldest_retired(partition)

    def _drop_oldest_retired(self, partition: _Partition) -> None:
        _, (_, batch) = partition.retired.popitem(last=False)
        self.retired_bytes -= self._size_of(batch)

    def _size_of(self, batch: CachedBatch) -> int:
        return len(batch.data) + self._overhead_bytes

    def _forget_if_empty(self, key: TopicPartition, partition: _Partition) -> None:
        if not partition.batches and not partition.pins:
            del self._partitions[key]
